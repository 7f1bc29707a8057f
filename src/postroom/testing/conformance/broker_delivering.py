"""What a delivery promises: the four ways to end it, and what leaving and dying do to it."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta

import pytest

from postroom.broker import Delivery
from postroom.errors import BrokerUnavailable, DeliveryLost
from postroom.testing.conformance.broker_stage import SOON, BrokerHooks, Stage, drain, receive


class AnswerTests(BrokerHooks):
    """ack, retry, release, reject."""

    async def test_the_first_delivery_says_that_it_is_the_first(self, stage: Stage) -> None:
        async with stage.subscribe() as box:
            await stage.publish(stage.message("a"))

            delivery = await receive(box)

            assert delivery.attempt == (1 if stage.features.counts_attempts else None)
            assert not delivery.redelivered

    async def test_an_acknowledged_message_does_not_come_again(self, stage: Stage) -> None:
        async with stage.subscribe() as box:
            await stage.publish(stage.message("a"))
            await (await receive(box)).ack()

        await stage.publish(stage.message("b"))

        async with stage.subscribe() as box:
            assert (await receive(box)).message.id == "b"

    async def test_a_retry_comes_again_and_counts(self, stage: Stage) -> None:
        async with stage.subscribe() as box:
            await stage.publish(stage.message("a"))
            await (await receive(box)).retry(SOON, "not yet")
            second = await receive(box)
            assert second.message == stage.message("a")
            assert second.redelivered
            await second.retry(SOON, "still not")

            third = await receive(box)

            assert third.attempt == (3 if stage.features.counts_attempts else None)

    async def test_a_retry_waits_for_its_delay(self, stage: Stage) -> None:
        if not stage.features.delays_retry:
            pytest.skip("features.delays_retry is False")
        loop = asyncio.get_running_loop()
        async with stage.subscribe() as box:
            await stage.publish(stage.message("a"))
            delivery = await receive(box)
            begun = loop.time()

            await delivery.retry(timedelta(seconds=0.3), "not yet")
            await receive(box)

            assert loop.time() - begun >= 0.3

    async def test_others_flow_past_a_retry_and_its_key_waits(self, stage: Stage) -> None:
        _needs_order(stage)
        if not (stage.features.delays_retry and stage.features.retry_holds_key):
            pytest.skip("features.delays_retry or retry_holds_key is False")
        async with stage.subscribe() as box:
            await stage.publish(stage.message("k1", key="k"), stage.message("k2", key="k"))
            await (await receive(box)).retry(timedelta(seconds=1), "not yet")
            await stage.publish(stage.message("l1", key="l"), stage.message("free"))

            assert await drain(box, 4) == ["l1", "free", "k1", "k2"]

    async def test_a_release_comes_again_at_once_and_does_not_count(self, stage: Stage) -> None:
        async with stage.subscribe() as box:
            await stage.publish(stage.message("a"))
            await (await receive(box)).release()

            second = await receive(box)

            assert second.attempt == (1 if stage.features.counts_attempts else None)
            assert second.redelivered

    async def test_a_released_message_keeps_its_place(self, stage: Stage) -> None:
        _needs_order(stage)
        async with stage.subscribe() as box:
            await stage.publish(stage.message("k1", key="k"), stage.message("k2", key="k"))
            await (await receive(box)).release()

            assert await drain(box, 2) == ["k1", "k2"]

    async def test_a_rejected_message_is_kept_with_its_reason(self, stage: Stage) -> None:
        if not stage.features.dead_letters:
            pytest.skip("features.dead_letters is False")
        async with stage.subscribe() as box:
            await stage.publish(stage.message("a", key="k"))

            await (await receive(box)).reject("no such order: \ud83d 世界 \x00")

            [(dead, reason)] = await stage.hooks.dead_letters(stage.broker, "billing")
            assert dead == stage.message("a", key="k")
            assert reason.startswith("no such order: ")

    async def test_a_rejected_message_does_not_come_again(self, stage: Stage) -> None:
        async with stage.subscribe() as box:
            await stage.publish(stage.message("a", key="k"), stage.message("b", key="k"))
            await (await receive(box)).reject("poison")

            assert await drain(box, 1) == ["b"]

    async def test_a_retry_survives_the_end_of_the_broker(self, stage: Stage) -> None:
        if not stage.features.durable:
            pytest.skip("features.durable is False")
        async with stage.subscribe() as box:
            await stage.publish(stage.message("a"))
            await (await receive(box)).retry(SOON, "not yet")

        await stage.restart()

        async with stage.subscribe() as box:
            again = await receive(box)
        assert again.attempt == (2 if stage.features.counts_attempts else None)


_ANSWERS: dict[str, Callable[[Delivery], Awaitable[None]]] = {
    "ack": lambda delivery: delivery.ack(),
    "retry": lambda delivery: delivery.retry(SOON, "late"),
    "release": lambda delivery: delivery.release(),
    "reject": lambda delivery: delivery.reject("late"),
}


class LosingTests(BrokerHooks):
    """Consumers that leave, close, freeze or die."""

    async def test_leaving_gives_back_what_is_out_uncounted(self, stage: Stage) -> None:
        async with stage.subscribe() as box:
            await stage.publish(stage.message("a"), stage.message("b"))
            await receive(box)

        async with stage.subscribe() as box:
            first = await receive(box)
            assert first.message.id == "a"
            assert first.redelivered
            assert first.attempt == (1 if stage.features.counts_attempts else None)
            assert (await receive(box)).message.id == "b"

    @pytest.mark.parametrize("answer", _ANSWERS)
    async def test_a_late_answer_after_leaving_is_refused(self, stage: Stage, answer: str) -> None:
        async with stage.subscribe() as box:
            await stage.publish(stage.message("a"), stage.message("b"))
            late = await receive(box)

        async with stage.subscribe() as box:
            holder = await receive(box)
            with pytest.raises(DeliveryLost):
                await _ANSWERS[answer](late)
            await holder.ack()
            assert await drain(box, 1) == ["b"]

    @pytest.mark.parametrize("answer", _ANSWERS)
    async def test_what_a_frozen_consumer_had_comes_to_another(
        self, stage: Stage, answer: str
    ) -> None:
        frozen_client = await stage.another()
        async with stage.subscribe(by=frozen_client, prefetch=1) as frozen_box:
            await stage.publish(stage.message("a", key="k"), stage.message("b", key="k"))
            late = await receive(frozen_box)
            await stage.hooks.sever(frozen_client)

            async with stage.subscribe() as box:
                again, behind = await receive(box), ["b"]
                if again.message.id == "b" and not stage.features.ordered_by_key:
                    # Nobody had it, and a broker may take its time to see who is frozen.
                    await again.ack()
                    again, behind = await receive(box), []
                assert again.message.id == "a"
                assert again.redelivered
                assert again.attempt == (1 if stage.features.counts_attempts else None)
                with pytest.raises(DeliveryLost):
                    await _ANSWERS[answer](late)
                await again.ack()
                assert await drain(box, len(behind)) == behind

    async def test_a_close_ends_waiting_with_an_error(self, stage: Stage) -> None:
        client = await stage.another()
        async with stage.subscribe(by=client) as box:
            waiting = asyncio.create_task(receive(box))
            await asyncio.sleep(0)

            await client.close()

            with pytest.raises(BrokerUnavailable):
                await waiting

    async def test_a_close_gives_back_what_is_out(self, stage: Stage) -> None:
        client = await stage.another()
        async with stage.subscribe(by=client) as box:
            await stage.publish(stage.message("a"))
            await receive(box)
            await client.close()
        await stage.broker.open()

        async with stage.subscribe() as box:
            assert (await receive(box)).message.id == "a"

    async def test_a_cancelled_wait_loses_nothing(self, stage: Stage) -> None:
        """Whatever was on its way to the wait that ended is received by the next one."""
        names = [str(number) for number in range(20)]
        received: list[str] = []
        async with stage.subscribe(prefetch=3) as box:
            for pause, name in enumerate(names):
                waiting = asyncio.ensure_future(anext(box))
                await stage.publish(stage.message(name, key="k"))
                for _ in range(pause):
                    await asyncio.sleep(0)
                waiting.cancel()
                [result] = await asyncio.gather(waiting, return_exceptions=True)
                if not isinstance(result, BaseException):
                    received.append(result.message.id)
                    await result.ack()

            received += await drain(box, len(names) - len(received))

        assert received == names


def _needs_order(stage: Stage) -> None:
    if not stage.features.ordered_by_key:
        pytest.skip("features.ordered_by_key is False")
