"""Message ids: UUIDv7 as RFC 9562 lays it out."""

import time
from unittest.mock import patch
from uuid import RFC_4122, UUID

from hypothesis import given
from hypothesis import strategies as st

from postroom.message import Message, new_id


def test_an_id_has_the_layout_of_version_7() -> None:
    made = [new_id() for _ in range(500)]

    assert {(made_id.version, made_id.variant) for made_id in made} == {(7, RFC_4122)}


def test_ids_are_never_the_same() -> None:
    assert len({new_id() for _ in range(10_000)}) == 10_000


def test_an_id_carries_the_millisecond_in_which_it_was_made() -> None:
    before = time.time_ns() // 1_000_000
    made = [new_id() for _ in range(100)]
    after = time.time_ns() // 1_000_000

    assert all(before <= _millis(made_id) <= after for made_id in made)


@given(st.lists(st.integers(min_value=0, max_value=2**48 - 1), min_size=2, unique=True))
def test_ids_sort_by_their_millisecond_as_numbers_and_as_text(millis: list[int]) -> None:
    made = [_made_at(moment) for moment in millis]

    assert [_millis(made_id) for made_id in made] == millis
    assert [_millis(made_id) for made_id in sorted(made)] == sorted(millis)
    assert sorted(map(str, made)) == [str(made_id) for made_id in sorted(made)]


@given(st.integers(min_value=0, max_value=2**48 - 1), st.binary(min_size=10, max_size=10))
def test_no_random_bits_touch_version_variant_or_time(moment: int, noise: bytes) -> None:
    with patch("postroom.message.os.urandom", return_value=noise):
        made = _made_at(moment)

    random_bits = (0xFFF << 64) | (2**62 - 1)
    assert (made.version, made.variant, _millis(made)) == (7, RFC_4122, moment)
    assert made.int & random_bits == int.from_bytes(noise) & random_bits


def test_a_message_has_an_id_of_its_own_in_canonical_text() -> None:
    first, second = (Message(type="t", payload=b"") for _ in range(2))

    assert first.id != second.id
    assert first.id == str(UUID(first.id))


@given(st.integers(min_value=0, max_value=2**48 - 1), st.binary(min_size=10, max_size=10))
def test_the_id_of_a_message_is_the_text_of_such_an_id(moment: int, noise: bytes) -> None:
    with (
        patch("postroom.message.os.urandom", return_value=noise),
        patch("postroom.message.time.time_ns", return_value=moment * 1_000_000),
    ):
        assert Message(type="t", payload=b"").id == str(new_id())


def _millis(made_id: UUID) -> int:
    return made_id.int >> 80


def _made_at(millis: int) -> UUID:
    with patch("postroom.message.time.time_ns", return_value=millis * 1_000_000 + 999_999):
        return new_id()
