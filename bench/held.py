"""The rate of the other keys while one failing head holds many messages back."""

import asyncio
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import timedelta
from itertools import chain, repeat
from pathlib import Path

from bench import stage
from bench.report import Result, compared
from bench.scale import Scale
from postroom.broker import BrokerFeatures
from postroom.brokers.sqlite import EmbeddedBroker
from postroom.errors import BrokerError, NotAttempted, RefusedForNow
from postroom.message import Message, State
from postroom.relay import Relay, RelayBroker
from postroom.retry import Backoff, RetryPolicy
from postroom.route import Route, Routes
from postroom.store import Query
from postroom.stores.sqlite import SqliteStore

STUCK = "stuck"
ROUTE = Route(
    retry=RetryPolicy(
        max_attempts=1_000_000,
        backoff=Backoff(initial=timedelta(seconds=1), maximum=timedelta(seconds=1)),
    )
)


class Refusing:
    """The broker, except that it refuses one key for now."""

    def __init__(self, broker: RelayBroker) -> None:
        """Pass on whatever has another key."""
        self._broker = broker

    @property
    def features(self) -> BrokerFeatures:
        """The same."""
        return self._broker.features

    async def ping(self) -> None:
        """The same."""
        await self._broker.ping()

    async def publish(
        self, messages: Sequence[Message], *, timeout: timedelta
    ) -> Sequence[BrokerError | None]:
        """Refuse the first of the stuck key and leave its others, publish the rest."""
        rest = [one for one in messages if one.key != STUCK]
        answers = iter(await self._broker.publish(rest, timeout=timeout))
        stuck = chain([RefusedForNow("stuck")], repeat(NotAttempted("behind a refused one")))
        return [next(stuck) if one.key == STUCK else next(answers) for one in messages]


def measure(directory: Path, scale: Scale) -> Iterator[Result]:
    """Send the same messages of other keys, in turn beside the stuck key and without it."""
    held, free = directory / "held.db", directory / "free.db"
    asyncio.run(_prepare(held, scale.held))
    asyncio.run(stage.new_outbox(free, iter(())))
    for path in (held, free):
        stage.add(path, stage.orders(scale.rows, first=scale.held + 1))
    pairs = []
    for _ in range(scale.rounds):
        with tempfile.TemporaryDirectory(dir=directory) as place:
            pairs.append((_rate(held, place, scale), _rate(free, place, scale)))
    name = f"other keys beside {scale.held:,} held{scale.suffix}"
    yield compared(name, pairs, unit="messages/s", goal=0.9, bound="at least")


def _rate(template: Path, place: str, scale: Scale) -> float:
    outbox = stage.copy(template, Path(place, template.stem))
    work = stage.relayed(outbox, scale.rows, through=Refusing, route=ROUTE)
    return asyncio.run(work)


async def _prepare(path: Path, held: int) -> None:
    """Let a relay itself hold messages behind a head that was refused."""
    (head,) = stage.orders(1)
    stuck = (replace(one, key=STUCK) for one in stage.orders(held, first=1))
    await stage.new_outbox(path, iter([replace(head, key=STUCK)]))
    store, broker = SqliteStore(path), EmbeddedBroker(path.with_name("preparing.db"))
    await store.open()
    await broker.open()
    relay = Relay(store, Refusing(broker), routes=Routes([ROUTE]))
    assert (await relay.step()).refused == 1
    stage.add(path, stuck)
    while (await relay.step()).read:
        pass
    await relay.leave()
    assert len(await store.find(Query(states=[State.HELD]), limit=held + 1)) == held
    await store.close()
    await broker.close()
