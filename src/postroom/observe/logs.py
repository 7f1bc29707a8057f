"""Structured logs as an observer: one line per event, and one per window for a flood of them."""

import json
import logging
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime, timedelta
from threading import Lock
from typing import Literal, TextIO

from postroom import events
from postroom._redact import redacted
from postroom.lane import Lane
from postroom.message import Entry, Message

Field = str | int | float | bool | None | Sequence[str]

_DEBUG, _INFO, _WARNING, _ERROR = logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR

_LEVELS: Mapping[type[events.Event], int] = {
    events.RelayStarted: _INFO,
    events.RelayStopped: _INFO,
    events.LanesTaken: _INFO,
    events.LanesGiven: _INFO,
    events.LanesLost: _WARNING,
    events.Retried: _WARNING,
    events.Dead: _ERROR,
    events.Suspected: _WARNING,
    events.SettleRefused: _WARNING,
    events.LaneMismatch: _ERROR,
    events.Paused: _WARNING,
    events.Resumed: _INFO,
    events.StoreLost: _WARNING,
    events.StoreBack: _INFO,
    events.ConsumerStarted: _INFO,
    events.ConsumerStopped: _INFO,
    events.HandlerFailed: _WARNING,
    events.DeadLettered: _ERROR,
    events.DeadLetterFailed: _ERROR,
    events.AcknowledgeFailed: _WARNING,
    events.ConsumerPaused: _WARNING,
    events.ConsumerResumed: _INFO,
    events.DeskActed: _INFO,
}
"""Events that are missing here happen for every message: they are for debugging."""

_SUMMED: Mapping[type[events.Event], str] = {
    events.Sent: "sent",
    events.Held: "held",
    events.Committed: "committed",
    events.Duplicate: "duplicate",
}
"""Events that are counted, and told once per window."""

_LAST = (events.RelayStopped, events.ConsumerStopped)


@dataclass(frozen=True, slots=True)
class Line:
    """One line: the event's name and its fields. Its text is `event=sent count=20`."""

    event: str
    fields: Mapping[str, Field]

    def __str__(self) -> str:
        """Return the fields as `key=value`."""
        return " ".join(f"{key}={_quoted(value)}" for key, value in self.document().items())

    def document(self) -> dict[str, Field]:
        """Return the line as one flat object."""
        return {"event": self.event, **self.fields}


@dataclass(slots=True)
class _Window:
    """What was told of one kind of event since the window began, and what was not."""

    began: float
    told: int = 0
    untold: int = 0
    level: int = _INFO


@dataclass(slots=True)
class _Sums:
    began: float
    by_group: dict[tuple[tuple[str, Field], ...], int] = field(default_factory=dict)


class LogObserver:
    """Writes events to a logger of the standard library; give it to whatever takes observers.

    Lifecycle is INFO, trouble WARNING, a message given up ERROR. What happens to every message
    (sent, committed, held, duplicate) is DEBUG, and one INFO line per window says how many.
    Of everything else at most `burst` lines of a kind are written per window, then one that
    says how many more there were. Payloads, headers and passwords are never written.

        postroom = Postroom(settings, observers=[LogObserver()])
    """

    def __init__(
        self,
        logger: logging.Logger | None = None,
        *,
        window: timedelta = timedelta(seconds=10),
        burst: int = 20,
        elapsed: Callable[[], float] = time.monotonic,
    ) -> None:
        """Write to the given logger, or to the one named `postroom`."""
        self._logger = logger or logging.getLogger("postroom")
        self._window = window.total_seconds()
        self._burst = burst
        self._elapsed = elapsed
        self._lock = Lock()
        self._windows: dict[type[events.Event], _Window] = {}
        self._sums: dict[type[events.Event], _Sums] = {}

    def __call__(self, event: events.Event) -> None:
        """Write the event, or count it."""
        kind = type(event)
        with self._lock:
            self._tell_due()
            if kind in _SUMMED:
                self._add(event)
            level = _LEVELS.get(kind, _DEBUG)
            if self._logger.isEnabledFor(level) and self._allowed(kind, level):
                raised = getattr(event, "exception", None)
                self._logger.log(level, Line(name_of(kind), fields_of(event)), exc_info=raised)
            if isinstance(event, _LAST):
                self._tell_due(everything=True)

    def tick(self) -> None:
        """Write the sums of windows that are over; for loops that run when nothing happens."""
        with self._lock:
            self._tell_due()

    def flush(self) -> None:
        """Write all sums now, as before the end of the process."""
        with self._lock:
            self._tell_due(everything=True)

    def _add(self, event: events.Event) -> None:
        group, count = _group_of(event)
        sums = self._sums.setdefault(type(event), _Sums(self._elapsed()))
        sums.by_group[group] = sums.by_group.get(group, 0) + count

    def _allowed(self, kind: type[events.Event], level: int) -> bool:
        if level == _DEBUG:
            return True
        window = self._windows.setdefault(kind, _Window(self._elapsed(), level=level))
        if window.told < self._burst:
            window.told += 1
            return True
        window.untold += 1
        return False

    def _tell_due(self, *, everything: bool = False) -> None:
        now = self._elapsed()
        for kind, sums in list(self._sums.items()):
            if everything or now - sums.began >= self._window:
                del self._sums[kind]
                self._tell_sums(_SUMMED[kind], sums, now - sums.began)
        for kind, window in list(self._windows.items()):
            if everything or now - window.began >= self._window:
                del self._windows[kind]
                if window.untold:
                    more = {"more": window.untold, "seconds": round(now - window.began, 1)}
                    self._logger.log(window.level, Line(name_of(kind), more))

    def _tell_sums(self, name: str, sums: _Sums, seconds: float) -> None:
        for group, count in sums.by_group.items():
            told = {**dict(group), "count": count, "seconds": round(seconds, 1)}
            self._logger.log(_INFO, Line(name, told))


def handler(
    stream: TextIO | None = None, *, style: Literal["logfmt", "json"] = "logfmt"
) -> logging.Handler:
    """Return a handler that writes each record as one line of `key=value`, or of JSON.

    It takes records of other loggers too, so that a process has one format.
    """
    made = logging.StreamHandler(stream)
    made.setFormatter(_Formatter(json_lines=style == "json"))
    return made


class _Formatter(logging.Formatter):
    def __init__(self, *, json_lines: bool) -> None:
        super().__init__()
        self._json_lines = json_lines

    def format(self, record: logging.LogRecord) -> str:
        document: dict[str, Field] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
        }
        if isinstance(record.msg, Line):
            document |= record.msg.document()
        else:
            document |= {"logger": record.name, "message": redacted(record.getMessage())}
        if record.exc_info:
            document["exception"] = redacted(self.formatException(record.exc_info))
        if self._json_lines:
            return _encodable(json.dumps(document, ensure_ascii=False))
        return " ".join(f"{key}={_quoted(value)}" for key, value in document.items())


def name_of(kind: type[events.Event]) -> str:
    """Return the name under which an event is logged: `LanesTaken` is `lanes-taken`."""
    return re.sub(r"(?<!^)(?=[A-Z])", "-", kind.__name__).lower()


def fields_of(event: events.Event) -> dict[str, Field]:
    """Return an event's fields as plain values, without payloads, headers and passwords."""
    found: dict[str, Field] = {}
    for each in fields(event):
        if each.name != "exception":  # the logging module writes it, with its traceback
            found |= _plain(each.name, getattr(event, each.name))
    return found


def _plain(name: str, value: object) -> dict[str, Field]:
    plain: dict[str, Field]
    match value:
        case Entry(message=message, seq=seq, route=route, attempts=attempts):
            plain = _plain("message", message)
            plain |= {"seq": seq, "route": route, "attempts": attempts}
        case Message(id=message_id, type=type_name, key=key):
            plain = {"id": message_id, "type": type_name}
            plain |= {} if key is None else {"key": key}
        case tuple():
            plain = _many(name, value)
        case timedelta():
            plain = {name: round(value.total_seconds(), 3)}
        case float():
            plain = {name: round(value, 6)}
        case str():
            plain = {name: redacted(value)}
        case bool() | int() | None:
            plain = {name: value}
        case _:
            plain = {name: redacted(str(value))}
    return plain


def _many(name: str, values: tuple[object, ...]) -> dict[str, Field]:
    lanes = [each for each in values if isinstance(each, Lane)]
    if lanes:
        return {name: len(values), "routes": sorted({lane.route for lane in lanes})}
    texts = [each for each in values if isinstance(each, str)]
    return {name: texts} if texts else {name: len(values)}


def _group_of(event: events.Event) -> tuple[tuple[tuple[str, Field], ...], int]:
    match event:
        case events.Sent(entry=entry):
            return (("route", entry.route),), 1
        case events.Held(route=route, count=count):
            return (("route", route),), count
        case events.Committed(consumer=consumer) | events.Duplicate(consumer=consumer):
            return (("consumer", consumer),), 1
        case _:
            return (), 1


def _quoted(value: Field) -> str:
    if isinstance(value, str):
        plain = _PLAIN.fullmatch(value)
        return value if plain else _encodable(json.dumps(value, ensure_ascii=False))
    if isinstance(value, Iterable):
        return _quoted(",".join(value))
    return json.dumps(value)


def _encodable(text: str) -> str:
    """An error's text may hold lone surrogates, which no stream takes."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


_PLAIN = re.compile(r"[^\s\"=\\\x00-\x1f\x7f-\x9f\ud800-\udfff]+")
