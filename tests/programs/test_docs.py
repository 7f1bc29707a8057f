"""The pages' programs and commands run, and print what the pages say."""

import ast
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest
import typer.main

from postroom.cli.main import app

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```(\w+)(?: title=\"(.+?)\")?\n(.*?)^```$", flags=re.DOTALL | re.MULTILINE)


PAGES = sorted(
    str(path.relative_to(ROOT))
    for folder in (".", "docs", "examples")
    for path in (ROOT / folder).glob("*.md" if folder == "." else "**/*.md")
)
COMMANDS: Any = typer.main.get_command(app)


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A block of code in a page."""

    language: str
    title: str | None
    text: str


def blocks(page: str) -> Iterator[Block]:
    for language, title, text in BLOCK.findall((ROOT / page).read_text()):
        yield Block(language=language, title=title or None, text=text)


def environment() -> dict[str, str]:
    """Return the environment of a person who has activated .venv."""
    programs = Path(sys.executable).parent
    kept = {name: text for name, text in os.environ.items() if not name.startswith("POSTROOM_")}
    return {**kept, "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}", "COLUMNS": "160"}


def matches(shown: str, printed: str) -> bool:
    """Compare what a page shows with what was printed; `...` stands for anything."""
    pattern = re.sub(r"([\[\]*?])", r"[\1]", shown.strip()).replace("...", "*")
    return fnmatchcase(printed.strip(), pattern)


def run_console(text: str, folder: Path) -> None:
    """Run the commands of a console block, one after the other, and compare what they print."""
    for command, shown in re.findall(r"^\$ (.+)\n((?:(?!\$ ).*\n)*)", text, flags=re.MULTILINE):
        run = subprocess.run(  # noqa: S602 - the commands stand in our own pages
            command,
            shell=True,
            cwd=folder,
            env=environment(),
            capture_output=True,
            text=True,
            timeout=50,
            check=False,
        )
        assert run.returncode == 0, f"{command}\n{run.stdout}{run.stderr}"
        assert matches(shown, run.stdout), f"{command}\n{run.stdout}{run.stderr}"


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize("page", ["docs/tutorial.md", "docs/guides/consumers.md"])
def test_tutorial(page: str, tmp_path: Path) -> None:
    """A person who types what such a page says gets what it shows."""
    for block in blocks(page):
        if block.title is not None:
            (tmp_path / block.title).write_text(block.text)
        elif block.language == "console":
            run_console(block.text, tmp_path)
        else:
            assert block.language == "text", "a block that is neither saved nor run"


def test_readme_example(tmp_path: Path) -> None:
    """The program of the README bills the order, and has about the promised size."""
    found = list(blocks("README.md"))
    place = next(n for n, block in enumerate(found) if block.title == "example.py")
    program, shown = found[place], found[place + 1]
    lines = [line for line in program.text.splitlines() if line.strip()]
    assert len(lines) <= 30

    (tmp_path / "example.py").write_text(program.text)
    with subprocess.Popen(
        [sys.executable, "-u", "example.py"], cwd=tmp_path, stdout=subprocess.PIPE, text=True
    ) as run:
        assert run.stdout is not None
        try:
            assert run.stdout.readline() == shown.text
        finally:
            run.terminate()


def test_sqlalchemy_guide(tmp_path: Path) -> None:
    """The program of the page prints what the page says."""
    program, shown = list(blocks("docs/guides/sqlalchemy.md"))[:2]
    (tmp_path / "shop.py").write_text(program.text)

    run = subprocess.run(
        [sys.executable, "shop.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )

    assert run.stdout == shown.text, run.stderr


@pytest.mark.parametrize("page", ["docs/guides/testing.md"])
def test_first_program_of_a_guide(page: str, tmp_path: Path) -> None:
    program = next(block for block in blocks(page) if block.language == "python")
    (tmp_path / "test_it.py").write_text(program.text)

    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:asyncio", "test_it.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )

    assert run.returncode == 0, run.stdout + run.stderr


@pytest.mark.parametrize(
    "page",
    [
        "docs/guides/connections.md",
        "docs/guides/deploy.md",
        "docs/guides/drivers.md",
        "docs/guides/sqlalchemy.md",
        "docs/guides/testing.md",
        "docs/reference/api.md",
        "docs/reference/events.md",
    ],
)
def test_every_python_block_is_python(page: str) -> None:
    for block in blocks(page):
        if block.language == "python":
            compile(block.text, page, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


def typed(page: str) -> Iterator[str]:
    """Go through the `postroom ...` commands of a page, in blocks and within sentences."""
    text = (ROOT / page).read_text()
    command = r"(?:\w+=(?:'[^'\n]*'|\S+) )*postroom [-\w][^`\n]*"
    yield from re.findall(rf"^(?:\$ )?({command})$", text, re.MULTILINE)
    yield from re.findall(rf"`({command})`", text)


def refused(line: str) -> str:
    """Return why the command line would refuse this line, or a shell would change it."""
    if re.search(r"[?*&;]", re.sub(r"'[^']*'|\"[^\"]*\"", "", line.partition(" #")[0])):
        return "a character that the shell reads is not quoted"
    words = shlex.split(line, comments=True)
    words = words[words.index("postroom") + 1 :]
    command, known = COMMANDS, {"--help"}
    for word in words:
        if word in {">", "|"}:
            break
        known |= {name for each in command.params for name in each.opts}
        children = getattr(command, "commands", {})
        if word.startswith("-"):
            continue
        if children and word in children:
            command = children[word]
        # Neither a placeholder nor the value of a global option.
        elif children and not word.isupper() and "." not in word:
            return f"there is no command {word!r}"
    known |= {name for each in command.params for name in each.opts}
    unknown = [word for word in words if word.startswith("-") and word.split("=")[0] not in known]
    return f"there are no options {unknown}" if unknown else ""


@pytest.mark.parametrize("page", PAGES)
def test_every_command_of_a_page_exists(page: str) -> None:
    assert {line: why for line in typed(page) if (why := refused(line))} == {}


def test_a_wrong_command_would_be_found() -> None:
    assert "'--store'" in refused("postroom init --store sqlite:///shop.db")
    assert "'unde'" in refused("POSTROOM_STORE=a postroom unde list")
    assert "'lst'" in refused("postroom dead lst --from billing")
    assert "quoted" in refused("POSTROOM_STORE=postgresql://db/shop?schema=a postroom init")
    assert not refused("POSTROOM_STORE='postgresql://db/shop?schema=a' postroom init --json")
    assert sum(len(list(typed(page))) for page in PAGES) > 50
