"""Open a store and a broker, fork, and say what they do in the child and in the parent."""

import asyncio
import os
import sys
from datetime import timedelta
from pathlib import Path

from postroom.brokers.sqlite import EmbeddedBroker
from postroom.connections import sqlite3_transactions
from postroom.errors import StoreError
from postroom.message import Message, State
from postroom.outbox import SyncOutbox
from postroom.stores.sqlite import SqliteStore

SECOND = timedelta(seconds=1)


def message() -> Message:
    return Message(type="t", topic="t", payload=b"")


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


async def use(store: SqliteStore, broker: EmbeddedBroker) -> str:
    counts = (await store.stats()).counts["default"]
    results = await broker.publish([message()], timeout=10 * SECOND)
    return f"{counts[State.READY]} ready, {list(results)}"


async def begin(store: SqliteStore, broker: EmbeddedBroker) -> None:
    await store.open()
    await store.migrate()
    with sqlite3_transactions(store.path)() as connection:
        SyncOutbox(store).put(connection, message())
    await use(store, broker)


async def inherit(store: SqliteStore, broker: EmbeddedBroker) -> None:
    try:
        await store.stats()
    except StoreError as error:
        say(f"store: {error.reason}")
    (refused,) = await broker.publish([message()], timeout=10 * SECOND)
    say(f"broker: {refused and refused.reason}")
    await store.open()
    await broker.open()
    say(f"after opening: {await use(store, broker)}")
    await broker.close()
    await store.close()


def main(folder: Path) -> None:
    store, broker = SqliteStore(folder / "store.db"), EmbeddedBroker(folder / "broker.db")
    with asyncio.Runner() as runner:
        runner.run(begin(store, broker))
        if (child := os.fork()) == 0:
            code = 1
            try:
                asyncio.run(inherit(store, broker))
                code = 0
            finally:
                os._exit(code)
        _, status = os.waitpid(child, 0)
        say(f"parent: {runner.run(use(store, broker))}")
        runner.run(broker.close())
        runner.run(store.close())
    sys.exit(os.waitstatus_to_exitcode(status))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
