"""Messages, states and moments: values that mean the same before and after."""

import dataclasses
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroom._clock import from_micros, to_micros
from postroom.message import NO_HEADERS, Entry, Message, State, message, message_type
from postroom.store import Addressed, Query
from postroom.stores.memory import MemoryStore

texts = st.text(st.characters(exclude_categories=["Cs"]))
moments = st.datetimes(
    min_value=datetime(1970, 1, 2),  # noqa: DTZ001 - hypothesis adds the zone
    max_value=datetime(2200, 1, 1),  # noqa: DTZ001
    timezones=st.sampled_from([UTC, timezone(timedelta(hours=5, minutes=45))]),
)
messages = st.builds(
    Message,
    type=texts,
    payload=st.binary(),
    content_type=texts,
    key=st.none() | texts,
    version=st.none() | st.integers(0, 2**63 - 1),
    headers=st.dictionaries(texts, texts),
    topic=texts,
    deliver_at=st.none() | moments,
    expires_at=st.none() | moments,
)


@given(messages, texts)
async def test_a_message_comes_out_of_a_store_as_it_went_in(sent: Message, route: str) -> None:
    store = MemoryStore()
    with store.begin() as transaction:
        transaction.run(store.insert([Addressed(route, sent)]))

    (entry,) = await store.find(Query(), limit=10)

    assert entry.message == sent
    assert (entry.route, entry.attempts, entry.blocks) == (route, 0, False)


@given(moments)
def test_a_moment_survives_as_microseconds(moment: datetime) -> None:
    assert from_micros(to_micros(moment)) == moment


@given(moments, moments)
def test_microseconds_sort_as_moments_do(first: datetime, second: datetime) -> None:
    assert (to_micros(first) < to_micros(second)) == (first < second)


def test_a_moment_without_a_zone_is_refused() -> None:
    with pytest.raises(ValueError, match="time zone"):
        to_micros(datetime(2030, 1, 1))  # noqa: DTZ001


def test_a_message_never_changes() -> None:
    sent = Message(type="t", payload=b"")

    with pytest.raises(dataclasses.FrozenInstanceError):
        sent.payload = b"other"  # type: ignore[misc]
    with pytest.raises(TypeError):
        NO_HEADERS["a"] = "b"  # type: ignore[index]


def test_states_are_named_in_sql_as_in_code() -> None:
    assert [str(state) for state in State] == [
        "scheduled",
        "ready",
        "waiting",
        "held",
        "sent",
        "dead",
    ]
    assert all(State(str(state)) is state for state in State)


def test_an_entry_starts_with_nothing_held_against_it() -> None:
    entry = Entry(
        seq=1, route="default", lane=0, state=State.READY, message=Message(type="t", payload=b"")
    )

    assert (entry.attempts, entry.blocks, entry.behind, entry.error) == (0, False, False, None)


def test_a_subclass_needs_a_name_of_its_own() -> None:
    @message("shop.order-placed", aliases=("order_placed",), key="order_id")
    class OrderPlaced:
        pass

    class Special(OrderPlaced):
        pass

    stamp = message_type(OrderPlaced)
    assert stamp is not None
    assert (stamp.name, stamp.aliases, stamp.key) == (
        "shop.order-placed",
        ("order_placed",),
        "order_id",
    )
    assert message_type(Special) is None
