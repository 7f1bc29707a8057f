"""The house is in order: pages are complete, links lead somewhere, nothing unwanted creeps in."""

import ast
import dataclasses
import inspect
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from postroom import errors, events

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md")])
SOURCES = sorted((ROOT / "src" / "postroom").rglob("*.py"))

# Written in two parts, so that this file does not find itself.
UNWANTED = ("TO" + "DO", "FIX" + "ME", "XX" + "X")


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def anchors(page: Path) -> set[str]:
    """Return what a link may point to in a page, by the rule of the usual Markdown renderers."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    found: set[str] = set()
    for title in re.findall(r"^#+ (.+?)\s*$", text, flags=re.MULTILINE):
        slug = re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")
        found.add(slug)
    return found


def links(page: Path) -> Iterator[str]:
    """Yield the targets of a page's links that lead to files of this project."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"`[^`\n]*`", "", text)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if "://" not in target and not target.startswith("mailto:"):
            yield target


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_link_leads_somewhere(page: Path) -> None:
    for link in links(page):
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{name(page)}: {link} leads nowhere"
        if anchor:
            assert anchor in anchors(target), f"{name(page)}: {link} has no such heading"


@pytest.mark.parametrize("page", sorted(DOCS.rglob("*.md")), ids=name)
def test_every_page_can_be_reached_from_the_index(page: Path) -> None:
    reached, waiting = set[Path](), [DOCS / "index.md"]
    while waiting:
        here = waiting.pop()
        if here not in reached and here.exists():
            reached.add(here)
            targets = ((here.parent / link.partition("#")[0]).resolve() for link in links(here))
            waiting += [target for target in targets if target.suffix == ".md"]

    assert page in reached


def test_every_error_has_its_place_on_the_errors_page() -> None:
    classes = {
        cls.__name__
        for _, cls in inspect.getmembers(errors, inspect.isclass)
        if issubclass(cls, errors.PostroomError)
    }

    page = (DOCS / "reference" / "errors.md").read_text()
    described = set(re.findall(r"^## (\w+)$", page, flags=re.MULTILINE))

    assert described == classes


def test_the_pointer_in_an_error_leads_to_its_place() -> None:
    error = errors.NoTransaction("no transaction")

    pointer = re.search(r"\(see (.+)#(.+)\)$", str(error))

    assert pointer is not None
    assert pointer[2] in anchors(ROOT / pointer[1])


def test_every_event_is_on_the_events_page_as_its_class_says() -> None:
    page = (DOCS / "reference" / "events.md").read_text()
    for _, cls in inspect.getmembers(events, inspect.isclass):
        if issubclass(cls, events.Event) and cls is not events.Event:
            fields = ", ".join(f"`{field.name}`" for field in dataclasses.fields(cls))
            what = " ".join(inspect.getdoc(cls).split())  # type: ignore[union-attr]

            assert f"| `{cls.__name__}` | {fields} | {what} |" in page


def test_every_decision_is_in_the_list() -> None:
    listed = (DOCS / "decisions" / "index.md").read_text()
    for page in (DOCS / "decisions").glob("0*.md"):
        assert f"]({page.name})" in listed
        assert "## Context" in page.read_text()


@pytest.mark.parametrize("path", [*PAGES, *SOURCES], ids=name)
def test_nothing_is_left_to_be_done_later(path: Path) -> None:
    text = path.read_text()

    assert not [word for word in UNWANTED if re.search(rf"\b{word}\b", text)]
    assert path.suffix != ".py" or "type: ignore" not in text


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_no_page_promises_delivery_exactly_once(page: Path) -> None:
    """What is promised: at least once on the wire, one effect in the database."""
    words = " ".join(page.read_text().split()).lower()

    for match in re.finditer(r"exactly[ -]once", words):
        assert re.search(r"\b(never|not|no|nobody)\b", words[: match.start()][-60:])


@pytest.mark.parametrize("path", SOURCES, ids=name)
def test_files_and_functions_keep_to_the_budget(path: Path) -> None:
    text = path.read_text()

    assert len(text.splitlines()) <= 400
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            body = node.body[1:] if ast.get_docstring(node) else node.body
            lines = (body[-1].end_lineno or 0) - body[0].lineno + 1 if body else 0
            assert lines <= 40, f"{node.name} has {lines} lines"


def test_the_package_imports_without_any_extra() -> None:
    """`import postroom` is quick and needs no client library of a database, broker or screen."""
    extras = (
        "sqlalchemy",
        "aiosqlite",
        "pamqp",
        "nats",
        "redis",
        "typer",
        "rich",
        "pytest",
        "hypothesis",
        "postroom.lab",
    )
    program = f"import sys, postroom; print([m for m in {extras} if m in sys.modules])"

    found = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True
    )

    assert found.stdout.strip() == "[]"


def test_requirements_are_pinned_and_name_no_registry() -> None:
    for path in (ROOT / "requirements").glob("*.txt"):
        for line in path.read_text().splitlines():
            requirement = line.partition("#")[0].strip()
            if requirement and not requirement.startswith("-r "):
                assert re.fullmatch(r"[\w.-]+==[\w.]+(; .+)?", requirement), requirement


def test_make_help_lists_every_command() -> None:
    makefile = (ROOT / "Makefile").read_text()
    phony = re.search(r"^\.PHONY: (.+)$", makefile, flags=re.MULTILINE)
    explained = re.findall(r"^([a-z]+):.*## ", makefile, flags=re.MULTILINE)

    assert phony is not None
    assert sorted(phony[1].split()) == sorted(explained)
