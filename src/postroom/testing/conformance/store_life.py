"""Opening, closing, the schema, several processes, and waiting for commits."""

import asyncio
from collections.abc import Coroutine
from datetime import timedelta
from pathlib import Path

import pytest

from postroom.errors import SchemaMismatch
from postroom.lane import LANES
from postroom.store import Query, Store
from postroom.testing.clock import ManualClock
from postroom.testing.conformance.stage import ALL, Stage, StoreHooks, message, sent

MOMENT = timedelta(milliseconds=50)
LONG = timedelta(hours=1)


class LifeTests(StoreHooks):
    """From `open` to `close`."""

    async def test_opening_and_closing_twice_is_the_same_as_once(self, stage: Stage) -> None:
        await stage.put(message("a"))
        await stage.store.open()
        await stage.store.close()
        await stage.store.close()

        await stage.store.open()

        if stage.store.features.durable:
            assert await stage.ids() == ["a"]

    async def test_migrating_again_changes_nothing(self, stage: Stage) -> None:
        await stage.put(message("a"))

        assert list(await stage.store.migrate()) == []

        assert await stage.ids() == ["a"]

    async def test_missing_tables_are_told_with_the_cure(
        self, clock: ManualClock, tmp_path: Path
    ) -> None:
        store = self.make_store(clock, tmp_path)
        await store.open()
        if not store.schema():
            pytest.skip("a store without a schema")

        try:
            with pytest.raises(SchemaMismatch, match="postroom init"):
                await store.stats()
            assert await store.migrate() != []
            assert sum((await store.stats()).inbox.values()) == 0
        finally:
            await store.close()

    async def test_statements_are_written_without_a_connection(
        self, clock: ManualClock, tmp_path: Path
    ) -> None:
        store = self.make_store(clock, tmp_path)

        assert store.mark("shipping", "1").name == "mark"
        assert store.insert([]).name == "insert"
        assert list(store.insert([]).rows) == []

    async def test_parallel_calls_do_not_mix(self, stage: Stage) -> None:
        lanes = await stage.lease()
        await stage.put(*(message(str(n), key=f"key-{n}") for n in range(100)))
        entries = await stage.read(lanes)

        results = await asyncio.gather(
            *(stage.settle(lanes, *(sent(entry) for entry in entries)) for _ in range(5)),
            stage.store.stats(),
            stage.store.find(Query(), limit=ALL),
        )

        settled = [result for result in results if isinstance(result, frozenset)]
        assert sorted(len(one) for one in settled) == [0, 0, 0, 0, 100]

    async def test_a_cancelled_call_is_done_whole_or_not_at_all(self, stage: Stage) -> None:
        lanes = await stage.lease()
        await stage.put(*(message(str(n), key=f"key-{n}") for n in range(200)))
        entries = await stage.read(lanes)
        settling = asyncio.create_task(stage.settle(lanes, *(sent(entry) for entry in entries)))
        await asyncio.sleep(0)

        settling.cancel()
        await asyncio.gather(settling, return_exceptions=True)

        counts = (await stage.store.stats()).counts["default"]
        assert sorted(count for count in counts.values() if count) == [200]
        await stage.send_all(lanes)

    async def test_another_process_sees_the_same(self, stage: Stage, tmp_path: Path) -> None:
        other = await another(stage, tmp_path)
        lanes = await stage.lease("a")
        await stage.put(message("1", key="k"))
        (entry,) = await stage.read(lanes)

        try:
            assert (await other.find(Query(), limit=9))[0].seq == entry.seq
            await other.leave("a")
            assert await stage.settle(lanes, sent(entry)) == frozenset()
        finally:
            await other.close()

    async def test_two_processes_that_lease_at_once_share(
        self, stage: Stage, tmp_path: Path
    ) -> None:
        other = Stage(hooks=self, store=await another(stage, tmp_path), clock=stage.clock)

        try:
            for _ in range(3):
                first, second = await asyncio.gather(stage.lease("a"), other.lease("b"))
        finally:
            await other.store.close()

        places = {(lane.route, lane.number) for lane in [*first, *second]}
        assert len(first) + len(second) == len(places) == LANES


class WaitingTests(StoreHooks):
    """`wait`."""

    async def test_a_wait_ends_at_its_time(self, stage: Stage) -> None:
        await quiet(stage)

        await passing(stage, stage.store.wait(MOMENT))

    async def test_a_commit_ends_the_wait(self, stage: Stage) -> None:
        wakes(stage)
        await quiet(stage)
        waiting = asyncio.create_task(stage.store.wait(LONG))
        await asyncio.sleep(0)

        await stage.put(message("a"))

        await asyncio.wait_for(waiting, 10)

    async def test_a_commit_between_two_waits_ends_the_second_at_once(self, stage: Stage) -> None:
        wakes(stage)
        await quiet(stage)

        await stage.put(message("a"))

        await asyncio.wait_for(stage.store.wait(LONG), 10)

    async def test_a_commit_is_heard_by_one_wait_only(self, stage: Stage) -> None:
        wakes(stage)
        await quiet(stage)
        await stage.put(message("a"))
        await asyncio.wait_for(stage.store.wait(LONG), 10)
        if stage.hooks.looks_twice:
            await asyncio.wait_for(stage.store.wait(LONG), 10)
        waiting = asyncio.create_task(stage.store.wait(LONG))

        with pytest.raises(TimeoutError):
            await asyncio.wait_for(waiting, 0.1)

    async def test_a_cancelled_wait_leaves_the_store_working(self, stage: Stage) -> None:
        waiting = asyncio.create_task(stage.store.wait(LONG))
        await asyncio.sleep(0)

        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)

        await stage.put(message("a"))
        assert await stage.ids() == ["a"]
        await asyncio.wait_for(passing(stage, stage.store.wait(MOMENT)), 10)


def wakes(stage: Stage) -> None:
    """Skip where nobody says that somebody committed."""
    if not stage.store.features.wakes:
        pytest.skip("a store that does not wake")


async def quiet(stage: Stage) -> None:
    """Let the store forget the commits that went before."""
    for _ in range(2):
        await passing(stage, stage.store.wait(MOMENT))


async def passing(stage: Stage, waiting: Coroutine[object, object, None]) -> None:
    """Let time pass until this is done, by the test's clock and by the real one."""
    task = asyncio.ensure_future(waiting)
    while not task.done():
        stage.clock.advance(MOMENT)
        await asyncio.wait({task}, timeout=0.001)
    await task


async def another(stage: Stage, directory: Path) -> Store:
    """Return the same database as another process has it, open."""
    if not stage.store.features.many_processes:
        pytest.skip("a store of one process")
    store = stage.hooks.make_store(stage.clock, directory)
    await store.open()
    return store
