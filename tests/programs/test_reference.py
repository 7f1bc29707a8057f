"""The reference pages name everything there is, and nothing else."""

import re
from pathlib import Path
from typing import Any

import pytest
import typer.main

import postroom
from postroom._document import dotted_keys
from postroom.cli.exits import MEANINGS
from postroom.cli.main import app
from postroom.codecs import PutOptions
from postroom.settings import Settings, _table

REFERENCE = Path(__file__).parents[2] / "docs" / "reference"
CLI = (REFERENCE / "cli.md").read_text()
API = (REFERENCE / "api.md").read_text()
SETTINGS = (REFERENCE / "settings.md").read_text()
ROOT: Any = typer.main.get_command(app)
EVERYWHERE = {"--help", "--json", "--install-completion", "--show-completion", "--version"}


def options(command: Any) -> set[str]:
    found = {name for each in command.params for name in each.opts if name.startswith("--")}
    return found.union(*(options(each) for each in getattr(command, "commands", {}).values()))


def section(page: str, title: str) -> str:
    return re.split(r"^## ", page, flags=re.MULTILINE)[
        1 + [t.strip() for t in re.findall(r"^## (.+)$", page, re.MULTILINE)].index(title)
    ]


@pytest.mark.parametrize("name", sorted(ROOT.commands))
def test_every_command_and_option_is_in_the_reference(name: str) -> None:
    text = section(CLI, name)

    missing = {
        option
        for option in options(ROOT.commands[name]) - EVERYWHERE
        if not re.search(rf"{option}\b", text)
    }

    assert not missing


def test_every_option_in_the_reference_exists() -> None:
    known = options(ROOT)

    assert set(re.findall(r"--[a-z][a-z-]+", CLI)) <= known | {"--help"}


def test_the_reference_lists_the_exit_codes() -> None:
    rows = re.findall(r"^\| (\d+) \|", section(CLI, "Exit codes"), re.MULTILINE)

    assert [int(row) for row in rows] == [int(code) for code in MEANINGS]


@pytest.mark.parametrize("name", ["relay", "retention", "limits", "log"])
def test_every_setting_is_in_the_reference_with_its_default(name: str, tmp_path: Path) -> None:
    rows = re.findall(r"^\| `([\w.]+)` \| `(.+?)` \|", section(SETTINGS, name), re.MULTILINE)

    known = {key.partition(".")[2] for key in dotted_keys(_table()) if key.startswith(f"{name}.")}
    assert {key for key, _ in rows} == known
    path = tmp_path / "postroom.toml"
    path.write_text(f"[{name}]\n" + "".join(f"{key} = {value}\n" for key, value in rows))
    assert Settings.load(path, {}) == Settings()


@pytest.mark.parametrize("name", postroom.__all__)
def test_every_public_name_is_in_the_reference(name: str) -> None:
    assert re.search(rf"`@?{name}\b", API), f"{name} is not in docs/reference/api.md"


def test_every_option_of_a_put_is_in_the_reference() -> None:
    for name in PutOptions.__annotations__:
        assert f"`{name}`" in API
