"""Questions to JetStream: streams, consumers, single messages."""

import json
from base64 import b64decode
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

from postroom.brokers.nats.connection import Connection, NobodyAnswers
from postroom.brokers.nats.mapping import Packed
from postroom.brokers.nats.refusals import Answers
from postroom.errors import BrokerUnavailable, SettingsError, printable

APPLY = "`postroom topology --apply` makes what is missing"
NO_STREAM, NO_CONSUMER, NO_MESSAGE = 10059, 10014, 10037
DIFFERENT = 10058
_BAD_REQUEST = 400


class Refused(BrokerUnavailable):
    """JetStream answered with an error."""

    def __init__(self, what: str, error: Mapping[str, Any]) -> None:
        """Keep the number by which errors are told apart."""
        self.number = error.get("err_code")
        self.code = error.get("code")
        words = printable(str(error.get("description")))
        super().__init__(f"{what}: {words} ({self.code}, {self.number})")


class Stored(NamedTuple):
    """A message as it lies in a stream."""

    subject: bytes
    sequence: int
    headers: bytes
    data: bytes
    at: datetime


class Api:
    """Asks over one connection, each time for so long."""

    def __init__(self, connection: Connection, *, timeout: float) -> None:
        """Wait for answers so many seconds."""
        self.connection = connection
        self._timeout = timeout

    async def ask(self, what: str, question: object = None) -> dict[str, Any]:
        """Return the answer. Raises Refused, and BrokerUnavailable where there is none."""
        data = b"" if question is None else json.dumps(question).encode()
        subject = f"$JS.API.{what}"
        try:
            arrived = await self.connection.request(subject, data, timeout=self._timeout)
        except NobodyAnswers as error:
            raise BrokerUnavailable(
                "JetStream does not answer: it is not enabled for this account, or has no leader"
            ) from error
        try:
            answer = json.loads(arrived.data)
        except ValueError as error:
            raise BrokerUnavailable(f"the answer to {subject} is no JSON") from error
        if not isinstance(answer, dict):
            raise BrokerUnavailable(f"the answer to {subject} is no object")
        if isinstance(told := answer.get("error"), dict):
            raise Refused(what, told)
        return answer

    async def store(self, message: Packed, stream: str) -> None:
        """Publish one message. Raises BrokerUnavailable where that stream does not confirm it."""
        try:
            arrived = await self.connection.deliver(message, self._timeout)
        except NobodyAnswers as error:
            raise BrokerUnavailable(f"no stream takes {message.subject!r}; {APPLY}") from error
        refusal = Answers(stream).read(arrived, message.subject)
        if refusal is not None:
            raise BrokerUnavailable(refusal.reason) from refusal

    async def stream(self, name: str, *, subjects: str | None = None) -> dict[str, Any] | None:
        """Return a stream's configuration and state, None where there is none of that name.

        With `subjects` the state counts the messages of each subject that matches.
        """
        question = None if subjects is None else {"subjects_filter": subjects}
        return await self._known(f"STREAM.INFO.{name}", question, NO_STREAM)

    async def make_stream(self, config: Mapping[str, Any]) -> None:
        """Make a stream. Raises SettingsError for what the server does not make."""
        await self._make(f"STREAM.CREATE.{config['name']}", config, "stream", config["name"])

    async def change_stream(self, config: Mapping[str, Any]) -> None:
        """Change a stream. Raises SettingsError for what the server does not change."""
        await self._make(f"STREAM.UPDATE.{config['name']}", config, "stream", config["name"])

    async def consumer(self, stream: str, name: str) -> dict[str, Any] | None:
        """Return a consumer's configuration and state, None where there is none."""
        return await self._known(f"CONSUMER.INFO.{stream}.{name}", None, NO_CONSUMER, NO_STREAM)

    async def make_consumer(self, stream: str, config: Mapping[str, Any]) -> None:
        """Make a durable consumer, or change it. Raises SettingsError."""
        name = config["durable_name"]
        question = {"stream_name": stream, "config": {**config, "name": name}}
        await self._make(f"CONSUMER.CREATE.{stream}.{name}", question, "consumer", name)

    async def consumers(self, stream: str) -> list[dict[str, Any]]:
        """Return all consumers of a stream, by name; none where there is no stream."""
        found: list[dict[str, Any]] = []
        while True:
            question = {"offset": len(found)}
            page = await self._known(f"CONSUMER.LIST.{stream}", question, NO_STREAM)
            more = (page or {}).get("consumers") or []
            found += more
            if not more or len(found) >= (page or {}).get("total", 0):
                return sorted(found, key=lambda one: str(one.get("name")))

    async def delete_consumer(self, stream: str, name: str) -> None:
        """Delete a consumer, if there is one."""
        await self._known(f"CONSUMER.DELETE.{stream}.{name}", None, NO_CONSUMER, NO_STREAM)

    async def message(self, stream: str, question: Mapping[str, object]) -> Stored | None:
        """Return a stored message, None where there is none (or no stream).

        The question is `seq`, `seq` with `next_by_subj`, or `last_by_subj`.
        """
        what = f"STREAM.MSG.GET.{stream}"
        answer = await self._known(what, dict(question), NO_MESSAGE, NO_STREAM)
        if answer is None:
            return None
        told = answer["message"]
        return Stored(
            subject=str(told["subject"]).encode(),
            sequence=int(told["seq"]),
            headers=b64decode(told.get("hdrs") or ""),
            data=b64decode(told.get("data") or ""),
            at=moment(str(told["time"])),
        )

    async def delete_message(self, stream: str, sequence: int) -> bool:
        """Delete one message; False where it was not there."""
        what = f"STREAM.MSG.DELETE.{stream}"
        question = {"seq": sequence, "no_erase": True}
        try:
            await self.ask(what, question)
        except Refused as refused:
            if refused.number in {NO_MESSAGE, NO_STREAM} or refused.code == _BAD_REQUEST:
                return False
            raise
        return True

    async def purge(self, stream: str, subject: str) -> int:
        """Delete what a stream has of a subject; return how many."""
        answer = await self._known(f"STREAM.PURGE.{stream}", {"filter": subject}, NO_STREAM)
        return int((answer or {}).get("purged", 0))

    async def _known(self, what: str, question: object, *numbers: int) -> dict[str, Any] | None:
        try:
            return await self.ask(what, question)
        except Refused as refused:
            if refused.number in numbers:
                return None
            raise

    async def _make(self, what: str, question: object, kind: str, name: object) -> None:
        try:
            await self.ask(what, question)
        except Refused as refused:
            if refused.code == _BAD_REQUEST:
                raise SettingsError(
                    f"{kind} {name!r} cannot be made: {refused.reason}"
                ) from refused
            raise


def moment(text: str) -> datetime:
    """Return a moment as JetStream writes it."""
    whole, _, rest = text.removesuffix("Z").partition(".")
    return datetime.fromisoformat(f"{whole}.{rest[:6]:0<6}").replace(tzinfo=UTC)


def covers(pattern: str, subject: str) -> bool:
    """Whether a pattern of subjects takes everything of that subject, itself perhaps a pattern."""
    ours, theirs = pattern.split("."), subject.split(".")
    for place, word in enumerate(ours):
        if word == ">":
            return len(theirs) > place
        if place >= len(theirs) or theirs[place] == ">":
            return False
        if word not in {"*", theirs[place]}:
            return False
    return len(ours) == len(theirs)


def taken(patterns: Sequence[str], subject: str) -> bool:
    """Whether any of them takes the subject."""
    return any(covers(pattern, subject) for pattern in patterns)
