"""The embedded broker between real processes on one file: kills, freezes, locks."""

import asyncio
import json
import os
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from postroom.brokers.sqlite import EmbeddedBroker
from postroom.errors import BrokerUnavailable, DeliveryLost
from postroom.message import Message
from postroom.testing.conformance.broker_stage import receive

PARTY = Path(__file__).with_name("party.py")
PATIENCE = timedelta(seconds=10)
LEASE = 1.0


class Party:
    """A process that has the broker's file open."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        """Keep the process."""
        self.process = process

    async def hear(self) -> dict[str, Any]:
        """Return the next thing that it says."""
        assert self.process.stdout is not None
        async with asyncio.timeout(15):
            heard: dict[str, Any] = json.loads(await self.process.stdout.readline())
        return heard


@asynccontextmanager
async def party(path: Path, mode: str, group: str = "billing") -> AsyncIterator[Party]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, str(PARTY), str(path), mode, group, str(LEASE)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    one = Party(process)
    try:
        assert await one.hear() == {"ready": True}
        yield one
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.communicate()


@asynccontextmanager
async def opened(path: Path, **settings: Any) -> AsyncIterator[EmbeddedBroker]:
    broker = EmbeddedBroker(path, **settings)
    await broker.open()
    try:
        yield broker
    finally:
        await broker.close()


def messages(count: int, *, key: str | None = None) -> list[Message]:
    return [
        Message(type="shop.order-placed", payload=b"{}", id=str(n), key=key, topic="orders")
        for n in range(count)
    ]


async def test_a_consumer_that_is_killed_loses_its_deliveries_to_another(path: Path) -> None:
    async with opened(path, lease=timedelta(seconds=LEASE)) as broker:
        async with party(path, "hold") as victim:
            await broker.publish(messages(3, key="k"), timeout=PATIENCE)
            assert (await victim.hear())["id"] == "0"

        async with broker.subscribe(["orders"], group="billing", prefetch=1) as box:
            for name in ("0", "1", "2"):
                delivery = await receive(box)
                assert (delivery.message.id, delivery.attempt) == (name, 1)
                assert delivery.redelivered == (name == "0")
                await delivery.ack()


async def test_a_frozen_consumer_cannot_answer_for_another(path: Path) -> None:
    """The frozen process answers when it wakes up: too late, and it receives no more of the key."""
    async with (
        opened(path, lease=timedelta(seconds=LEASE)) as broker,
        party(path, "ack-on-demand") as frozen,
    ):
        await broker.publish(messages(2, key="k"), timeout=PATIENCE)
        assert (await frozen.hear())["id"] == "0"
        frozen.process.send_signal(signal.SIGSTOP)

        async with broker.subscribe(["orders"], group="billing", prefetch=1) as box:
            delivery = await receive(box)
            assert delivery.message.id == "0"
            frozen.process.send_signal(signal.SIGCONT)
            assert frozen.process.stdin is not None
            frozen.process.stdin.write(b"ack\n")

            assert await frozen.hear() == {"lost": "0"}
            await delivery.ack()


async def test_processes_share_a_group_and_each_message_is_handed_out_once(path: Path) -> None:
    async with (
        opened(path) as broker,
        party(path, "ack") as one,
        party(path, "ack") as two,
        party(path, "ack", "audit") as auditor,
    ):
        heard: dict[str, list[str]] = {"billing": [], "audit": []}

        async def listen(who: Party, group: str) -> None:
            while len(heard[group]) < 200:
                heard[group].append((await who.hear())["id"])

        listeners = [
            asyncio.create_task(listen(who, group))
            for who, group in ((one, "billing"), (two, "billing"), (auditor, "audit"))
        ]
        for start in range(0, 200, 20):
            batch = messages(200)[start : start + 20]
            assert not any(await broker.publish(batch, timeout=PATIENCE))
        while any(len(names) < 200 for names in heard.values()):
            await asyncio.wait(listeners, timeout=15, return_when=asyncio.FIRST_COMPLETED)
        for listener in listeners:
            listener.cancel()
        await asyncio.gather(*listeners, return_exceptions=True)

    everything = sorted(str(number) for number in range(200))
    assert sorted(heard["billing"]) == everything
    assert sorted(heard["audit"]) == everything


async def test_a_file_that_is_locked_is_an_outage_within_the_time_out(path: Path) -> None:
    async with opened(path, busy_timeout=timedelta(seconds=0.3)) as broker:
        await broker.ping()
        async with broker.subscribe(["orders"], group="billing", prefetch=2) as box:
            await broker.publish(messages(1), timeout=PATIENCE)
            delivery = await receive(box)
            loop = asyncio.get_running_loop()
            async with party(path, "lock") as locker:
                begun = loop.time()
                [result] = await broker.publish(messages(1), timeout=PATIENCE)
                with pytest.raises(BrokerUnavailable):
                    await broker.ping()
                with pytest.raises(BrokerUnavailable):
                    await delivery.ack()
                assert isinstance(result, BrokerUnavailable)
                assert "locked" in result.reason
                assert loop.time() - begun < 5
                await locker.process.communicate(b"")

            await broker.ping()
            await delivery.ack()


async def test_a_short_time_out_is_kept_while_the_file_is_locked(path: Path) -> None:
    async with opened(path) as broker:
        await broker.ping()
        async with party(path, "lock"):
            loop = asyncio.get_running_loop()
            begun = loop.time()
            [result] = await broker.publish(messages(1), timeout=timedelta(seconds=0.2))
            assert loop.time() - begun < 1

        assert isinstance(result, BrokerUnavailable)
        async with broker.subscribe(["orders"], group="billing", prefetch=2) as box:
            await broker.publish(messages(2)[1:], timeout=PATIENCE)
            assert (await receive(box)).message.id == "1"


async def test_nobody_is_robbed_because_the_file_was_locked(path: Path) -> None:
    """All renewals are late then; everyone gets the time to renew before anyone is judged."""
    lease = timedelta(seconds=0.4)
    async with opened(path, lease=lease) as holder, opened(path, lease=lease) as other:
        await holder.publish(messages(1), timeout=PATIENCE)
        async with (
            holder.subscribe(["orders"], group="billing", prefetch=1) as box,
            other.subscribe(["orders"], group="billing", prefetch=1) as other_box,
        ):
            delivery = await receive(box)
            async with party(path, "lock"):
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(anext(other_box), 1.5)

            with pytest.raises(TimeoutError):
                await asyncio.wait_for(anext(other_box), 1.5)
            await delivery.ack()


async def test_a_read_only_file_is_an_outage_that_ends_with_it() -> None:
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "broker.db"
        async with opened(path) as broker:
            await broker.ping()

        with read_only(path):
            async with opened(path) as broker:
                [result] = await broker.publish(messages(1), timeout=PATIENCE)
                assert isinstance(result, BrokerUnavailable)
                assert "read-only" in result.reason

                for file in (
                    path,
                    path.with_name("broker.db-wal"),
                    path.with_name("broker.db-shm"),
                ):
                    file.chmod(0o666)

                await broker.ping()
                assert list(await broker.publish(messages(1), timeout=PATIENCE)) == [None]


@contextmanager
def read_only(path: Path) -> Iterator[None]:
    """Take the right to write away, also from root, which has it whatever the mode says."""
    path.parent.chmod(0o777)
    path.chmod(0o444)
    root = os.geteuid() == 0
    if root:
        os.chown(path, 65534, 65534)
        os.seteuid(65534)
    try:
        yield
    finally:
        if root:
            os.seteuid(0)


async def test_a_late_answer_to_a_reused_delivery_is_refused(path: Path) -> None:
    """A process may receive the same message again; its first delivery stays lost."""
    lease = timedelta(seconds=0.4)
    async with opened(path, lease=lease) as broker, opened(path, lease=lease) as other:
        await broker.publish(messages(1), timeout=PATIENCE)
        async with broker.subscribe(["orders"], group="billing", prefetch=2) as box:
            first = await receive(box)
            subscriptions, broker._subscriptions = broker._subscriptions, ()
            async with other.subscribe(["orders"], group="billing", prefetch=1) as other_box:
                await receive(other_box)
            broker._subscriptions = subscriptions

            with pytest.raises(BrokerUnavailable, match="subscribe again"):
                await receive(box)
            async with broker.subscribe(["orders"], group="billing", prefetch=2) as new_box:
                again = await receive(new_box)
                with pytest.raises(DeliveryLost):
                    await first.ack()
                await again.ack()


async def test_a_second_answer_to_a_delivery_that_came_again_is_refused(path: Path) -> None:
    async with opened(path) as broker:
        await broker.publish(messages(1), timeout=PATIENCE)
        async with broker.subscribe(["orders"], group="billing", prefetch=2) as box:
            first = await receive(box)
            await first.release()
            again = await receive(box)

            with pytest.raises(DeliveryLost):
                await first.ack()
            await again.ack()
