"""Handlers that end in every way a function can end, and worse."""

import asyncio
import multiprocessing
import os
import shutil
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from postroom import events
from postroom.connections import sqlite3_transactions
from postroom.message import Message
from tests.consumer.conftest import Billing, OrderPlaced, billing_on, numbers


class Mute(Exception):
    """An error that cannot even say what it is."""

    def __str__(self) -> str:
        """Fail."""
        raise RuntimeError("no words")


def raising(error: BaseException) -> Callable[[Any], None]:
    """Return what raises the error."""

    def end(_context: Any) -> None:
        raise error

    return end


def ending(verb: str) -> Callable[[Any], None]:
    """Return what ends the transaction of a sqlite3 connection."""

    def end(context: Any) -> None:
        if verb == "close":
            context.connection.close()
        else:
            context.connection.execute(verb)

    return end


UNRULY = {
    "StopIteration": raising(StopIteration()),
    "SystemExit": raising(SystemExit(3)),
    "CancelledError": raising(asyncio.CancelledError()),
    "GeneratorExit": raising(GeneratorExit()),
    "mute": raising(Mute()),
}


async def end_badly(billing: Billing, how: Callable[[Any], None]) -> str:
    """Let one order end so, beside nine of another customer; return why it died."""

    def invoke(order: OrderPlaced, context: Any) -> None:
        if order.trouble:
            how(context)

    billing.invoke = invoke
    await billing.publish(
        OrderPlaced("ann", 1, trouble="yes"), *(OrderPlaced("bob", n) for n in range(9))
    )
    await billing.consume(
        billing.consumer(concurrency=2),
        until=lambda: billing.count(events.DeadLettered) == 1 and billing.done(9)(),
    )
    assert numbers(billing.effects(), "bob") == list(range(9))
    (letter,) = await billing.broker.dead_letters()
    return letter.reason


@pytest.mark.parametrize("how", UNRULY)
async def test_however_a_handler_ends_its_message_dies_and_no_other(
    billing: Billing, how: str
) -> None:
    """No slot is lost, no key is stuck, and the consumer goes on."""
    reason = await end_badly(billing, UNRULY[how])

    assert numbers(billing.effects(), "ann") == []
    assert reason


@pytest.mark.parametrize("verb", ["ROLLBACK", "close"])
async def test_a_handler_that_ends_the_transaction_has_failed(simple: Billing, verb: str) -> None:
    """What it wrote and the inbox row would not be committed together."""
    reason = await end_badly(simple, ending(verb))

    assert "leave that to the consumer" in reason
    assert numbers(simple.effects(), "ann") == []


async def test_a_handler_that_commits_itself_is_told_and_has_one_effect(simple: Billing) -> None:
    """The inbox row went along with its commit, so the copy is a duplicate."""
    simple.invoke = lambda _order, context: context.connection.execute("COMMIT")
    await simple.publish(OrderPlaced("ann", 1))

    await simple.consume(simple.consumer(), until=simple.done(1))

    assert simple.effects() == [("ann", 1)]
    (failed,) = [event for event in simple.events if isinstance(event, events.HandlerFailed)]
    assert "leave that to the consumer" in failed.error
    assert simple.count(events.Duplicate) == 1


async def test_an_outage_that_only_one_message_meets_is_its_own(simple: Billing) -> None:
    """It locks a second database, say: it must not stop the consumer for ever."""

    def invoke(order: OrderPlaced, _context: Any) -> None:
        if order.trouble:
            error = sqlite3.OperationalError("database is locked")
            error.sqlite_errorcode = sqlite3.SQLITE_BUSY
            raise error

    simple.invoke = invoke
    await simple.publish(OrderPlaced("ann", 1, trouble="locked"))
    sent = 0

    def keep_sending() -> bool:
        nonlocal sent
        resumed = simple.count(events.ConsumerResumed)
        if resumed >= sent:
            sent += 1
            asyncio.ensure_future(simple.publish(OrderPlaced("bob", sent)))  # noqa: RUF006
        return simple.count(events.DeadLettered) == 1

    await simple.consume(simple.consumer(), until=keep_sending)

    assert simple.count(events.HandlerFailed) == 2
    assert numbers(simple.effects(), "bob")


async def test_a_full_disk_in_a_put_of_two_is_an_outage(simple: Billing) -> None:
    """SQLite rolls everything back by itself then, the savepoint included."""
    pages = int(simple.query("pragma page_count")[0][0])
    full = True

    def invoke(_order: OrderPlaced, context: Any) -> None:
        limit = pages + 2 if full else 100_000
        context.connection.execute(f"pragma max_page_count = {limit}")
        context.put(*(Message(type="t", payload=b"x" * 50_000) for _ in range(2)))

    simple.invoke = invoke
    await simple.publish(OrderPlaced("ann", 1))

    def make_room() -> bool:
        nonlocal full
        full = full and simple.count(events.ConsumerPaused) < 2
        return simple.done(1)()

    await simple.consume(simple.consumer(), until=make_room)

    assert simple.effects() == [("ann", 1)]
    assert simple.count(events.HandlerFailed) == 0


async def test_a_database_that_was_replaced_is_not_written_as_a_ghost(
    simple: Billing, tmp_path: Path
) -> None:
    """Effects in a deleted file would be acknowledged and gone."""
    copy = tmp_path / "copy.db"
    shutil.copy(simple.path, copy)
    await simple.publish(OrderPlaced("ann", 1))
    state = "whole"

    def exchange() -> bool:
        nonlocal state
        if state == "whole" and simple.done(1)():
            state = "gone"
            for name in (simple.path, *simple.path.parent.glob("billing.db-*")):
                Path(name).unlink()
            asyncio.ensure_future(simple.publish(OrderPlaced("ann", 2)))  # noqa: RUF006
        elif state == "gone" and simple.count(events.ConsumerPaused) > 0:
            state = "replaced"
            shutil.copy(copy, simple.path)
        return simple.done(2)()

    await simple.consume(simple.consumer(), until=exchange)

    assert simple.effects() == [("ann", 2)], "in the database that is there now"
    assert simple.count(events.HandlerFailed) == 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_child_uses_no_connection_of_its_parent(tmp_path: Path) -> None:
    """As with a web server that loads the application before it forks its workers."""
    begin = sqlite3_transactions(tmp_path / "forked.db")
    with begin() as connection:
        connection.execute("create table t (pid)")
        parents = id(connection)

    child = multiprocessing.get_context("fork").Process(
        target=_write_as_child, args=(begin, parents)
    )
    child.start()
    child.join(20)

    assert child.exitcode == 0
    with begin() as connection:
        assert connection.execute("select count(*) from t").fetchone() == (1,)
        assert id(connection) == parents
    begin.close()


def _write_as_child(begin: Any, parents: int) -> None:
    with begin() as connection:
        assert id(connection) != parents
        connection.execute("insert into t values (1)")


@pytest.mark.parametrize("kind", ["sqlite3", "aiosqlite"])
async def test_waiting_for_a_slow_handler_is_no_outage(kind: str, tmp_path: Path) -> None:
    """Eight handlers share SQLite's one writer; the last waits for all the others."""
    async for billing in billing_on(kind, tmp_path / "billing.db"):
        billing.patience = 0.05
        billing.invoke = lambda _order, _context: time.sleep(0.03)
        await billing.publish(*(OrderPlaced(f"c{number}", number) for number in range(16)))

        await billing.consume(billing.consumer(concurrency=8), until=billing.done(16))

        assert billing.count(events.ConsumerPaused) == 0
