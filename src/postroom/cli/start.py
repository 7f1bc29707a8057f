"""What every command begins with: settings, logs, an opened Postroom, and a clean stop."""

import asyncio
import contextlib
import getpass
import logging
import signal
import sys
from collections.abc import AsyncIterator, Coroutine, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from postroom import _signals
from postroom.app import Postroom
from postroom.cli.exits import Exit
from postroom.cli.screen import say
from postroom.drivers import MEMORY, broker_of, scheme_of, store_of
from postroom.events import Observer
from postroom.observe.logs import LogObserver, handler
from postroom.settings import Settings

T = TypeVar("T")

Json = Annotated[bool, typer.Option("--json", help="One JSON document on standard output.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Count exactly, change nothing.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]

_TICK = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Common:
    """The global options."""

    config: Path | None = None
    debug: bool = False

    def settings(self) -> Settings:
        """Read the settings."""
        return Settings.load(self.config)


def examples(*lines: str) -> str:
    """Return the epilog of a command: one example per line."""
    return "\n".join(["Examples:", *(f"  $ {line}" for line in lines)])


def common(context: typer.Context) -> Common:
    """Return the global options of this run."""
    found = context.find_object(Common)
    return found or Common()


@asynccontextmanager
async def opened(
    context: typer.Context, observers: Iterable[Observer] = ()
) -> AsyncIterator[Postroom]:
    """Open what the settings name, in the name of the person at the keyboard."""
    settings = common(context).settings()
    for what, url in (("store", settings.store), ("broker", settings.broker)):
        if scheme_of(url) == MEMORY:
            say(f"warning: the {what} is {MEMORY}:, which is empty at the start of every command")
    made = Postroom(
        settings,
        store=store_of(settings),
        broker=broker_of(settings),
        observers=observers,
        actor=_actor(),
    )
    async with made as postroom:
        yield postroom


@contextmanager
def logging_to_stderr(settings: Settings) -> Iterator[LogObserver]:
    """Write everything that is logged meanwhile to standard error, as the settings say."""
    logger, written = logging.getLogger("postroom"), handler(sys.stderr, style=settings.log.format)
    before = logger.level
    logger.setLevel(settings.log.level.upper())
    logger.addHandler(written)
    observer = LogObserver(logger)
    try:
        yield observer
    finally:
        observer.flush()
        logger.removeHandler(written)
        logger.setLevel(before)


@contextmanager
def stopped_by_signals(stop: asyncio.Event) -> Iterator[None]:
    """Set `stop` on SIGTERM or Ctrl-C and say so; a later second one ends the process at once."""
    with _signals.stopped_by_signals(
        stop, lambda kind: say(f"{kind.name}: stopping"), at_once=True
    ):
        yield


@asynccontextmanager
async def ticking(observer: LogObserver) -> AsyncIterator[None]:
    """Have sums logged in time, also when nothing happens any more."""

    async def tick() -> None:
        while True:
            await asyncio.sleep(_TICK)
            observer.tick()

    task = asyncio.create_task(tick(), name="log sums")
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


def run(work: Coroutine[object, object, T]) -> T:
    """Run a command's work on an event loop of its own."""
    try:
        return asyncio.run(work)
    except KeyboardInterrupt:
        raise typer.Exit(128 + signal.SIGINT) from None


def fail_if(problem: object) -> None:
    """End with the code of something wrong, after the result was shown."""
    if problem:
        raise typer.Exit(int(Exit.WRONG))


def _actor() -> str:
    try:
        return f"cli:{getpass.getuser()}"
    except (KeyError, OSError):
        return "cli"
