"""A directory with a shop in it, and the command line to look after it."""

import asyncio
import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from postroom.brokers.sqlite import EmbeddedBroker
from postroom.cli.main import app
from postroom.message import Message, State
from postroom.outbox import SyncOutbox
from postroom.route import Routes
from postroom.settings import Settings
from postroom.stores.sqlite import SqliteStore

CONFIG = """
store = "sqlite:///shop.db?busy_timeout=200ms"
broker = "sqlite:///broker.db?busy_timeout=200ms&max_message_bytes=1000"

[relay]
poll = "50ms"

[relay.probe]
initial = "20ms"
maximum = "100ms"

[[routes]]
name = "parcels"
types = ["shop.parcel-*"]
on_dead = "park"
"""


@dataclass(frozen=True, slots=True)
class Ended:
    """What a command said, and its exit code."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The one document on standard output."""
        return json.loads(self.out)


class Shop:
    """A directory with settings, an outbox and a broker."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.environ = {k: v for k, v in os.environ.items() if not k.startswith("POSTROOM_")}

    def cli(self, *args: str, **environ: str) -> Ended:
        """Run a command in this process."""
        result = CliRunner().invoke(app, args, env=environ)
        return Ended(result.exit_code, result.stdout, result.stderr)

    def process(
        self, *args: str, stdin: int | None = None, **environ: str
    ) -> "subprocess.Popen[str]":
        """Start a command as a process of its own."""
        return subprocess.Popen(
            [sys.executable, "-m", "postroom.cli.main", *args],
            cwd=self.path,
            stdin=stdin,
            env={**self.environ, **environ},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def put(self, *messages: Message) -> list[str]:
        """Commit messages to the outbox; return their ids."""
        outbox = SyncOutbox(SqliteStore(self.path / "shop.db"), routes=self._routes())
        connection = sqlite3.connect(self.path / "shop.db", isolation_level=None)
        connection.execute("BEGIN IMMEDIATE")
        outbox.put(connection, *messages)
        connection.execute("COMMIT")
        connection.close()
        return [message.id for message in messages]

    def order(self, number: int = 1, *, key: str | None = None, size: int = 10) -> Message:
        """Return an order; more than 1000 bytes are too many for the broker."""
        payload = json.dumps({"number": number, "note": "x" * size}).encode()
        return Message(type="shop.order-placed", key=key, payload=payload)

    def dead(self, number: int, *, key: str | None = None) -> list[str]:
        """Put orders that the broker never takes, and let the relay give them up."""
        ids = self.put(*(self.order(each, key=key, size=2000) for each in range(number)))
        assert self.cli("relay", "--until-empty").code == 0
        return ids

    def parcels(self, key: str, number: int = 3) -> list[str]:
        """Park a key: its first message is dead and blocks, the others are held behind it."""
        ids = self.put(
            *(
                Message(
                    type="shop.parcel-packed",
                    key=key,
                    payload=json.dumps({"n": n, "fill": "x" * (2000 if n == 0 else 1)}).encode(),
                )
                for n in range(number)
            )
        )
        assert self.cli("relay", "--until-empty").code == 0
        return ids

    def states(self) -> dict[str, int]:
        """Return rows of the outbox by state, over all routes."""
        routes = self.cli("status", "--json").json["outbox"]["routes"].values()
        totals = {str(state): sum(route[state] for route in routes) for state in State}
        return {name: count for name, count in totals.items() if count}

    def reject(self, group: str, *messages: Message, reason: str = "broken") -> list[str]:
        """Publish messages and let a consumer group give them up."""
        self.broker(lambda broker: _rejected(broker, group, messages, reason))
        return [message.id for message in messages]

    def subscribe(self, group: str, topic: str) -> None:
        """Let a consumer group come, and go without having done anything."""

        async def come(broker: EmbeddedBroker) -> None:
            async with broker.subscribe([topic], group=group, prefetch=1):
                pass

        self.broker(come)

    def broker(self, work: Callable[[EmbeddedBroker], Coroutine[Any, Any, object]]) -> None:
        """Do something with the broker."""

        async def opened() -> None:
            broker = EmbeddedBroker(self.path / "broker.db")
            await broker.open()
            try:
                await work(broker)
            finally:
                await broker.close()

        asyncio.run(opened())

    def lease(self, relay: str, routes: Mapping[str, bool]) -> None:
        """Let a relay of that name be alive, that serves these routes."""

        async def renew() -> None:
            store = SqliteStore(self.path / "shop.db")
            await store.open()
            try:
                await store.lease(
                    relay, routes=routes, lease=timedelta(hours=1), renewal=timedelta(minutes=1)
                )
            finally:
                await store.close()

        asyncio.run(renew())

    def _routes(self) -> Routes:
        return Routes(Settings.load(self.path / "postroom.toml", {}).routes)


async def _rejected(
    broker: EmbeddedBroker, group: str, messages: Sequence[Message], reason: str
) -> None:
    topics = sorted({message.type for message in messages})
    async with broker.subscribe(topics, group=group, prefetch=1) as box:
        sent = [
            Message(**{name: getattr(each, name) for name in each.__slots__} | {"topic": each.type})
            for each in messages
        ]
        assert not any(await broker.publish(sent, timeout=timedelta(seconds=5)))
        for _ in messages:
            await (await anext(box)).reject(reason)
