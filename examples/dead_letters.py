"""A broker refuses a message: what waits behind it, and what a person does about it."""

import asyncio
from collections import Counter
from dataclasses import dataclass
from datetime import timedelta

from postroom import Desk, Query, Relay, RetryPolicy, Route, Routes, State, SyncOutbox, message
from postroom.stores.memory import MemoryStore
from postroom.testing.clock import ManualClock
from postroom.testing.scripted import ScriptedBroker


@message("account.changed", key="account")
@dataclass
class Changed:
    """An account changed, for the step-th time."""

    account: str
    step: int


clock = ManualClock()
store = MemoryStore(clock=clock)
broker = ScriptedBroker(clock=clock)
routes = Routes([Route(retry=RetryPolicy(max_attempts=2), on_dead="park")])
relay = Relay(store, broker, routes=routes, clock=clock)
desk = Desk(store, actor="ann")


async def work(seconds: int) -> None:
    """Let time pass, and the relay do what there is to do."""
    for _ in range(seconds):
        clock.advance(timedelta(seconds=1))
        while not (await relay.step()).idle:
            pass


async def show(moment: str) -> None:
    """Print what rests in the outbox."""
    entries = await desk.find(Query())
    states = Counter(entry.state.value for entry in entries)
    print(f"{moment}: {', '.join(f'{n} {state}' for state, n in sorted(states.items()))}")


async def main() -> None:
    """Have the first message of one account refused."""
    broker.refuse(lambda sent: b'"red","step":1' in sent.payload, times=2)
    with store.begin() as transaction:
        outbox = SyncOutbox(store, routes=routes)
        outbox.put(transaction, *(Changed(account="red", step=n) for n in (1, 2, 3)))
        outbox.put(transaction, *(Changed(account="blue", step=n) for n in (1, 2, 3)))

    await work(seconds=1)
    await show("refused once")
    await work(seconds=10)
    await show("refused twice")

    dead = Query(states=[State.DEAD])
    for entry in await desk.find(dead):
        print(f"dead after {entry.attempts} attempts: {entry.error}")
    print(f"a replay would send {await desk.replay(dead, dry_run=True)}")
    await desk.replay(dead)
    await work(seconds=5)
    await show("replayed")

    order = [sent.payload.decode()[-2] for sent in broker.arrived if sent.key == "red"]
    print(f"the red account arrived in the order {', '.join(order)}")


if __name__ == "__main__":
    asyncio.run(main())
