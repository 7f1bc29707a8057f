"""`lab`: a small shop in real processes, killed at every point, and judged by its files."""

import asyncio
import random
import shutil
import signal
import tempfile
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from postroom.cli.exits import CommandFailed, Exit
from postroom.cli.lab_screen import Screen
from postroom.cli.screen import show, table
from postroom.cli.start import examples
from postroom.lab import runner, timeline
from postroom.lab.plants import PLANTS
from postroom.lab.report import Report
from postroom.lab.runner import Plan

_LONGEST = 24 * 3600
EPILOG = examples(
    "postroom lab",
    "postroom lab --seconds 120 --json out.json --html out.html",
    "postroom lab --only frozen-relay --only storm --seed 7",
    "postroom lab --plant no-fence",
)


def lab_command(
    *,
    seconds: Annotated[
        float, typer.Option("--seconds", min=1, max=_LONGEST, help="How long the storm lasts.")
    ] = 15,
    seed: Annotated[
        int | None, typer.Option("--seed", min=0, help="Repeat the storm of an earlier run.")
    ] = None,
    only: Annotated[
        list[str] | None, typer.Option("--only", metavar="NAME", help="Only this one; repeatable.")
    ] = None,
    listed: Annotated[bool, typer.Option("--list", help="List the scenarios and end.")] = False,
    plant: Annotated[
        str,
        typer.Option(
            "--plant", metavar="VARIANT", help=f"Run a wrong variant: {', '.join(PLANTS)}."
        ),
    ] = "",
    keep: Annotated[
        Path | None, typer.Option("--keep", metavar="DIR", help="Leave all files in this folder.")
    ] = None,
    json: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write the figures there.")
    ] = None,
    html: Annotated[
        Path | None, typer.Option("--html", metavar="FILE", help="Draw the timelines there.")
    ] = None,
) -> None:
    """Kill, freeze and cut off a small shop at every point, and count what was lost.

    Ends with 0 if nothing was lost, doubled, out of order, stuck or invented, else with 1.

    With --plant a known mistake is built in: then it must end with 1.
    """
    if listed:
        table(("scenario", "what happens"), runner.names())
        return
    chosen = _checked(only or [], plant)
    plan = Plan(
        seed=random.SystemRandom().randrange(1_000_000) if seed is None else seed,
        seconds=seconds,
        only=chosen,
        plant=plant,
    )
    for path in (json, html):
        _writable(path)
    screen = Screen(plan)
    with _folder(keep) as root, screen:
        report = _run(plan, root, screen, keep=keep is not None)
    screen.tell(report)
    if json is not None:
        report.write(json)
    if html is not None:
        timeline.write(report, html)
    if not report.passed:
        raise typer.Exit(Exit.WRONG)


def _checked(only: list[str], plant: str) -> list[str]:
    known = [name for name, _ in runner.names()]
    for name in only:
        if name not in known:
            raise CommandFailed(
                Exit.USAGE, f"there is no scenario {name!r}", cure="`postroom lab --list` has them"
            )
    if plant and plant not in PLANTS:
        raise CommandFailed(
            Exit.USAGE, f"there is no variant {plant!r}", cure=f"one of {', '.join(PLANTS)}"
        )
    return only


def _writable(path: Path | None) -> None:
    if path is not None and not path.absolute().parent.is_dir():
        raise CommandFailed(Exit.USAGE, f"there is no folder {path.absolute().parent}")


@contextmanager
def _folder(keep: Path | None) -> Iterator[Path]:
    """Give a new folder for the shops' files; it goes away at the end unless it is kept."""
    if keep is not None:
        if keep.exists() and (not keep.is_dir() or any(keep.iterdir())):
            raise CommandFailed(Exit.USAGE, f"{keep} is not an empty folder")
        keep.mkdir(parents=True, exist_ok=True)
        yield keep.absolute()
        show(f"all files are in {keep.absolute()}")
        return
    root = Path(tempfile.mkdtemp(prefix="postroom-lab-"))
    try:
        yield root
    finally:
        shutil.rmtree(root, ignore_errors=True)


def _run(plan: Plan, root: Path, screen: Screen, *, keep: bool) -> Report:
    stopped: list[int] = []
    try:
        work = runner.run(plan, root, screen.note, keep=keep)
        return asyncio.run(_stoppable(work, stopped))
    except asyncio.CancelledError:
        raise typer.Exit(128 + stopped[0]) from None
    except KeyboardInterrupt:
        raise typer.Exit(128 + signal.SIGINT) from None


async def _stoppable(run: Coroutine[Any, Any, Report], stopped: list[int]) -> Report:
    """Run the lab; SIGTERM and SIGINT end it, with all its processes."""
    work = asyncio.create_task(run)

    def stop(number: int) -> None:
        stopped.append(number)
        work.cancel()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        loop.add_signal_handler(number, stop, number)
    return await work
