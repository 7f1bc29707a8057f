"""`relay` and `consume`: the two commands that run until they are told to stop."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Annotated, Any

import typer

from postroom import events
from postroom._tasks import task_group
from postroom.app import Postroom
from postroom.broker import ALL_TOPICS, Keeper
from postroom.cli.exits import CommandFailed, Exit
from postroom.cli.loading import consumer_at
from postroom.cli.overview import told_unserved, unserved
from postroom.cli.screen import document, say
from postroom.cli.selection import older_than
from postroom.cli.start import (
    Json,
    common,
    examples,
    logging_to_stderr,
    opened,
    run,
    stopped_by_signals,
    ticking,
)
from postroom.cli.tally import Tally
from postroom.consumer import Consumer
from postroom.errors import BrokerUnavailable
from postroom.message import State
from postroom.relay import Relay
from postroom.store import Query

app = typer.Typer()

_LOOK = 0.1
"""Seconds between two looks whether anything is left."""

UntilEmpty = Annotated[
    bool, typer.Option("--until-empty", help="Stop when nothing is left to do now.")
]
Timeout = Annotated[
    str | None,
    typer.Option("--timeout", help="With --until-empty: give up after this time (exit code 1)."),
]
Runs = Callable[[asyncio.Event], Awaitable[None]]
Empty = Callable[[], Awaitable[bool]]


@app.command(
    epilog=examples(
        "postroom relay",
        "postroom relay --until-empty --timeout 1m --json",
        "postroom relay --once",
        "POSTROOM_LOG__FORMAT=json postroom relay --name mail",
    )
)
def relay(
    context: typer.Context,
    *,
    once: Annotated[bool, typer.Option("--once", help="Do one round, then stop.")] = False,
    until_empty: UntilEmpty = False,
    timeout: Timeout = None,
    name: Annotated[
        str | None, typer.Option("--name", help="What its name begins with; a random part follows.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Send what is in the outbox, until SIGTERM or Ctrl-C; then exit with 0.

    Run as many as you like: they share the work. Log lines go to standard error.
    --until-empty does not wait for messages that wait for another try.
    """
    if once and until_empty:
        raise CommandFailed(Exit.USAGE, "--once and --until-empty exclude each other")

    async def work() -> dict[str, Any]:
        tally = Tally()
        with logging_to_stderr(common(context).settings()) as logs:
            async with opened(context, [logs, tally]) as postroom, ticking(logs):
                made = postroom.relay(name=name)
                if once:
                    await _once(made, tally)
                else:
                    empty = _outbox_empty(postroom) if until_empty else None
                    await _until(made.run, empty, timeout, tally)
                left = await _unserved(postroom) if until_empty else {}
        done = {
            "relay": made.name,
            "sent": tally.of(events.Sent),
            "retried": tally.of(events.Retried),
            "dead": tally.of(events.Dead),
        }
        return {**done, "unserved": dict(left)} if until_empty else done

    done = run(work())
    _tell(done, as_json=as_json)
    if left := told_unserved(done.get("unserved", {})):
        raise CommandFailed(Exit.WRONG, f"not empty: {'; '.join(left)}")


@app.command(
    epilog=examples(
        "postroom consume shop.shipping:consumer",
        "postroom consume shop.shipping:consumer shop.billing:consumer",
        "postroom consume shop.shipping:consumer --until-empty --timeout 30s --json",
    )
)
def consume(
    context: typer.Context,
    paths: Annotated[
        list[str], typer.Argument(metavar="MODULE:APP...", help="Where the consumers are.")
    ],
    *,
    until_empty: UntilEmpty = False,
    timeout: Timeout = None,
    as_json: Json = False,
) -> None:
    """Run consumers until SIGTERM or Ctrl-C; then exit with 0.

    Each is a Consumer object in a module that can be imported, also from the working directory.
    What has begun is ended first, the rest goes back to the broker.
    """
    settings = common(context).settings()
    consumers = [consumer_at(path) for path in dict.fromkeys(paths)]

    async def work() -> dict[str, Any]:
        tally = Tally()
        with logging_to_stderr(settings) as logs:
            for consumer in consumers:
                consumer.observe(logs, tally)
            async with opened(context) as postroom, ticking(logs):
                empty = _queues_empty(postroom, consumers) if until_empty else None
                await _until(_all(postroom, consumers), empty, timeout, tally)
        return {
            "consumers": [consumer.name for consumer in consumers],
            "handled": tally.of(events.Committed),
            "duplicates": tally.of(events.Duplicate),
            "failed": tally.of(events.HandlerFailed),
            "dead": tally.of(events.DeadLettered),
        }

    _tell(run(work()), as_json=as_json)


async def _once(relay: Relay, tally: Tally) -> None:
    try:
        await relay.step()
    finally:
        await relay.leave()
    if tally.paused:
        raise CommandFailed(Exit.UNREACHABLE, f"the broker cannot be reached: {tally.paused}")


async def _until(runs: Runs, empty: Empty | None, timeout: str | None, tally: Tally) -> None:
    """Run until a signal comes, or until there is nothing left if that is wanted."""
    if timeout is not None and empty is None:
        raise CommandFailed(Exit.USAGE, "--timeout goes with --until-empty")
    limit = None if timeout is None else older_than(timeout, "--timeout").total_seconds()
    stop = asyncio.Event()
    late = False
    with stopped_by_signals(stop):
        async with task_group() as group:
            running = group.create_task(_stopping(runs, stop))
            if empty is not None:
                try:
                    async with asyncio.timeout(limit):
                        await _wait_until(empty, stop)
                except TimeoutError:
                    late = True
                stop.set()
            await running
    if late and tally.paused:
        raise CommandFailed(Exit.UNREACHABLE, f"gave up after {timeout}: {tally.paused}")
    if late:
        raise CommandFailed(Exit.WRONG, f"gave up after {timeout}: something is left")


async def _stopping(runs: Runs, stop: asyncio.Event) -> None:
    """Run; an end that nobody asked for ends the wait as well."""
    try:
        await runs(stop)
    finally:
        stop.set()


async def _wait_until(empty: Empty, stop: asyncio.Event) -> None:
    while not stop.is_set() and not await empty():
        with suppress(TimeoutError):
            async with asyncio.timeout(_LOOK):
                await stop.wait()


def _outbox_empty(postroom: Postroom) -> Empty:
    """A row is ready until it is settled, in flight too: no ready row means all is done.

    Only of routes that this relay serves: of others nobody may ever send any.
    """

    async def empty() -> bool:
        for route in postroom.routes:
            if await postroom.desk.find(Query(states=(State.READY,), route=route.name), limit=1):
                return False
        return True

    return empty


async def _unserved(postroom: Postroom) -> Mapping[str, int]:
    """Return what is left of routes that neither this relay serves nor one that is alive."""
    stats = await postroom.desk.stats()
    served = {route.name for route in postroom.routes}
    return unserved(stats, served.union(*(relay.routes for relay in stats.relays if relay.alive)))


def _queues_empty(postroom: Postroom, consumers: Sequence[Consumer]) -> Empty:
    broker = postroom.broker
    if not isinstance(broker, Keeper):
        raise CommandFailed(Exit.USAGE, f"{broker.name} does not tell whether a queue is empty")
    wanted = {(consumer.name, topic) for consumer in consumers for topic in consumer.topics}
    whole = {(consumer.name, ALL_TOPICS) for consumer in consumers}

    async def empty() -> bool:
        try:
            queues = await broker.queues()
        except BrokerUnavailable:
            return False
        ours = [queue for queue in queues if (queue.group, queue.topic) in wanted | whole]
        # A group is listed from its subscription on; before that nobody knows what waits for it.
        listed = {(queue.group, queue.topic) for queue in ours}
        complete = all({one, (one[0], ALL_TOPICS)} & listed for one in wanted)
        return complete and not any(q.ready + q.out + (q.delayed or 0) for q in ours)

    return empty


def _all(postroom: Postroom, consumers: Sequence[Consumer]) -> Runs:
    async def runs(stop: asyncio.Event) -> None:
        async with task_group() as group:
            for consumer in consumers:
                group.create_task(postroom.run_consumer(consumer, stop))

    return runs


def _tell(done: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        document(done)
    else:
        say(", ".join(f"{value} {key}" for key, value in done.items() if isinstance(value, int)))
