"""What is put comes back unchanged, or is refused with the field and the cure."""

import math
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum, IntEnum, StrEnum
from typing import Any, Generic, TypedDict, TypeVar
from uuid import UUID, uuid4

import msgspec
import pytest

from postroom import Message, message
from postroom.codecs import decode, encode
from postroom.errors import InvalidMessage, Undecodable

NOW = datetime(2024, 2, 29, 23, 59, 59, 999999, tzinfo=UTC)
T = TypeVar("T")


class Colour(StrEnum):
    """Text that is an enum."""

    RED = "red"


class Size(IntEnum):
    """A number that is an enum."""

    SMALL = 1


class Mode(Enum):
    """An enum that is neither."""

    FAST = "fast"


@dataclass
class Line:
    """Part of another value."""

    article: str
    price: Decimal


@message("test.everything", key="id", version="revision")
@dataclass
class Everything:
    """One field of each kind that JSON carries unchanged."""

    id: UUID = field(default_factory=uuid4)
    revision: int = 3
    text: str = 'NUL \0, quotes ", 中文, 🚀, \u2028'
    amount: Decimal = Decimal("1.10")
    at: datetime = NOW
    day: date = date(2024, 2, 29)
    clock: time = time(12, 30)
    span: timedelta = timedelta(hours=36, microseconds=5)
    colour: Colour = Colour.RED
    size: Size = Size.SMALL
    mode: Mode = Mode.FAST
    lines: list[Line] = field(default_factory=lambda: [Line("a", Decimal("0.30"))])
    pair: tuple[int, str] = (1, "one")
    tags: set[str] = field(default_factory=lambda: {"x", "y"})
    data: bytes = b"\0\xff"
    by_number: dict[int, str] = field(default_factory=lambda: {1: "one"})
    nothing: float | None = None
    ratio: float = 0.1
    large: int = 2**63


@message("test.struct", key="id")
class Struct(msgspec.Struct):
    """The same as a msgspec struct."""

    id: int
    at: datetime | None = None


@message("test.typed", key="id")
class Typed(TypedDict):
    """The same as a TypedDict."""

    id: str
    at: datetime


@message("test.anything")
@dataclass
class Anything:
    """A class that does not say what it holds."""

    value: Any


@message("test.number")
@dataclass
class Number:
    """A class with numbers."""

    value: float | Decimal | None


@message("test.moment")
@dataclass
class Moment:
    """A class with times, somewhere inside."""

    values: dict[str, list[datetime]]
    note: str = ""


@message("test.generic")
@dataclass
class Wrapped(Generic[T]):
    """A generic class."""

    value: T


@message("test.key", key="key")
@dataclass
class Keyed:
    """A class whose key may be anything."""

    key: Any


def test_every_kind_comes_back() -> None:
    event = Everything()

    written = encode(event)

    assert decode(written, Everything) == event
    assert (written.type, written.key, written.version) == ("test.everything", str(event.id), 3)
    assert written.content_type == "application/json"


@message("test.span")
@dataclass(frozen=True)
class Span:
    """A class with two times."""

    since: datetime
    until: datetime


@message("test.noted")
class Noted(TypedDict):
    """A dictionary with a time."""

    at: datetime


@pytest.mark.parametrize("zone", [UTC, timezone(timedelta(hours=-3, minutes=-30))])
def test_structs_come_back(zone: timezone) -> None:
    event = Struct(7, NOW.astimezone(zone))

    written = encode(event)

    assert decode(written, Struct) == event
    assert written.key == "7"


def test_typed_dicts_come_back() -> None:
    event: Typed = {"id": "a", "at": NOW}

    written = encode(event, type=Typed)

    assert decode(written, Typed) == event
    assert (written.type, written.key) == ("test.typed", "a")


def test_a_dict_with_a_name() -> None:
    written = encode({"a": [1, None, "x"]}, type="test.plain")

    assert written.type == "test.plain"
    assert decode(written, dict) == {"a": [1, None, "x"]}


def test_a_stamped_class_under_another_name() -> None:
    written = encode(Struct(1), type="test.other")

    assert (written.type, written.key) == ("test.other", "1")


def test_every_message_gets_an_id_of_its_own() -> None:
    event = Struct(1)

    assert encode(event).id != encode(event).id


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, Decimal("NaN"), Decimal("sNaN")])
@pytest.mark.parametrize("cls", [Number, Anything])
def test_what_is_no_number_is_refused(cls: Any, value: object) -> None:
    with pytest.raises(InvalidMessage, match=r"\.value is .* use None or text"):
        encode(cls(value))


def test_none_is_no_nan() -> None:
    assert decode(encode(Number(None)), Number) == Number(None)


@pytest.mark.parametrize(
    ("event", "path"),
    [
        (Anything("a\ud800"), r"Anything\.value contains the lone surrogate U\+D800 at position 1"),
        (Anything({"\udfff": 1}), r"Anything\.value key .* contains the lone surrogate U\+DFFF"),
        (Anything([["x", "\ud83d"]]), r"Anything\.value\[0\]\[1\] contains"),
    ],
)
def test_lone_surrogates_are_refused(event: object, path: str) -> None:
    with pytest.raises(InvalidMessage, match=path):
        encode(event)


@pytest.mark.parametrize(
    "event",
    [
        Struct(1, datetime(2024, 1, 1)),  # noqa: DTZ001
        Moment({"a": [NOW, datetime(2024, 1, 1)]}),  # noqa: DTZ001
        Anything(datetime(2024, 1, 1)),  # noqa: DTZ001
        Wrapped(datetime(2024, 1, 1)),  # noqa: DTZ001
    ],
)
def test_times_without_a_zone_are_refused(event: object) -> None:
    with pytest.raises(InvalidMessage, match=r"is a time without a zone; use datetime\.now\(UTC\)"):
        encode(event)


def test_the_second_time_of_an_event_is_looked_at_as_well() -> None:
    event = Span(since=NOW, until=datetime(2024, 1, 1))  # noqa: DTZ001

    with pytest.raises(InvalidMessage, match=r"^\.until is a time without a zone"):
        encode(event)


def test_a_time_without_a_zone_is_refused_in_a_typed_dict() -> None:
    event = {"at": datetime(2024, 1, 1)}  # noqa: DTZ001

    with pytest.raises(InvalidMessage, match="is a time without a zone"):
        encode(event, type=Noted)


def test_text_that_looks_like_a_time_is_text() -> None:
    event = Moment({}, note="2024-01-01T00:00:00")

    assert decode(encode(event), Moment) == event


@pytest.mark.parametrize("value", [{1}, (1, 2), b"x", UUID(int=1), Colour, NOW, {1: 2}, {NOW: 1}])
def test_what_would_come_back_as_something_else_is_refused(value: object) -> None:
    with pytest.raises(InvalidMessage, match=r"Anything"):
        encode(Anything(value))


@pytest.mark.parametrize("value", [object(), 1j, {(1, 2): 3}, {None: 1}, lambda: 1])
def test_what_json_cannot_hold_is_refused(value: object) -> None:
    with pytest.raises(InvalidMessage, match=r"Anything"):
        encode(Anything(value))


def test_a_value_that_contains_itself_is_refused() -> None:
    circle: list[object] = []
    circle.append(circle)

    with pytest.raises(InvalidMessage, match="contains itself"):
        encode(Anything(circle))


def test_values_that_contradict_the_annotations_are_refused() -> None:
    wrong: Any = "seven"

    with pytest.raises(InvalidMessage, match=r"Struct .*Expected `int`, got `str` - at `\$\.id`"):
        encode(Struct(wrong))


def test_a_class_without_equality_is_compared_by_its_fields() -> None:
    @message("test.identity")
    class Identity(msgspec.Struct, eq=False):
        value: float | None

    assert encode(Identity(1.5)).payload == b'{"value":1.5}'
    with pytest.raises(InvalidMessage, match="nan"):
        encode(Identity(math.nan))


def test_an_event_without_a_name_is_refused() -> None:
    with pytest.raises(InvalidMessage, match="@message"):
        encode(Line("a", Decimal(1)))
    with pytest.raises(InvalidMessage, match="type="):
        encode({"a": 1})


def test_a_subclass_needs_a_name_of_its_own() -> None:
    @dataclass
    class Later(Anything):
        more: int = 1

    with pytest.raises(InvalidMessage, match="Later has no message type"):
        encode(Later(1))


@pytest.mark.parametrize(
    ("key", "text"),
    [("a", "a"), (UUID(int=1), str(UUID(int=1))), (-5, "-5"), (Colour.RED, "red"), (None, None)],
)
def test_keys(key: Any, text: str | None) -> None:
    written = encode({}, type="test", key=key)

    assert written.key == text
    assert written.key is None or type(written.key) is str


def test_the_key_field_may_be_none() -> None:
    assert encode(Keyed(None)).key is None


@pytest.mark.parametrize("key", [1.5, True, b"a", ["a"]])
def test_keys_of_other_types_are_refused(key: Any) -> None:
    with pytest.raises(InvalidMessage, match="key must be text"):
        encode(Struct(1), key=key)


def test_a_missing_key_field_is_refused() -> None:
    @message("test.missing", key="order_id")
    @dataclass
    class Missing:
        id: int

    with pytest.raises(InvalidMessage, match="has no field 'order_id'"):
        encode(Missing(1))


def test_the_key_of_the_call_wins() -> None:
    written = encode(Everything(), key="other", version=9)

    assert (written.key, written.version) == ("other", 9)


def raw(payload: bytes, content_type: str = "application/json") -> Message:
    """Return a message as it arrives."""
    return Message(type="test", payload=payload, content_type=content_type)


def test_unknown_fields_are_ignored() -> None:
    assert decode(raw(b'{"id":1,"later":true}'), Struct) == Struct(1)


@pytest.mark.parametrize(
    ("payload", "path"),
    [
        (b'{"id":"x"}', r"\$\.id"),
        (b'{"id":1,"at":"yesterday"}', r"\$\.at"),
        (b"{}", "id"),
        (b"\xff\xfe", "Struct"),
        (b"", "Struct"),
        (b'{"id":1', "Struct"),
    ],
)
def test_what_cannot_be_read_says_where(payload: bytes, path: str) -> None:
    with pytest.raises(Undecodable, match=path):
        decode(raw(payload), Struct)


def test_bytes_are_handed_on_untouched() -> None:
    assert decode(raw(b"\0\xff", "application/octet-stream"), bytes) == b"\0\xff"
    assert decode(raw(b'{"id":1}'), bytes) == b'{"id":1}'


def test_other_content_types_are_not_guessed() -> None:
    with pytest.raises(Undecodable, match="application/xml"):
        decode(raw(b"<a/>", "application/xml"), Struct)


@pytest.mark.parametrize("content_type", ["application/json; charset=utf-8", "Application/JSON"])
def test_json_with_parameters_is_json(content_type: str) -> None:
    assert decode(raw(b'{"id":1}', content_type), Struct) == Struct(1)
