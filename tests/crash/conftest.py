"""One run of the whole lab, that many tests look at."""

import pytest

from tests.crash.running import Run, run_lab


@pytest.fixture(scope="session")
def whole_run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Run everything once, with a short storm."""
    return run_lab(tmp_path_factory.mktemp("lab"), "--seconds", "8", "--seed", "7")
