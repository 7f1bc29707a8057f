"""Every program in examples/ runs as it stands, and says what its page says."""

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"

SAYS = {
    "shop_sqlite3.py": """\
order - failed: NOT NULL constraint failed: orders.item
parcel for order 1: a kettle
parcel for order 2: two cups
""",
    "shop_sqlalchemy.py": """\
mail about order 7: 1990 cents; a message caused it: True
""",
    "async_worker.py": """\
comments counted: 3; stopped cleanly: True
""",
    "dead_letters.py": """\
refused once: 2 held, 3 sent, 1 waiting
refused twice: 1 dead, 2 held, 3 sent
dead after 2 attempts: negative confirm
a replay would send 1
replayed: 6 sent
the red account arrived in the order 1, 2, 3
""",
}


def test_every_example_is_here() -> None:
    assert {path.name for path in EXAMPLES.glob("*.py")} == set(SAYS)


@pytest.mark.parametrize("example", sorted(SAYS))
def test_example(example: str, tmp_path: Path) -> None:
    run = subprocess.run(
        [sys.executable, "-W", "error", str(EXAMPLES / example)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )

    assert run.returncode == 0, run.stderr
    assert run.stdout == SAYS[example]
    assert run.stderr == ""
