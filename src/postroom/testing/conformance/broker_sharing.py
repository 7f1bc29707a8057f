"""What groups promise: every group receives everything, its consumers share it."""

import asyncio
from datetime import timedelta

import pytest

from postroom.broker import Delivery
from postroom.testing.conformance.broker_stage import Box, BrokerHooks, Stage, drain, receive


class GroupTests(BrokerHooks):
    """Groups and topics."""

    async def test_every_group_receives_every_message(self, stage: Stage) -> None:
        await stage.found("billing", "shipping", "audit")
        names = [str(number) for number in range(10)]

        await stage.publish(*(stage.message(name, key="k") for name in names))

        for group in ("billing", "shipping", "audit"):
            async with stage.subscribe(group) as box:
                assert await drain(box, 10) == names

    async def test_what_one_group_does_is_nothing_to_the_other(self, stage: Stage) -> None:
        await stage.found("billing", "shipping")
        await stage.publish(stage.message("a", key="k"), stage.message("b", key="k"))

        async with stage.subscribe("billing") as box:
            await (await receive(box)).reject("not ours")
            await drain(box, 1)

        async with stage.subscribe("shipping") as box:
            delivery = await receive(box)
            assert delivery.message.id == "a"
            assert not delivery.redelivered

    async def test_only_subscribed_topics_are_received(self, stage: Stage) -> None:
        other, wanted = f"{stage.topic}-other", f"{stage.topic}-wanted"
        async with stage.subscribe(topics=[stage.topic, wanted]) as box:
            await stage.found("audit", topics=[other])
            await stage.publish(
                stage.message("not ours", topic=other),
                stage.message("a"),
                stage.message("b", topic=wanted),
            )

            assert sorted(await drain(box, 2)) == ["a", "b"]

    async def test_each_message_goes_to_one_consumer_of_the_group(self, stage: Stage) -> None:
        clients = [stage.broker, await stage.another(), await stage.another()]
        names = [str(number) for number in range(60)]
        await stage.found()
        await stage.publish(*(stage.message(name) for name in names))
        received: list[str] = []
        complete = asyncio.Event()

        async def consume(box: Box) -> None:
            async for delivery in box:
                received.append(delivery.message.id)
                await delivery.ack()
                if len(received) >= len(names):
                    complete.set()

        async with (
            stage.subscribe(prefetch=2, by=clients[0]) as one,
            stage.subscribe(prefetch=2, by=clients[1]) as two,
            stage.subscribe(prefetch=2, by=clients[2]) as three,
            asyncio.timeout(15),
        ):
            tasks = [asyncio.create_task(consume(box)) for box in (one, two, three)]
            await complete.wait()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

        assert sorted(received) == sorted(names)

    async def test_a_key_is_with_one_consumer_while_others_flow(self, stage: Stage) -> None:
        if not stage.features.ordered_by_key:
            pytest.skip("features.ordered_by_key is False")
        if not stage.features.spreads_keys:
            pytest.skip("features.spreads_keys is False")
        second = await stage.another()
        async with (
            stage.subscribe(prefetch=1) as one,
            stage.subscribe(prefetch=1, by=second) as two,
        ):
            await stage.publish(stage.message("k1", key="k"), stage.message("k2", key="k"))
            first, box = await _first(one, two)
            await stage.publish(stage.message("l1", key="l"))
            other = await receive(box)
            assert [first.message.id, other.message.id] == ["k1", "l1"]
            await first.ack()
            await other.ack()

            assert (await _first(one, two))[0].message.id == "k2"


class PrefetchTests(BrokerHooks):
    """How much is out at once."""

    async def test_no_more_than_prefetch_are_out(self, stage: Stage) -> None:
        await stage.found("billing", "audit")
        names = ["a", "b", "c"]
        async with stage.subscribe(prefetch=2) as box:
            await stage.publish(*(stage.message(name) for name in names))
            out = [await receive(box), await receive(box)]
            waiting = asyncio.create_task(receive(box))

            async with stage.subscribe("audit") as audit:
                assert sorted(await drain(audit, 3)) == names
            assert not waiting.done()

            await out[0].ack()
            assert (await waiting).message.id == "c"

    @pytest.mark.parametrize("end", ["ack", "retry", "release", "reject"])
    async def test_every_answer_makes_room(self, stage: Stage, end: str) -> None:
        async with stage.subscribe(prefetch=1) as box:
            await stage.publish(*(stage.message(str(number)) for number in range(3)))
            for _ in range(3):
                delivery = await receive(box)
                match end:
                    case "ack":
                        await delivery.ack()
                    case "retry":
                        await delivery.retry(timedelta(hours=1), "not today")
                    case "release":
                        await delivery.release()
                        await (await receive(box)).ack()
                    case _:
                        await delivery.reject("no")

    async def test_a_prefetch_of_nothing_is_refused(self, stage: Stage) -> None:
        with pytest.raises(ValueError, match="prefetch"):
            async with stage.subscribe(prefetch=0):
                pass


async def _first(one: Box, two: Box) -> tuple[Delivery, Box]:
    """Return the next delivery of either box, and the other box."""
    waits = {asyncio.ensure_future(anext(box)): box for box in (one, two)}
    done, pending = await asyncio.wait(waits, timeout=15, return_when=asyncio.FIRST_COMPLETED)
    for wait in pending:
        wait.cancel()
    await asyncio.gather(*pending, return_exceptions=True)
    [first] = done
    return first.result(), two if waits[first] is one else one
