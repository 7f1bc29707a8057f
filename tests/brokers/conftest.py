"""What the tests of the brokers share."""

from pathlib import Path

import pytest


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where the embedded broker of this test lives."""
    return tmp_path / "broker.db"
