"""The fields of a message that every database and broker can keep, and those that are refused."""

from datetime import UTC, date, datetime, timedelta, timezone
from typing import Any
from uuid import UUID

import pytest

from postroom import Message
from postroom.codecs import MAX_KEY_BYTES, MAX_TYPE_BYTES, check, encode
from postroom.errors import InvalidMessage

NOW = datetime(2024, 2, 29, 23, 59, 59, 999999, tzinfo=UTC)


def refused(**changes: Any) -> str:
    """Return why a message with these fields is refused."""
    fields: dict[str, Any] = {"type": "test", "payload": b""} | changes
    with pytest.raises(InvalidMessage) as caught:
        check(Message(**fields))
    return caught.value.reason


@pytest.mark.parametrize("name", ["type", "topic", "key", "content_type"])
@pytest.mark.parametrize(
    ("value", "reason"), [("a\0b", "NUL"), ("\ud800", "surrogate"), (1, "text"), ("x" * 513, "513")]
)
def test_texts_that_are_refused(name: str, value: object, reason: str) -> None:
    said = refused(**{name: value})

    assert said.startswith(name)
    assert reason in said


def test_empty_texts() -> None:
    assert "empty" in refused(type="")
    assert "use None" in refused(key="")
    check(Message(type="test", payload=b"", topic=""))


def test_lengths_count_bytes() -> None:
    check(Message(type="t" * MAX_TYPE_BYTES, payload=b"", key="k" * MAX_KEY_BYTES))

    assert "256 bytes" in refused(type="é" * 128)
    assert "514 bytes" in refused(key="é" * 257)


@pytest.mark.parametrize(
    "id_", ["", "1", str(UUID(int=255)).upper(), UUID(int=1).hex, f"{UUID(int=1)}\n", UUID(int=1)]
)
def test_ids_that_are_refused(id_: object) -> None:
    assert "UUID" in refused(id=id_)


@pytest.mark.parametrize("version", [2**63, -(2**63) - 1, True, "1", 1.0])
def test_versions_that_are_refused(version: object) -> None:
    assert "64 bits" in refused(version=version)


@pytest.mark.parametrize("version", [2**63 - 1, -(2**63), 0, None])
def test_versions_that_pass(version: int | None) -> None:
    check(Message(type="test", payload=b"", version=version))


@pytest.mark.parametrize("payload", ["text", bytearray(b"x"), memoryview(b"x"), None])
def test_payloads_that_are_no_bytes(payload: object) -> None:
    assert "payload must be bytes" in refused(payload=payload)


@pytest.mark.parametrize(
    ("headers", "reason"),
    [
        ({"a": 1}, "header a must be text, not int"),
        ({"a": None}, "header a must be text"),
        ({"a": "\0"}, "NUL"),
        ({"a": "\ud800"}, "surrogate"),
        ({1: "a"}, "visible ASCII"),
        ({"": "a"}, "visible ASCII"),
        ({"a b": "c"}, "visible ASCII"),
        ({"a:b": "c"}, "visible ASCII"),
        ({"é": "c"}, "visible ASCII"),
        ({"a\n": "c"}, "visible ASCII"),
        ({"postroom-seq": "1"}, "reserved"),
        ({"Postroom-Seq": "1"}, "reserved"),
        ([("a", "b")], "mapping"),
    ],
)
def test_headers_that_are_refused(headers: Any, reason: str) -> None:
    assert reason in refused(headers=headers)
    with pytest.raises(InvalidMessage, match=reason):
        encode({}, type="test", headers=headers)


def test_headers_that_pass() -> None:
    headers = {"traceparent": "00-1-2-01", "X-Name": "Zoë 🚀\nline", "empty": ""}

    written = encode({}, type="test", headers=headers)
    headers["traceparent"] = "changed"

    assert written.headers["traceparent"] == "00-1-2-01"
    assert written.headers["X-Name"] == "Zoë 🚀\nline"


def test_moments_that_are_refused() -> None:
    assert "deliver_at has no time zone" in refused(deliver_at=datetime(2024, 1, 1))  # noqa: DTZ001
    assert "expires_at has no time zone" in refused(expires_at=datetime(2024, 1, 1))  # noqa: DTZ001
    assert "must be a datetime" in refused(deliver_at=date(2024, 1, 1))
    west, east = timezone(timedelta(hours=-5)), timezone(timedelta(hours=5))
    assert "years 1 to 9999" in refused(deliver_at=datetime.max.replace(tzinfo=west))
    assert "years 1 to 9999" in refused(expires_at=datetime.min.replace(tzinfo=east))
    assert "never be sent" in refused(deliver_at=NOW, expires_at=NOW)
    check(Message(type="t", payload=b"", deliver_at=NOW, expires_at=NOW + timedelta(seconds=1)))
