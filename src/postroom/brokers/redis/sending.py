"""Publishing: batches as transactions, so that no message of a key overtakes a refused one.

In a plain pipeline every command runs: where one is refused (memory runs out, a replica becomes
the primary) the next may pass. Between MULTI and EXEC the server checks its own state once for
all of them, before it runs any. What is left are refusals by a stream (none is there, the key is
something else), which say the same to each message of it; so a transaction has of each key
messages for one stream only.
"""

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from redis.exceptions import ResponseError

from postroom.brokers.redis import mapping
from postroom.brokers.redis.link import Broken, Link
from postroom.brokers.redis.names import Names
from postroom.brokers.redis.wire import (
    DISCARD,
    EXEC,
    MULTI,
    QUEUED,
    Reply,
    bulk,
    command,
    is_about_message,
    told,
)
from postroom.errors import (
    BrokerError,
    BrokerUnavailable,
    NotAttempted,
    OutcomeUnknown,
    RefusedForGood,
    RefusedForNow,
)
from postroom.message import Message

_CONFIRMING = 0.9
"""The part of what is left of the time in which replicas and disk have to confirm."""
_TOPICS = 10_000
_LARGEST = 512 * 1024 * 1024
"""What Redis takes as one value, unless told otherwise."""
_PROBING = 1000
"""Milliseconds in which replicas and disk have to answer a probe."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sending:
    """How messages are published."""

    window: int
    """Messages of a transaction."""
    limit: int
    """Bytes of a payload."""
    create: bool
    """Whether a stream that is missing is made."""
    maxlen: int | None
    """About how many entries a stream keeps."""
    replicas: int
    """How many replicas must have a message."""
    fsync: bool
    """Whether a message must be on disk."""

    def check(self) -> None:
        """Raise ValueError for what could not work."""
        if not 1 <= self.limit <= _LARGEST:
            raise ValueError(f"max_message_bytes must be from 1 to {_LARGEST}")
        if self.window < 1 or (self.maxlen is not None and self.maxlen < 1):
            raise ValueError("max_in_flight and maxlen must be at least 1")
        if self.replicas < 0:
            raise ValueError("replicas must be at least 0")

    @property
    def confirmed(self) -> bool:
        """Whether more is needed than the answer of the primary."""
        return self.fsync or self.replicas > 0

    def confirm(self, milliseconds: int) -> bytes:
        """Return the command that waits for it."""
        if self.fsync:
            return command("WAITAOF", 1, self.replicas, milliseconds)
        return command("WAIT", self.replicas, milliseconds)

    def missing(self, reply: Reply) -> str:
        """Return what is not confirmed; empty where everything is."""
        if isinstance(reply, ResponseError):
            return told(reply)
        disk, replicas = reply if isinstance(reply, list) else (1, reply)
        if self.fsync and not disk:
            return "it is not on the primary's disk yet"
        if replicas < self.replicas:
            return f"{replicas} of {self.replicas} replicas have it"
        return ""


class Outgoing(NamedTuple):
    """A message as a command, and its place in the batch."""

    place: int
    topic: str
    key: str | None
    data: bytes


class Publishing:
    """Publishes over one link."""

    def __init__(self, link: Link, names: Names, sending: Sending) -> None:
        """Send by these rules to the streams of these names."""
        self._link = link
        self._names = names
        self._sending = sending
        self._heads: dict[str, tuple[int, bytes]] = {}
        self._last = ""

    async def publish(self, messages: Sequence[Message], until: float) -> list[BrokerError | None]:
        """Send the messages and return one answer for each; none is sent after that time."""
        batch = Batch(len(messages))
        try:
            await self._link.ready(until)
        except BrokerUnavailable as error:
            batch.fail(error)
        todo = self._packed(messages, batch)
        while todo:
            part, todo = batch.divide(todo, self._sending.window)
            if not part:
                break
            self._last = part[-1].topic
            todo = [*await self._send(part, batch, until), *todo]
            todo.sort(key=lambda one: one.place)
        return batch.answers()

    async def probe(self) -> None:
        """Return once a publish has a chance. Raises BrokerUnavailable.

        Queues a message and takes it back: the server judges it as it would judge a real one.
        """
        count, head = self._head(self._last)
        entry = b"*%d\r\n%b" % (count + 2, head) + bulk(b"") * 2
        confirm = self._sending.confirm(_PROBING) if self._sending.confirmed else b""
        replies = await self._link.run(*(MULTI, entry, DISCARD), *((confirm,) if confirm else ()))
        for reply in replies[:3]:
            # Rights may be given for some streams only, and this is perhaps none of them.
            if isinstance(reply, ResponseError) and not is_about_message(reply):
                self._link.checked(reply)
        if confirm and (missing := self._sending.missing(replies[3])):
            raise BrokerUnavailable(f"{self._link.place} cannot confirm as asked: {missing}")

    def _packed(self, messages: Sequence[Message], batch: "Batch") -> list[Outgoing]:
        found = []
        for place, message in enumerate(messages):
            if batch.stops(place, message.key):
                batch.refuse(place, message.key, _BEHIND)
                continue
            try:
                found.append(self._pack(place, message))
            except RefusedForGood as error:
                batch.refuse(place, message.key, error)
        return found

    def _pack(self, place: int, message: Message) -> Outgoing:
        size = len(message.payload)
        if size > self._sending.limit:
            raise RefusedForGood(
                f"its payload of {size} bytes is over the limit of {self._sending.limit}"
            )
        count, fields = mapping.packed(message, self._link.largest)
        before, head = self._heads.get(message.topic) or self._head(message.topic)
        return Outgoing(
            place, message.topic, message.key, b"*%d\r\n%b%b" % (before + count, head, fields)
        )

    def _head(self, topic: str) -> tuple[int, bytes]:
        """Return how many parts come before the fields, and these parts."""
        try:
            parts: list[bytes] = [b"XADD", self._names.stream(topic)]
        except UnicodeEncodeError as error:
            raise RefusedForGood(
                "its topic is not valid Unicode (an unpaired surrogate)"
            ) from error
        if not self._sending.create:
            parts.append(b"NOMKSTREAM")
        if self._sending.maxlen is not None:
            parts += (b"MAXLEN", b"~", b"%d" % self._sending.maxlen)
        parts.append(b"*")
        if len(self._heads) >= _TOPICS:
            self._heads.clear()
        found = self._heads[topic] = len(parts), b"".join(map(bulk, parts))
        return found

    async def _send(self, part: list[Outgoing], batch: "Batch", until: float) -> list[Outgoing]:
        """Send a transaction and note its answers; return what may be tried again."""
        left = until - asyncio.get_running_loop().time()
        data, count = [MULTI, *(one.data for one in part), EXEC], len(part) + 2
        if self._sending.confirmed:
            data.append(self._sending.confirm(max(1, int(left * 1000 * _CONFIRMING))))
            count += 1
        try:
            replies = await self._link.exchange(b"".join(data), count, until=until)
        except BrokerUnavailable as error:
            batch.fail(error)
            return []
        except Broken as broken:
            return self._broken(part, broken, batch)
        return self._judge(part, replies, batch)

    def _broken(self, part: list[Outgoing], broken: Broken, batch: "Batch") -> list[Outgoing]:
        replies = broken.replies
        done = len(part) + 2
        if len(replies) >= done:
            # It is there; only replicas or disk have not confirmed it.
            return self._judge(part, [*replies[:done], ResponseError(broken.reason)], batch)
        if broken.refused:
            batch.fail(BrokerUnavailable(f"{self._link.place}: {broken.reason}"))
            return []
        for one, reply in zip(part, replies[1:], strict=False):
            if isinstance(reply, ResponseError) and "Protocol error" in str(reply):
                # The server has read no further, and EXEC comes last.
                batch.refuse(one.place, one.key, RefusedForGood(f"the server said: {told(reply)}"))
                return [other for other in part if other is not one]
        batch.fail(
            BrokerUnavailable(f"the connection ended before: {broken.reason}"),
            unknown=part,
            why=OutcomeUnknown(f"{self._link.place}: {broken.reason}", timed_out=broken.timed_out),
        )
        return []

    def _judge(self, part: list[Outgoing], replies: list[Reply], batch: "Batch") -> list[Outgoing]:
        last = len(part) + 1
        queued, executed, confirms = replies[1:last], replies[last], replies[last + 1 :]
        if isinstance(executed, list):
            missing = self._sending.missing(confirms[0]) if confirms else ""
            for one, reply in zip(part, executed, strict=True):
                self._answer(one, reply, batch, missing)
            if missing:
                batch.fail(BrokerUnavailable(f"{self._link.place} did not confirm: {missing}"))
            return []
        if isinstance(replies[0], ResponseError):
            batch.fail(self._unavailable(replies[0]))  # no transaction began
        return self._discarded(part, queued, executed, batch)

    def _answer(self, one: Outgoing, reply: Reply, batch: "Batch", missing: str) -> None:
        if isinstance(reply, bytes) and b"-" in reply:
            batch.sent(one, missing)
        elif reply is None:
            stream = self._names.stream(one.topic).decode()
            batch.refuse(
                one.place,
                one.key,
                RefusedForNow(
                    f"there is no stream {stream!r}: no group receives its topic; "
                    "`postroom topology --apply` makes it"
                ),
            )
        else:
            said = told(reply) if isinstance(reply, ResponseError) else f"{reply!r}"
            batch.refuse(one.place, one.key, RefusedForNow(f"the server said: {said}"))

    def _discarded(
        self, part: list[Outgoing], queued: Iterable[Reply], executed: Reply, batch: "Batch"
    ) -> list[Outgoing]:
        """Judge a transaction that was not carried out: nothing of it is there."""
        again: list[Outgoing] = []
        for one, reply in zip(part, queued, strict=True):
            if reply == QUEUED:
                again.append(one)
            elif isinstance(reply, ResponseError) and is_about_message(reply):
                batch.refuse(one.place, one.key, RefusedForNow(f"the server said: {told(reply)}"))
            elif isinstance(reply, bytes):
                batch.sent(one, "")  # there was no transaction
            else:
                batch.fail(self._unavailable(reply))
                return []
        if len(again) == len(part):
            batch.fail(self._unavailable(executed))
            return []
        return again

    def _unavailable(self, reply: Reply) -> BrokerUnavailable:
        said = told(reply) if isinstance(reply, ResponseError) else f"it answered {reply!r}"
        return BrokerUnavailable(f"{self._link.place}: {said}")


_BEHIND = NotAttempted("an earlier message of its key was not sent")


class Batch:
    """The answers of one call, as far as they are known."""

    def __init__(self, size: int) -> None:
        """Begin with none."""
        self._size = size
        self._answers: dict[int, BrokerError | None] = {}
        self._stopped: dict[str, int] = {}
        """Keys, with the place of the first message that was refused."""
        self._failure: BrokerError | None = None

    def stops(self, place: int, key: str | None) -> bool:
        """Say whether an earlier message of this key was refused."""
        return key is not None and self._stopped.get(key, place) < place

    def divide(
        self, todo: Iterable[Outgoing], window: int
    ) -> tuple[list[Outgoing], list[Outgoing]]:
        """Return what can go into one transaction, and the rest; nothing after a failure."""
        part: list[Outgoing] = []
        rest: list[Outgoing] = []
        topics: dict[str, str] = {}
        waiting: set[str] = set()
        if self._failure is not None:
            return [], []
        for one in todo:
            if self.stops(one.place, one.key):
                self.refuse(one.place, one.key, _BEHIND)
                continue
            full = len(part) >= window
            if one.key is not None:
                first = topics.setdefault(one.key, one.topic)
                if full or one.key in waiting or first != one.topic:
                    waiting.add(one.key)
                    rest.append(one)
                    continue
            (rest if full else part).append(one)
        return part, rest

    def sent(self, one: Outgoing, missing: str) -> None:
        """Note a message that is there; `missing` says which confirmation is not."""
        self._answers[one.place] = (
            OutcomeUnknown(f"it is stored, but {missing}", timed_out=True) if missing else None
        )

    def refuse(self, place: int, key: str | None, error: BrokerError) -> None:
        """Note a message that is not there, and will not be; its key stops."""
        self._answers[place] = _BEHIND if self.stops(place, key) else error
        if key is not None:
            self._stopped[key] = min(place, self._stopped.get(key, place))

    def fail(
        self,
        error: BrokerError,
        *,
        unknown: Iterable[Outgoing] = (),
        why: BrokerError | None = None,
    ) -> None:
        """Give this answer to all that have none, and another to some."""
        self._failure = error
        for one in unknown:
            self._answers[one.place] = why

    def answers(self) -> list[BrokerError | None]:
        """Return one answer for each message."""
        return [self._answers.get(place, self._failure) for place in range(self._size)]
