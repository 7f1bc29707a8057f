"""Any text survives the headers of a NATS message, and any bytes can be read."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroom.brokers.nats.api import covers, moment
from postroom.brokers.nats.delivery import place_of
from postroom.brokers.nats.headers import parsed, quoted, unquoted
from postroom.brokers.nats.mapping import Read, packed
from postroom.brokers.nats.topology import Names
from postroom.brokers.nats.wire import Arrived
from postroom.message import Message

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)


@given(TEXT)
def test_a_quoted_text_is_one_line_and_comes_back(text: str) -> None:
    data = quoted(text)

    assert not set(data) & {*range(32), 127}
    assert data == data.strip(b" ")
    assert unquoted(data) == text


@given(
    st.builds(
        Message,
        id=TEXT,
        type=TEXT,
        payload=st.binary(max_size=50),
        content_type=TEXT.filter(bool),
        key=st.none() | TEXT,
        version=st.none() | st.integers(-(2**63), 2**63 - 1),
        headers=st.dictionaries(TEXT, TEXT, max_size=4),
        topic=st.just("shop.order-placed"),
    )
)
def test_a_message_comes_back_as_it_was(sent: Message) -> None:
    line, _, rest = packed(sent, stream=b"s", limit=10**6).sent(b"reply").partition(b"\r\n")
    words = line.split(b" ")
    size, total = int(words[3]), int(words[4])

    read = Read(words[1], rest[:size], rest[size:total]).message

    assert words[:3] == [b"HPUB", b"shop.order-placed", b"reply"]
    assert rest[total:] == b"\r\n"
    assert read == sent


@given(st.binary(max_size=30), st.binary(max_size=200), st.binary(max_size=10))
def test_whatever_arrives_can_be_read_and_kept(subject: bytes, raw: bytes, body: bytes) -> None:
    headers = b"NATS/1.0" + raw

    read = Read(subject, headers, body)

    assert read.message.payload == body
    read.message.topic.encode()
    kept = b"".join(b"%b: %b\r\n" % each for each in read.kept())
    assert [name for name, _ in parsed(b"NATS/1.0\r\n" + kept)] == [n for n, _ in read.kept()]


@given(st.binary(max_size=80))
def test_any_subject_of_an_acknowledgement_can_be_read(reply: bytes) -> None:
    place = place_of(b"$JS.ACK." + reply)

    assert place is None or place.sequence is not None


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        (b"$JS.ACK.s.c.3.42.57.1796072306817144092.4", (3, 42, "1796072306817144092")),
        (b"$JS.ACK.hub.AB12.s.c.3.42.57.1796.4.r4nd", (3, 42, "1796")),
        (b"$JS.ACK._.AB12.s.c.3.42.57.1796.4", (3, 42, "1796")),
        (b"_INBOX.abc", None),
        (b"$JS.ACK.s.c.x.y.z.1.4", None),
    ],
)
def test_a_place_is_read_with_and_without_a_domain(
    reply: bytes, expected: tuple[int, int, str] | None
) -> None:
    assert place_of(reply) == expected


@pytest.mark.parametrize(
    ("headers", "reply", "status"),
    [
        (b"NATS/1.0 503\r\n\r\n", b"", 503),
        (b"NATS/1.0 100 Idle Heartbeat\r\n\r\n", b"", 100),
        (b"NATS/1.0 404 No Messages\r\n\r\n", b"$JS.ACK.s.c.1.1.1.1.0", 0),
        (b"NATS/1.0 \xff\xff\xff\r\n\r\n", b"", 0),
        (b"NATS/1.0\r\nStatus: 503\r\n\r\n", b"", 0),
        (b"NATS/1.0", b"", 0),
        (b"", b"", 0),
    ],
)
def test_only_the_server_sends_a_status(headers: bytes, reply: bytes, status: int) -> None:
    assert Arrived(b"a", reply, headers, b"").status == status


@pytest.mark.parametrize(
    ("pattern", "subject", "expected"),
    [
        ("a.b", "a.b", True),
        ("a.b", "a.c", False),
        ("a.b", "a.b.c", False),
        ("a.*", "a.b", True),
        ("a.*", "a.b.c", False),
        ("a.>", "a.b.c", True),
        ("a.>", "a", False),
        (">", "a", True),
        ("a.*", "a.>", False),
        ("a.>", "a.>", True),
        ("a.b", "a.*", False),
        ("*.b", "*.b", True),
        ("a.b.c", "a.b", False),
    ],
)
def test_what_a_pattern_covers(pattern: str, subject: str, expected: bool) -> None:
    assert covers(pattern, subject) is expected


@pytest.mark.parametrize(
    ("text", "micros"),
    [
        ("2026-11-30T20:58:32.8609838Z", 860983),
        ("2026-11-30T20:58:32.86Z", 860000),
        ("2026-11-30T20:58:32Z", 0),
    ],
)
def test_a_moment_of_the_server(text: str, micros: int) -> None:
    found = moment(text)

    assert (found.second, found.microsecond, found.utcoffset()) == (32, micros, found - found)


@given(TEXT.filter(lambda text: 0 < len(text) < 20))
def test_a_group_has_a_name_of_its_own_that_leads_back(group: str) -> None:
    names = Names(stream="postroom")

    consumer = names.consumer(group)

    assert consumer.isascii()
    assert not set(consumer) & set(" .*>/\\\t\r\n")
    assert names.group(consumer) == group


def test_a_group_whose_name_is_too_long_is_refused() -> None:
    with pytest.raises(ValueError, match="its name is too long"):
        Names(stream="postroom").consumer("ä" * 100)
