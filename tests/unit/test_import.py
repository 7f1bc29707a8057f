"""`import postroom` brings nothing along that an extra is needed for."""

import subprocess
import sys


def test_the_import_is_light() -> None:
    heavy = {"sqlalchemy", "aiosqlite", "typer", "rich", "greenlet"}
    script = f"import sys, postroom; print(*sorted({heavy} & set(sys.modules)))"

    loaded = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True)

    assert loaded.stdout.split() == []
