"""Messages that are too large are refused before anything is written."""

import pytest

from postroom import Limits, Message
from postroom.errors import MessageTooLarge

LIMITS = Limits(max_payload_bytes=10, max_headers_bytes=8, max_batch_bytes=15, max_batch=3)


def of(size: int, **headers: str) -> Message:
    """Return a message with a payload of that size."""
    return Message(type="test", payload=b"x" * size, headers=headers)


def test_the_limit_itself_passes() -> None:
    LIMITS.check([of(10, abc="12345"), of(5)])
    LIMITS.check([of(0)] * 3)
    LIMITS.check([])


def test_a_large_payload() -> None:
    with pytest.raises(MessageTooLarge, match=r"test has 11 bytes, 10 allowed"):
        LIMITS.check([of(1), of(11)])


def test_large_headers_count_bytes_of_names_and_values() -> None:
    with pytest.raises(MessageTooLarge, match="headers of test"):
        LIMITS.check([of(1, abc="éé12")])
    LIMITS.check([of(1, abc="éé1")])


def test_a_large_call() -> None:
    with pytest.raises(MessageTooLarge, match="16 bytes, 15 allowed"):
        LIMITS.check([of(8), of(8)])


def test_many_messages() -> None:
    with pytest.raises(MessageTooLarge, match="4 messages in one call, 3 allowed"):
        LIMITS.check([of(0)] * 4)


def test_the_defaults() -> None:
    Limits().check([of(2**20)] * 16)

    with pytest.raises(MessageTooLarge):
        Limits().check([of(2**20 + 1)])


@pytest.mark.parametrize(
    "name", ["max_payload_bytes", "max_headers_bytes", "max_batch_bytes", "max_batch"]
)
def test_limits_that_nothing_could_keep(name: str) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        Limits(**{name: 0})
