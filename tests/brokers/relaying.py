"""A relay from a store in memory to a real broker, stepped until all is settled."""

import asyncio
from collections.abc import Callable, Sequence
from datetime import timedelta

from postroom import events
from postroom.message import State
from postroom.relay import Relay, RelayBroker, RelayOptions
from postroom.retry import Backoff, RetryPolicy
from postroom.route import Route, Routes
from postroom.store import Query
from postroom.stores.memory import MemoryStore

SOON = Backoff(initial=timedelta(milliseconds=20), maximum=timedelta(milliseconds=50))
PROBES = 5
"""Times that a relay looks whether its broker is there, before a test looks at the rows."""
_UNSETTLED = {State.READY, State.WAITING, State.HELD}
_PATIENCE = 30.0


async def settled(
    store: MemoryStore,
    broker: RelayBroker,
    *,
    sent: int,
    attempts: int = 100,
    observers: Sequence[Callable[[events.Event], None]] = (),
) -> dict[str, State]:
    """Relay until so many are sent and the others given up; return the states by payload."""
    relay = Relay(
        store,
        broker,
        routes=Routes([Route(retry=RetryPolicy(max_attempts=attempts, backoff=SOON))]),
        options=RelayOptions(probe=SOON),
        name="one",
        observers=observers,
    )
    async with asyncio.timeout(_PATIENCE):
        while True:
            await relay.step()
            rows = await store.find(Query(), limit=1000)
            if sum(row.state is State.SENT for row in rows) == sent and not any(
                row.state in _UNSETTLED for row in rows
            ):
                return {row.message.payload[:10].decode(): row.state for row in rows}
            await asyncio.sleep(0.01)


async def paused(seen: Sequence[events.Event]) -> None:
    """Wait until a relay has found several times that its broker is away."""
    async with asyncio.timeout(_PATIENCE):
        while sum(isinstance(event, events.Paused) for event in seen) < PROBES:
            await asyncio.sleep(0.01)
