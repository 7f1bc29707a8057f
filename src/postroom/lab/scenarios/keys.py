"""What happens to the order of a key when one of its messages is refused."""

from collections.abc import Sequence

from postroom.lab import books
from postroom.lab.plants import NO_HOLD
from postroom.lab.processes import Actor
from postroom.lab.scenario import Scenario
from postroom.lab.stage import Stage
from postroom.message import State
from postroom.store import Query

_LARGE = "x" * 300_000
_LARGE_LIMIT = 1_048_576


async def refused_for_now(stage: Stage) -> None:
    """The broker refuses one message three times; its key waits, all others go on."""
    refused = stage.place(0)
    stage.place(0)
    stage.place(0)
    stage.fault("refuses one message", refuse={refused: 3})
    stage.start_consumers()
    relay = stage.start("relay")
    service = stage.start("orders", orders=60)
    await stage.ended(service)
    await stage.still()
    stage.check("it was refused three times", len(relay.said("Retried")) == 3)
    stage.check("only its attempts were charged", books.attempts(stage.places) == 3)


async def refused_for_good(stage: Stage) -> None:
    """A message is larger than the broker takes; its key goes on; it is replayed later."""
    large = stage.place(0, note=_LARGE)
    stage.place(0)
    stage.start_consumers()
    relay = stage.start("relay")
    service = stage.start("orders", orders=40)
    await stage.ended(service)
    await stage.still()
    stage.check("it is dead, with a reason", bool(books.reasons(stage.places).get(large)))
    stage.check("it alone", stage.states()["dead"] == 1)
    stage.excused.add(large)
    await _with_larger_limit(stage, relay)
    async with stage.desk() as desk:
        replayed = await desk.replay(Query(ids=[large]))
    stage.check("one message was replayed", replayed == 1)
    stage.healed()
    await stage.still()
    stage.check("nothing is dead any more", stage.states()["dead"] == 0)


async def parked_key(stage: Stage) -> None:
    """The same under `park`: its key waits for a person, who replays it late."""
    large, relay = await _park(stage)
    await _with_larger_limit(stage, relay)
    async with stage.desk() as desk:
        replayed = await desk.replay(Query(ids=[large]))
    stage.check("one message was replayed", replayed == 1)
    stage.healed()
    await stage.still()
    stage.check("nothing waits any more", _at_rest(stage) == (0, 0))


async def released_key(stage: Stage) -> None:
    """The same under `park`, and the person lets the key go on without the message."""
    large, _ = await _park(stage)
    async with stage.desk() as desk:
        released = await desk.release(Query(ids=[large]))
    stage.check("one key was released", released == 1)
    stage.healed()
    await stage.still()
    stage.check("only the message itself stays behind", _at_rest(stage) == (1, 0))


async def ends_connection(stage: Stage) -> None:
    """The broker ends the connection on one message, whatever is sent beside it."""
    for number in range(1, 6):
        stage.place(number)
    killer = stage.place(0)
    stage.place(0)
    for number in range(1, 10):
        stage.place(number)
    stage.fault("ends the connection on one message", closes_on=(killer,), closes=4)
    stage.start_consumers()
    relay = stage.start("relay")
    service = stage.start("orders", orders=40)
    await stage.ended(service)
    await stage.still()
    suspected = {line["id"] for line in relay.said("Suspected")}
    stage.check("it was suspected", killer in suspected)
    blamed = {line["id"] for line in relay.said("Retried")}
    stage.check("it alone was convicted", blamed == {killer})


async def _park(stage: Stage) -> tuple[str, Actor]:
    large = stage.place(0, note=_LARGE)
    stage.place(0)
    stage.place(0)
    stage.start_consumers()
    relay = stage.start("relay", on_dead="park")
    service = stage.start("orders", orders=40)
    await stage.ended(service)
    await stage.still()
    dead, held = _at_rest(stage)
    stage.check("the message is dead and its key waits", dead == 1 and held >= 2)
    stage.check("nothing else does", sum(_unsent(stage).values()) == 0)
    return large, relay


async def _with_larger_limit(stage: Stage, relay: Actor) -> None:
    relay.terminate()
    await stage.ended(relay)
    relay.start(max_message_bytes=_LARGE_LIMIT)
    await stage.ready(relay)


def _at_rest(stage: Stage) -> tuple[int, int]:
    states = stage.states()
    return states["dead"], states["held"]


def _unsent(stage: Stage) -> dict[str, int]:
    return {state: stage.states()[state] for state in (State.READY, State.WAITING)}


SCENARIOS: Sequence[Scenario] = (
    Scenario(
        name="refused-for-now",
        summary="the broker refuses a message three times; its key keeps its order",
        play=refused_for_now,
        plants=(NO_HOLD,),
        figures=("out_of_order",),
    ),
    Scenario(
        name="refused-for-good",
        summary="a message is larger than the broker takes: dead, its key goes on, replayed",
        play=refused_for_good,
    ),
    Scenario(
        name="parked-key",
        summary="the same under `park`: its key waits until the message is replayed",
        play=parked_key,
    ),
    Scenario(
        name="released-key",
        summary="the same under `park`: a person lets the key go on",
        play=released_key,
    ),
    Scenario(
        name="ends-connection",
        summary="one message ends the broker's connection; it alone is convicted",
        play=ends_connection,
    ),
)
