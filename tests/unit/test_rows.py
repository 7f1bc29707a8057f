"""An entry made of a row is the one that its constructor would make."""

from dataclasses import fields
from datetime import timedelta

from postroom._clock import from_micros
from postroom.message import Entry, Message, State
from postroom.stores.rows import entry_of

ROW = (
    *(7, "an id", "route", 9, "dead", True, 3, 4, 5, 6, 8, 10, 11, "key", "type", "topic"),
    *("text/plain", "no", '{"a": "b"}', b"payload", True),
)


def test_every_field_has_its_column() -> None:
    expected = Entry(
        seq=7,
        route="route",
        lane=9,
        state=State.DEAD,
        attempts=3,
        blocks=True,
        behind=True,
        created_at=from_micros(10),
        due_at=from_micros(5),
        settled_at=from_micros(11),
        error="no",
        message=Message(
            id="an id",
            type="type",
            payload=b"payload",
            content_type="text/plain",
            key="key",
            version=4,
            headers={"a": "b"},
            topic="topic",
            deliver_at=from_micros(6),
            expires_at=from_micros(8),
        ),
    )

    assert entry_of(ROW) == entry_of(ROW, typed=True) == expected


def test_no_field_is_left_out() -> None:
    entry = entry_of(ROW)

    for thing in (entry, entry.message):
        for field in fields(thing):
            getattr(thing, field.name)
    assert entry.created_at is not None
    assert entry.created_at.utcoffset() == timedelta(0)
