"""The relay's plan for one read: whatever is read, no key is overtaken."""

from datetime import UTC, datetime, timedelta
from itertools import count

from hypothesis import given
from hypothesis import strategies as st

from postroom.lane import lane_of
from postroom.message import Entry, Message, State
from postroom.relay.plan import Plan, plan

NOW = datetime(2030, 1, 1, tzinfo=UTC)


def entry(seq: int, key: str | None, *, behind: bool = False, expired: bool = False) -> Entry:
    message = Message(
        id=f"{seq}",
        type="t",
        payload=b"",
        key=key,
        expires_at=NOW - timedelta(seconds=1) if expired else None,
    )
    return Entry(
        seq=seq,
        route="default",
        lane=lane_of(key, message.id),
        state=State.READY,
        message=message,
        behind=behind,
    )


@st.composite
def reads(draw: st.DrawFn) -> list[Entry]:
    """Rows in order; those behind a blocked head are the last of their key."""
    numbers = count(1)
    made = draw(
        st.lists(st.tuples(st.sampled_from(["a", "b", None]), st.booleans(), st.integers(0, 5)))
    )
    behind: set[str] = set()
    rows = []
    for key, expired, chance in made:
        if key is not None and chance == 0:
            behind.add(key)
        rows.append(entry(next(numbers), key, behind=key in behind, expired=expired))
    return rows


@given(reads(), st.sets(st.integers(1, 20)), st.booleans())
def test_no_row_goes_while_an_earlier_one_of_its_key_may_stay(
    rows: list[Entry], suspects: set[int], park: bool
) -> None:
    todo = plan(rows, suspects=suspects, now=NOW, park=park)

    expired = {one.entry.seq for one in todo.give_up}
    sending = {row.seq for row in todo.send}
    for row in [*todo.send, *todo.alone]:
        before = {other.seq for other in rows if _same_key(other, row) and other.seq < row.seq}
        before -= expired
        assert before <= sending if row.seq in sending else not before


@given(reads(), st.sets(st.integers(1, 20)), st.booleans())
def test_every_row_has_one_fate_and_suspects_go_alone(
    rows: list[Entry], suspects: set[int], park: bool
) -> None:
    todo = plan(rows, suspects=suspects, now=NOW, park=park)

    fates = [row.seq for row in _all(todo)]
    assert len(fates) == len(set(fates))
    # Only a suspect may stay as it is, for another round.
    assert {row.seq for row in rows} - set(fates) <= suspects
    assert suspects.isdisjoint(row.seq for row in todo.send)
    assert all(row.seq in suspects for row in todo.alone)
    assert all(row.message.key is not None for row in todo.hold)


def test_a_suspect_waits_for_an_earlier_message_of_its_key_that_goes_now() -> None:
    """The earlier one was convicted and is tried again: it may be refused again."""
    todo = plan([entry(14, "b"), entry(19, "b")], suspects={19}, now=NOW, park=False)

    assert [row.seq for row in todo.send] == [14]
    assert todo.alone == []
    assert todo.hold == []


def _all(todo: Plan) -> list[Entry]:
    return [*todo.send, *todo.alone, *todo.hold, *(one.entry for one in todo.give_up)]


def _same_key(one: Entry, other: Entry) -> bool:
    return one.message.key is not None and one.message.key == other.message.key
