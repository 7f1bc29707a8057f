"""Shops for the tests of the command line."""

import os
from pathlib import Path

import pytest

from tests.programs.shop import CONFIG, Shop


@pytest.fixture
def empty_shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shop:
    """A directory with nothing in it, as the working directory."""
    for name in [name for name in os.environ if name.startswith("POSTROOM_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    return Shop(tmp_path)


@pytest.fixture
def shop(empty_shop: Shop) -> Shop:
    """A shop that is ready to work."""
    (empty_shop.path / "postroom.toml").write_text(CONFIG)
    assert empty_shop.cli("init").code == 0
    return empty_shop
