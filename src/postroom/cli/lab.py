"""`lab`: a small shop in real processes, killed at every point, and judged by its files."""

import asyncio
import random
import re
import shutil
import signal
import tempfile
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from postroom._redact import redacted
from postroom.cli.exits import CommandFailed, Exit
from postroom.cli.lab_screen import Screen
from postroom.cli.screen import document, err, out, say, table
from postroom.cli.start import examples
from postroom.lab import brokers, runner, timeline
from postroom.lab.broker import EMBEDDED, NoBroker
from postroom.lab.database import Unusable
from postroom.lab.ground import SQLITE, DriverMissing
from postroom.lab.plants import PLANTS
from postroom.lab.report import Report
from postroom.lab.runner import Plan
from postroom.lab.servers.postgresql import ServerMissing

_LONGEST = 24 * 3600
_STDOUT = Path("-")
EPILOG = examples(
    "postroom lab",
    "postroom lab --seconds 120 --json out.json --html out.html",
    "postroom lab --only frozen-relay --only storm --seed 7",
    "postroom lab --plant no-fence",
    "postroom lab --store postgresql",
    "postroom lab --store postgresql://postgres@127.0.0.1/postgres",
    "postroom lab --broker rabbitmq --store postgresql",
    "postroom lab --broker amqp://guest:guest@127.0.0.1:5672/",
)


def lab_command(  # noqa: PLR0913 - each is an option of the command
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
    store: Annotated[
        str,
        typer.Option(
            "--store",
            metavar="STORE",
            help="sqlite; postgresql: the lab starts a server; or postgresql://user@host/database.",
        ),
    ] = SQLITE,
    broker: Annotated[
        str,
        typer.Option(
            "--broker",
            metavar="BROKER",
            help="embedded; rabbitmq: the lab starts a server; or amqp://user:password@host/vhost.",
        ),
    ] = EMBEDDED,
    messages: Annotated[
        int,
        typer.Option(
            "--messages",
            min=0,
            show_default="3000",
            help="How many orders contending-writers places.",
        ),
    ] = 0,
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
        Path | None,
        typer.Option(
            "--json", metavar="FILE", help="Write the figures there; - is standard output."
        ),
    ] = None,
    html: Annotated[
        Path | None, typer.Option("--html", metavar="FILE", help="Draw the timelines there.")
    ] = None,
) -> None:
    """Kill, freeze and cut off a small shop at every point, and count what was lost.

    Five figures must be zero: lost, duplicate effects, out of order, stuck, ghosts.
    Ends with 0 if they are in every scenario, else with 1; naive is shown and not asked.

    With --plant a known mistake is built in: then it must end with 1.
    """
    if listed:
        table(("scenario", "needs", "what happens"), runner.names())
        return
    plan = Plan(
        seed=random.SystemRandom().randrange(1_000_000) if seed is None else seed,
        seconds=seconds,
        only=only or [],
        plant=plant,
        store=store,
        broker=broker,
        messages=messages,
    )
    _check(plan)
    for path in (json, html):
        _writable(path)
    screen = Screen(plan)
    with _folder(keep) as root, screen:
        report = _run(plan, root, screen, keep=keep is not None)
    _tell(report, screen, json=json, html=html)
    if not report.passed:
        raise typer.Exit(Exit.WRONG)


def _check(plan: Plan) -> None:
    """Refuse what cannot be run, and say what can."""
    if not re.fullmatch("sqlite|postgresql|postgres(ql)?://.+", plan.store):
        raise CommandFailed(
            Exit.USAGE,
            f"there is no store {redacted(plan.store)!r}",
            cure="sqlite, postgresql, or the address of a PostgreSQL database",
        )
    if not brokers.kind(plan.broker):
        raise CommandFailed(
            Exit.USAGE,
            f"there is no broker {redacted(plan.broker)!r}",
            cure="embedded, rabbitmq, or an address such as amqp://user:password@host:port/vhost",
        )
    known = [name for name, _, _ in runner.names()]
    able = {*(one.name for one in replace(plan, only=(), plant="").chosen()), *runner.OTHERS}
    for name in plan.only:
        if name not in known:
            raise CommandFailed(
                Exit.USAGE, f"there is no scenario {name!r}", cure="`postroom lab --list` has them"
            )
        if name not in able:
            raise CommandFailed(
                Exit.USAGE,
                f"{name} needs another store or broker",
                cure="`postroom lab --list` says which",
            )
    if plan.plant and plan.plant not in PLANTS:
        raise CommandFailed(
            Exit.USAGE, f"there is no variant {plan.plant!r}", cure=f"one of {', '.join(PLANTS)}"
        )
    if not plan.chosen() and not any(map(plan.includes, runner.OTHERS)):
        raise CommandFailed(
            Exit.USAGE,
            f"nothing catches {plan.plant} on {redacted(plan.store)} and {redacted(plan.broker)}",
            cure=_elsewhere(plan),
        )


def _elsewhere(plan: Plan) -> str:
    """Say with which choice something catches the variant."""
    for broker in (EMBEDDED, "rabbitmq"):
        for store in ("sqlite", "postgresql"):
            if replace(plan, store=store, broker=broker).chosen():
                return f"--store {store} --broker {broker}"
    return "leave --only out"


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
        say(f"all files are in {keep.absolute()}")
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
    except (DriverMissing, ServerMissing) as error:
        raise CommandFailed(Exit.USAGE, str(error)) from error
    except NoBroker as error:
        raise CommandFailed(Exit.UNREACHABLE, str(error)) from error
    except Unusable as error:
        raise CommandFailed(
            Exit.UNREACHABLE, f"{redacted(plan.store)} cannot be used: {error}"
        ) from error
    except KeyboardInterrupt:
        raise typer.Exit(128 + signal.SIGINT) from None


def _tell(report: Report, screen: Screen, *, json: Path | None, html: Path | None) -> None:
    """Show what was found, and write it where it is wanted."""
    screen.tell(report, err() if json == _STDOUT else out())
    if json == _STDOUT:
        document(report.to_dict())
    elif json is not None:
        report.write(json)
    if html is not None:
        timeline.write(report, html)


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
