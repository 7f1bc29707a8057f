"""Logs as an observer: a line per event, a line per window for floods, and no secrets."""

import io
import json
import logging
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from datetime import timedelta
from typing import Literal

import pytest

from postroom import events
from postroom.lane import Lane
from postroom.message import Entry, Message, State
from postroom.observe.logs import LogObserver, handler, name_of

MESSAGE = Message(
    type="shop.order-placed",
    payload=b'{"card": "4111"}',
    id="0197a0b2-7c1e-7d55-8f0e-2f1f5b6c7d8e",
    key="order-7",
    headers={"authorization": "Bearer 4111"},
)
ENTRY = Entry(seq=5, route="default", lane=1, state=State.READY, message=MESSAGE, attempts=2)


class Written:
    """A logger of its own, what it wrote, and a clock turned by hand."""

    def __init__(self, style: Literal["logfmt", "json"], level: int) -> None:
        self.stream = io.StringIO()
        self.now = 0.0
        self.logger = logging.Logger("test", level)  # noqa: LOG001 - of this test alone
        self.logger.addHandler(handler(self.stream, style=style))
        self.observer = LogObserver(self.logger, burst=3, elapsed=lambda: self.now)

    @property
    def lines(self) -> list[str]:
        """Each line without its time."""
        return [line.partition(" ")[2] for line in self.stream.getvalue().splitlines()]


@pytest.fixture
def written() -> Written:
    return Written("logfmt", logging.INFO)


def kinds() -> Iterator[type[events.Event]]:
    for kind in vars(events).values():
        if isinstance(kind, type) and issubclass(kind, events.Event) and kind is not events.Event:
            yield kind


def made(kind: type[events.Event]) -> events.Event:
    """Return an event of this kind with something in every field."""
    values: dict[str, object] = {
        "entry": ENTRY,
        "entries": (ENTRY,),
        "message": MESSAGE,
        "lanes": (Lane("default", 1, 1),),
        "delay": timedelta(seconds=1),
        "after": timedelta(seconds=1),
        "error": "lost amqp://ann:s3cr3t@host",
        "topics": ("a", "b"),
        "blocks": True,
        "seconds": 0.5,
    }
    numbers = ("confirmed", "count", "due", "scheduled", "freed", "expected", "attempt")
    values |= dict.fromkeys(numbers, 3)
    return kind(**{each.name: values.get(each.name, "name") for each in fields(kind)})


def test_an_event_is_one_line_of_keys_and_values(written: Written) -> None:
    written.observer(
        events.Retried(entry=ENTRY, delay=timedelta(seconds=1.5), error="no stream\n for it")
    )

    assert written.lines[0] == (
        "level=warning event=retried id=0197a0b2-7c1e-7d55-8f0e-2f1f5b6c7d8e "
        "type=shop.order-placed key=order-7 seq=5 route=default attempts=2 delay=1.5 "
        r'error="no stream\n for it"'
    )


def test_json_lines_hold_the_same() -> None:
    written = Written("json", logging.INFO)

    written.observer(events.Dead(entry=ENTRY, error="too large", blocks=True))

    line = json.loads(written.stream.getvalue())
    assert line["level"] == "error"
    assert (line["event"], line["key"], line["blocks"]) == ("dead", "order-7", True)


@pytest.mark.parametrize("style", ["logfmt", "json"])
@pytest.mark.parametrize("kind", list(kinds()), ids=name_of)
def test_every_event_can_be_written(
    kind: type[events.Event], style: Literal["logfmt", "json"]
) -> None:
    """Also events that come later: each is one line, without payload, headers and passwords."""
    written = Written(style, logging.DEBUG)

    written.observer(made(kind))

    text = written.stream.getvalue()
    assert name_of(kind) in text
    assert is_dataclass(kind)
    assert "s3cr3t" not in text
    assert "4111" not in text


def test_a_flood_is_summed_up_once_per_window(written: Written) -> None:
    for _ in range(1000):
        written.observer(events.Sent(entry=ENTRY))
    written.observer(events.Committed(consumer="billing", message=MESSAGE, seconds=0.1))
    assert written.lines == []

    written.now = 10.0
    written.observer.tick()

    assert written.lines == [
        "level=info event=sent route=default count=1000 seconds=10.0",
        "level=info event=committed consumer=billing count=1 seconds=10.0",
    ]


def test_sums_are_told_before_the_end(written: Written) -> None:
    written.observer(events.Sent(entry=ENTRY))
    written.observer(events.RelayStopped(relay="a"))

    assert [line.split()[1] for line in written.lines] == ["event=relay-stopped", "event=sent"]


def test_each_message_is_told_only_for_debugging() -> None:
    written = Written("logfmt", logging.DEBUG)

    for _ in range(10):
        written.observer(events.Sent(entry=ENTRY))

    assert sum("level=debug event=sent" in line for line in written.lines) == 10


def test_a_burst_of_trouble_is_cut_and_counted(written: Written) -> None:
    """A thousand failing handlers must not drown the line that says why."""
    for _ in range(1000):
        written.observer(
            events.HandlerFailed(
                consumer="billing", message=MESSAGE, error="no", attempt=1, delay=timedelta(1)
            )
        )
    written.now = 10.0
    written.observer(events.Paused(route="default", error="no", delay=timedelta(seconds=1)))

    assert [line.split()[1] for line in written.lines] == [
        *["event=handler-failed"] * 4,
        "event=paused",
    ]
    assert written.lines[3] == "level=warning event=handler-failed more=997 seconds=10.0"


def test_a_new_window_tells_again(written: Written) -> None:
    for second in range(0, 100, 10):
        written.now = second
        written.observer(events.Paused(route="a", error="no", delay=timedelta(seconds=1)))

    assert len(written.lines) == 10


def test_text_that_no_stream_takes_is_escaped() -> None:
    """Errors of users hold anything; saying so must not fail."""
    for style in ("logfmt", "json"):
        raw = io.BytesIO()
        logger = logging.Logger("test")  # noqa: LOG001 - of this test alone
        stream = io.TextIOWrapper(raw, encoding="utf-8", write_through=True)
        logger.addHandler(handler(stream, style=style))

        LogObserver(logger)(events.Dead(entry=ENTRY, error="\ud800 \x00 \x1b[31m é", blocks=False))

        assert raw.getvalue().count(b"\n") == 1
        assert b"\x1b" not in raw.getvalue()
        assert "é".encode() in raw.getvalue()


def test_records_of_others_have_the_same_form() -> None:
    written = Written("logfmt", logging.INFO)

    error = RuntimeError("at amqp://ann:s3cr3t@host")
    written.logger.error("observer %r failed", "x", exc_info=error)

    (line,) = written.lines
    assert line.startswith("level=error logger=test message=\"observer 'x' failed\" exception=")
    assert "s3cr3t" not in line
