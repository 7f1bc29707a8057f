"""What `lease`, `give` and `leave` promise: one owner, fair shares, and no robbery."""

from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import timedelta

from postroom.lane import LANES, Lane
from postroom.testing.conformance.stage import LEASE, RENEWAL, SECOND, Stage, StoreHooks

ROUTES = {"default": True}
UNABLE = {"default": False}


class LeasingTests(StoreHooks):
    """`lease`, `give` and `leave`."""

    async def test_a_lone_relay_owns_every_lane_of_its_routes(self, stage: Stage) -> None:
        lanes = await stage.lease(routes={"default": True, "slow": True})

        assert Counter(lane.route for lane in lanes) == {"default": LANES, "slow": LANES}
        assert numbers(lane for lane in lanes if lane.route == "slow") == list(range(LANES))

    async def test_a_renewal_alone_changes_no_owner(self, stage: Stage) -> None:
        before = await stage.settled_shares("a", "b", "c")

        stage.clock.advance(RENEWAL)
        after = {relay: await stage.lease(relay) for relay in "abc"}

        assert {relay: set(lanes) for relay, lanes in after.items()} == {
            relay: set(lanes) for relay, lanes in before.items()
        }

    async def test_relays_share_fairly_and_no_lane_has_two_owners(self, stage: Stage) -> None:
        relays = [f"relay-{number}" for number in range(10)]
        await stage.lease(relays[0])

        owned = await stage.settled_shares(*relays)

        assert all(len(lanes) <= 7 for lanes in owned.values())
        assert numbers(lane for lanes in owned.values() for lane in lanes) == list(range(LANES))

    async def test_a_newcomer_gets_its_share_at_the_next_renewals(self, stage: Stage) -> None:
        await stage.lease("a")
        assert await stage.lease("b") == []

        kept = await stage.lease("a")
        taken = await stage.lease("b")

        assert (len(kept), len(taken)) == (32, 32)
        assert numbers([*kept, *taken]) == list(range(LANES))

    async def test_every_change_of_owner_raises_the_epoch(self, stage: Stage) -> None:
        first = {lane.number: lane.epoch for lane in await stage.lease("a")}
        await stage.lease("b")
        await stage.lease("a")
        second = {lane.number: lane.epoch for lane in await stage.lease("b")}
        await stage.store.leave("b")
        third = {lane.number: lane.epoch for lane in await stage.lease("a")}

        assert len(second) == 32
        for number, epoch in second.items():
            assert first[number] < epoch < third[number]

    async def test_lanes_in_flight_are_kept_until_they_are_done(self, stage: Stage) -> None:
        lanes = await stage.lease("a")
        await stage.lease("b")

        kept = await stage.lease("a", busy=lanes)
        later = await stage.lease("a", busy=lanes[:40])
        last = await stage.lease("a")

        assert set(kept) == set(lanes)
        assert set(later) == set(lanes[:40])
        assert len(last) == 32

    async def test_who_cannot_reach_the_broker_gives_to_who_can(self, stage: Stage) -> None:
        lanes = await stage.lease("a")
        await stage.lease("b")

        kept = await stage.lease("a", routes=UNABLE, busy=lanes[:1])
        taken = await stage.lease("b")
        rest = await stage.lease("a", routes=UNABLE)
        everything = await stage.lease("b")

        assert (kept, numbers(taken)) == (lanes[:1], numbers(lanes[1:]))
        assert rest == []
        assert len(everything) == LANES

    async def test_where_nobody_reaches_the_broker_lanes_stay_shared(self, stage: Stage) -> None:
        await stage.settled_shares("a", "b")

        first = await stage.lease("a", routes=UNABLE)
        second = await stage.lease("b", routes=UNABLE)
        again = await stage.lease("a", routes=UNABLE)

        assert len(first) <= 32
        assert numbers([*again, *second]) == list(range(LANES))

    async def test_a_relay_that_can_again_gets_its_share_back(self, stage: Stage) -> None:
        await stage.settled_shares("a", "b")
        await stage.lease("a", routes=UNABLE)
        await stage.lease("b")

        owned = await stage.settled_shares("a", "b")

        assert {len(lanes) for lanes in owned.values()} == {32}

    async def test_a_relay_owns_no_lane_of_a_route_it_does_not_serve(self, stage: Stage) -> None:
        await stage.lease("a", routes={"default": True, "slow": True})

        lanes = await stage.lease("a", routes={"slow": True})

        assert {lane.route for lane in lanes} == {"slow"}
        assert len(lanes) == LANES

    async def test_shares_are_counted_by_route(self, stage: Stage) -> None:
        for _ in range(3):
            mixed = await stage.lease("a", routes={"default": True, "slow": True})
            await stage.lease("b", routes={"default": True})

        count = Counter(lane.route for lane in mixed)
        assert count == {"default": 32, "slow": LANES}

    async def test_lanes_given_back_are_free_at_once(self, stage: Stage) -> None:
        lanes = await stage.lease("a")
        await stage.lease("b")

        await stage.store.give(lanes[:10])

        assert numbers(await stage.lease("b")) == numbers(lanes[:10])

    async def test_what_is_not_ours_any_more_cannot_be_given_back(self, stage: Stage) -> None:
        old = await stage.lease("a")
        await stage.store.leave("a")
        new = await stage.lease("b")

        await stage.store.give(old)

        assert set(await stage.lease("b")) == set(new)

    async def test_a_relay_that_leaves_is_forgotten_at_once(self, stage: Stage) -> None:
        await stage.settled_shares("a", "b")

        await stage.store.leave("a")

        assert len(await stage.lease("b")) == LANES
        assert [relay.name for relay in (await stage.store.stats()).relays] == ["b"]

    async def test_a_lease_that_runs_is_never_taken(self, stage: Stage) -> None:
        lanes = await stage.lease("a")

        for _ in range(3):
            stage.clock.advance(RENEWAL)
            assert await stage.lease("b") == []

        assert set(await stage.lease("a", busy=lanes)) == set(lanes)

    async def test_an_expired_lease_is_taken_one_renewal_after_it_was_seen(
        self, stage: Stage
    ) -> None:
        await stage.lease("a")
        stage.clock.advance(LEASE + SECOND)

        seen = await stage.lease("b")
        stage.clock.advance(RENEWAL - SECOND)
        soon = await stage.lease("b")
        stage.clock.advance(SECOND)
        then = await stage.lease("b")

        assert (len(seen), len(soon), len(then)) == (0, 0, LANES)

    async def test_any_relay_may_have_seen_it_first(self, stage: Stage) -> None:
        await stage.lease("a")
        stage.clock.advance(LEASE + SECOND)
        await stage.lease("b")
        stage.clock.advance(RENEWAL)

        lanes = await stage.lease("c")

        assert len(lanes) == 32

    async def test_a_renewal_in_between_saves_the_owner(self, stage: Stage) -> None:
        lanes = await stage.lease("a")
        stage.clock.advance(LEASE + SECOND)
        await stage.lease("b")

        kept = await stage.lease("a", busy=lanes)
        stage.clock.advance(RENEWAL)

        assert set(kept) == set(lanes)
        assert await stage.lease("b") == []

    async def test_a_stall_of_the_database_robs_nobody(self, stage: Stage) -> None:
        before = await stage.settled_shares("a", "b", "c")

        stage.clock.advance(timedelta(minutes=3))
        after = {relay: await stage.lease(relay) for relay in "abc"}

        assert {relay: set(lanes) for relay, lanes in after.items()} == {
            relay: set(lanes) for relay, lanes in before.items()
        }

    async def test_who_died_and_comes_back_shares_again(self, stage: Stage) -> None:
        await stage.settled_shares("a", "b")
        stage.clock.advance(LEASE + SECOND)
        await stage.lease("b")
        stage.clock.advance(RENEWAL)
        assert len(await stage.lease("b")) == LANES

        owned = await stage.settled_shares("a", "b")

        assert {len(lanes) for lanes in owned.values()} == {32}

    async def test_the_dead_do_not_count_for_the_shares(self, stage: Stage) -> None:
        await stage.settled_shares("a", "b", "c")
        for _ in range(4):
            stage.clock.advance(RENEWAL)
            await stage.lease("a")
            await stage.lease("b")
        stage.clock.advance(RENEWAL)

        owned = await stage.settled_shares("a", "b")

        assert {len(lanes) for lanes in owned.values()} == {32}

    async def test_a_clock_that_was_set_back_keeps_no_lane_for_ever(self, stage: Stage) -> None:
        await stage.lease("a")
        stage.clock.set_back(timedelta(hours=1))

        await stage.lease("b")
        stage.clock.advance(RENEWAL)

        assert len(await stage.lease("b")) == LANES

    async def test_relays_are_seen_in_the_stats(self, stage: Stage) -> None:
        await stage.lease("a", routes={"default": True, "slow": False})
        stage.clock.advance(LEASE + SECOND)
        await stage.lease("b", routes=ROUTES)

        relays = {relay.name: relay for relay in (await stage.store.stats()).relays}

        assert (relays["a"].alive, relays["a"].paused_routes) == (False, ("slow",))
        assert (relays["b"].alive, relays["b"].paused_routes) == (True, ())
        assert set(relays["a"].routes) == {"default", "slow"}
        assert (relays["a"].lanes, relays["b"].lanes) == (2 * LANES, 0)
        assert relays["b"].seen_at == stage.clock.now()


def numbers(lanes: Iterable[Lane]) -> Sequence[int]:
    """Return the numbers of these lanes, sorted."""
    return sorted(lane.number for lane in lanes)
