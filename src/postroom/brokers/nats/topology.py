"""What has to exist in JetStream: a stream, a consumer for each group, dead letters, tries."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from urllib.parse import quote, unquote

from postroom._clock import check_span
from postroom.broker import TopologyPart
from postroom.brokers.nats.api import Api, taken
from postroom.brokers.nats.mapping import is_subject
from postroom.errors import SettingsError

_LONGEST_NAME = 255
_SECOND = 1_000_000_000
_NO_NAME = frozenset(" .*>/\\\t\r\n")


@dataclass(frozen=True, slots=True, kw_only=True)
class Names:
    """What everything is called."""

    stream: str

    def consumer(self, group: str) -> str:
        """Return the name of a group's consumer; ValueError where there can be none."""
        name = quote(group, safe="").replace(".", "%2E")
        if not name or len(name) > _LONGEST_NAME:
            raise ValueError(f"the group {group[:40]!r} cannot be a consumer: its name is too long")
        return name

    def group(self, consumer: str) -> str:
        """Return the group whose consumer has that name."""
        return unquote(consumer)

    def again(self, group: str) -> str:
        """Return the subject of what is put back for one group."""
        return f"{self.stream}.again.{self.consumer(group)}"

    @property
    def everything_again(self) -> str:
        """What is put back for any group."""
        return f"{self.stream}.again.>"

    @property
    def dead(self) -> str:
        """The stream of the dead letters."""
        return f"{self.stream}-dead"

    def letters(self, group: str | None) -> str:
        """Return the subject of a group's dead letters, or of all."""
        return f"{self.dead}.{'>' if group is None else self.consumer(group)}"

    @property
    def tries(self) -> str:
        """The stream in which failed attempts are counted."""
        return f"{self.stream}-tries"

    def tried(self, group: str, sequence: int) -> str:
        """Return the subject under which the failed attempts of one message are counted."""
        return f"{self.tries}.{self.consumer(group)}.{sequence}"


def check_stream_name(name: str) -> None:
    """Raise ValueError for what can be no stream's name."""
    if not name or len(name) > _LONGEST_NAME - len("-tries") or not _NO_NAME.isdisjoint(name):
        raise ValueError(
            f"stream {name[:40]!r} cannot be a name: no blanks, dots, *, > or slashes, at most "
            f"{_LONGEST_NAME - len('-tries')} characters"
        )


def _is_pattern(text: str) -> bool:
    """Whether a stream can take these subjects."""
    words = text.split(".")
    if words[-1] == ">":
        words.pop()
    return is_subject(".".join("x" if word == "*" else word for word in words) or "x")


@dataclass(frozen=True, slots=True, kw_only=True)
class Making:
    """How streams and consumers are made; None leaves it to the server, and to what is there."""

    replicas: int | None = None
    max_age: timedelta | None = None
    """Messages are deleted after so long, done or not."""
    duplicate_window: timedelta | None = None
    ack_wait: timedelta | None = None
    subjects: Sequence[str] = ()
    """What the stream takes besides the topics of the groups."""

    def __post_init__(self) -> None:
        """Raise ValueError for what could not work."""
        for what, span in (
            ("ack_wait", self.ack_wait),
            ("duplicate_window", self.duplicate_window),
        ):
            if span is not None:
                check_span(what, span, least=timedelta(seconds=0.1), most=timedelta(days=1))
        if self.max_age is not None:
            check_span("max_age", self.max_age, least=timedelta(seconds=1))
        if self.replicas is not None and self.replicas < 1:
            raise ValueError("replicas must be at least 1")
        for each in self.subjects:
            if not _is_pattern(each):
                raise ValueError(f"subjects: {each[:40]!r} cannot be a subject")

    def stream(self, names: Names, topics: Sequence[str]) -> dict[str, Any]:
        """Return the configuration of the stream of messages."""
        wanted = [names.everything_again, *self.subjects]
        wanted += [topic for topic in topics if not taken(wanted, topic)]
        config = self._stream(names.stream, wanted)
        if self.max_age is not None:
            config["max_age"] = _nanos(self.max_age)
        if self.duplicate_window is not None:
            config["duplicate_window"] = _nanos(self.duplicate_window)
        return config

    def dead(self, names: Names) -> dict[str, Any]:
        """Return the configuration of the stream of dead letters."""
        return self._stream(names.dead, [f"{names.dead}.>"])

    def tries(self, names: Names) -> dict[str, Any]:
        """Return the configuration of the stream of failed attempts: the last of each message."""
        made = self._stream(names.tries, [f"{names.tries}.>"])
        return {**made, "discard": "old", "max_msgs_per_subject": 1}

    def consumer(self, names: Names, group: str, topics: Sequence[str]) -> dict[str, Any]:
        """Return the configuration of a group's consumer."""
        config = {
            "durable_name": names.consumer(group),
            "deliver_policy": "all",
            "ack_policy": "explicit",
            "replay_policy": "instant",
            # How often is our own decision, and what waits for a retry must not stop the others.
            "max_deliver": -1,
            "max_ack_pending": -1,
            "filter_subjects": [names.again(group), *topics],
        }
        if self.ack_wait is not None:
            config["ack_wait"] = _nanos(self.ack_wait)
        return config

    def _stream(self, name: str, subjects: Sequence[str]) -> dict[str, Any]:
        config: dict[str, Any] = {
            "name": name,
            "subjects": list(subjects),
            "storage": "file",
            "retention": "limits",
            # A limit that somebody sets later is told to the publisher, who keeps the message.
            "discard": "new",
        }
        if self.replicas is not None:
            config["num_replicas"] = self.replicas
        return config


Groups = Mapping[str, Sequence[str]]


def parts(names: Names, making: Making, groups: Groups) -> list[TopologyPart]:
    """Return everything that these groups need. Raises ValueError for impossible names."""
    streams = (making.stream(names, _topics(groups)), making.dead(names), making.tries(names))
    found = [TopologyPart(kind="stream", name=one["name"], detail=_detail(one)) for one in streams]
    for group, topics in groups.items():
        config = making.consumer(names, group, topics)
        name = f"{names.stream} > {config['durable_name']}"
        found.append(TopologyPart(kind="consumer", name=name, detail=_detail(config)))
    return found


async def make(api: Api, names: Names, making: Making, groups: Groups) -> None:
    """Make what is missing of it; add missing subjects, and remove none.

    Raises SettingsError where something is made differently.
    """
    topics = _topics(groups)
    await _stream(api, making.stream(names, topics), topics)
    await _stream(api, making.dead(names), [f"{names.dead}.>"])
    await _stream(api, making.tries(names), [f"{names.tries}.>"])
    for group, wanted in groups.items():
        await _consumer(api, names, making.consumer(names, group, wanted))


async def _stream(api: Api, wanted: Mapping[str, Any], subjects: Sequence[str]) -> None:
    name = wanted["name"]
    found = await api.stream(name)
    if found is None:
        await api.make_stream(wanted)
        return
    config = found["config"]
    for option in ("num_replicas", "max_age", "duplicate_window", "max_msgs_per_subject"):
        if option in wanted and config.get(option) != wanted[option]:
            raise SettingsError(
                f"stream {name!r} is there, but made differently: {option} is "
                f"{config.get(option)}, not {wanted[option]}; change it or the settings"
            )
    ours = [each for each in wanted["subjects"] if each not in subjects]
    there = config.get("subjects") or []
    missing = [each for each in (*ours, *subjects) if not taken(there, each)]
    if missing:
        kept = [each for each in there if not taken(missing, each)]
        await api.change_stream({**config, "subjects": [*kept, *missing]})


async def _consumer(api: Api, names: Names, wanted: Mapping[str, Any]) -> None:
    found = await api.consumer(names.stream, wanted["durable_name"])
    if found is None:
        await api.make_consumer(names.stream, wanted)
        return
    config = found["config"]
    check_consumer(config)
    if "ack_wait" in wanted and config.get("ack_wait") != wanted["ack_wait"]:
        raise SettingsError(
            f"consumer {wanted['durable_name']!r} is there, but made differently: ack_wait is "
            f"{config.get('ack_wait')}, not {wanted['ack_wait']} ns; change it or the settings"
        )
    there = filters(config)
    missing = [each for each in wanted["filter_subjects"] if not taken(there, each)]
    if missing:
        kept = [each for each in there if not taken(missing, each)]
        changed = {name: value for name, value in config.items() if name != "filter_subject"}
        await api.make_consumer(names.stream, {**changed, "filter_subjects": [*kept, *missing]})


def check_consumer(config: Mapping[str, Any]) -> None:
    """Raise SettingsError for a consumer that would lose messages, or deliver none to us."""
    name = config.get("durable_name")
    cure = "delete it, and let `postroom topology --apply` make it"
    if config.get("deliver_subject"):
        raise SettingsError(f"consumer {name!r} pushes; {cure}")
    if config.get("ack_policy") != "explicit":
        raise SettingsError(f"consumer {name!r} does not wait for each acknowledgement; {cure}")
    if config.get("max_deliver", -1) > 0:
        raise SettingsError(
            f"consumer {name!r} drops a message after {config['max_deliver']} deliveries without "
            f"a word (max_deliver); {cure}"
        )


def filters(config: Mapping[str, Any]) -> list[str]:
    """Return the subjects that a consumer receives."""
    single = config.get("filter_subject")
    return [single] if single else list(config.get("filter_subjects") or [">"])


def _topics(groups: Groups) -> list[str]:
    found = list(dict.fromkeys(topic for topics in groups.values() for topic in topics))
    for topic in found:
        if not is_subject(topic):
            raise ValueError(f"the topic {topic[:40]!r} cannot be a subject of NATS")
    return found


def _detail(config: Mapping[str, Any]) -> str:
    told = (f"{name}={_told(value)}" for name, value in config.items() if "name" not in name)
    return ", ".join(told)


def _told(value: object) -> str:
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)


def _nanos(span: timedelta) -> int:
    return round(span.total_seconds() * _SECOND)
