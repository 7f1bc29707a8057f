"""What a partition knows: the position over everything that is done, order, and holding back."""

from hypothesis import given
from hypothesis import strategies as st

from postroom.brokers.kafka.partition import Partition, Received, note, noted
from postroom.message import Message


def record(offset: int, key: bytes | None = None) -> Received:
    return Received(
        offset=offset,
        message=Message(id=str(offset), type="t", payload=b""),
        key=key,
        value=b"",
        headers=[],
    )


def partition(start: int | None = None, seen: int = 0) -> Partition:
    made = Partition(topic="t", number=0, start=start, seen=seen, ahead=1000)
    made.reserved = 2**40
    return made


@given(st.permutations(range(8)), st.integers(0, 8), st.integers(1, 50))
def test_the_position_never_passes_what_is_not_done(
    order: list[int], count: int, step: int
) -> None:
    """Also where offsets have gaps, as after compaction or a transaction."""
    mine = partition()
    records = [record(number * step) for number in range(8)]
    for one in records:
        mine.receive(one)

    done = order[:count]
    for number in done:
        mine.done(records[number])

    left = [number for number in range(8) if number not in done]
    assert mine.position == (left[0] * step if left else 7 * step + 1)


def test_nothing_is_handed_out_before_kafka_was_told() -> None:
    mine = Partition(topic="t", number=0, start=None, seen=0, ahead=10)
    mine.receive(record(0))

    assert mine.take() is None
    asked = mine.wanted()
    assert asked == (0, 11)
    mine.confirm(asked)

    assert mine.take() is not None
    assert mine.wanted() is None


def test_at_the_end_kafka_is_told_exactly_what_was_handed_out() -> None:
    mine = partition()
    for offset in range(5):
        mine.receive(record(offset))
    first, second = mine.take(), mine.take()
    assert first is not None
    assert second is not None
    mine.done(first)

    assert mine.wanted(final=True) == (1, 2)


def test_a_retry_holds_what_follows_in_its_key() -> None:
    mine = partition()
    records = [record(n, key) for n, key in enumerate((b"k", b"l", b"k", None))]
    for one in records:
        mine.receive(one)
    first = mine.take()
    assert first is records[0]

    mine.retry(first, due=10.0)
    mine.receive(record(4, b"k"))

    assert [mine.take(), mine.take(), mine.take()] == [records[1], records[3], None]
    mine.wake(9.9)
    assert mine.take() is None
    mine.wake(10.0)
    assert [one.offset for one in iter(mine.take, None)] == [0, 2, 4]


def test_a_released_record_keeps_its_place() -> None:
    mine = partition()
    for offset in range(3):
        mine.receive(record(offset))
    first = mine.take()
    assert first is not None

    mine.release(first)

    assert [one.offset for one in iter(mine.take, None)] == [0, 1, 2]
    assert first.again


def test_offsets_that_begin_anew_are_taken() -> None:
    """A topic that was made again must not look as if everything were done."""
    mine = partition(start=100, seen=100)
    mine.receive(record(0))

    assert mine.position == 0
    mine.confirm((0, 10))
    assert mine.take() is not None


def test_the_note_beside_an_offset() -> None:
    assert noted(note(7), 5, prefetch=10) == 7
    assert noted(note(3), 5, prefetch=10) == 5
    for foreign in (None, "", "somebody's", "postroom:1:x"):
        assert noted(foreign, 5, prefetch=10) == 15
