"""Messages of a batch as frames, or why one never can be."""

import time
from collections.abc import Sequence

from postroom.brokers.rabbitmq import frames, mapping
from postroom.brokers.rabbitmq.confirms import Outgoing
from postroom.brokers.rabbitmq.mapping import Copy
from postroom.errors import RefusedForGood
from postroom.message import Message

_TOPICS = 10_000


class Packer:
    """Packs for one exchange; what is the same for every message of a topic is kept."""

    def __init__(self, exchange: str, limit: int) -> None:
        """Refuse payloads over the limit."""
        self._exchange = exchange
        self._limit = limit
        self._methods: dict[tuple[int, str], bytes] = {}

    def pack(
        self, messages: Sequence[Message], *, channel: int, most: int
    ) -> list[Outgoing | RefusedForGood]:
        """Return each as frames for that channel, none of them larger than `most`."""
        stamp = frames.LONGLONG.pack(int(time.time()))
        return [self._packed(each, channel, stamp, most) for each in messages]

    def _packed(
        self, message: Message, channel: int, stamp: bytes, most: int
    ) -> Outgoing | RefusedForGood:
        payload, topic = message.payload, message.topic
        if len(payload) > self._limit:
            return RefusedForGood(
                f"its payload of {len(payload)} bytes is over the limit of {self._limit}"
            )
        try:
            flags, properties = mapping.properties_of(message, stamp)
            method = self._methods.get((channel, topic)) or self._method(channel, topic)
        except RefusedForGood as error:
            return error
        try:
            data = frames.message_frames(method, channel, properties, flags, payload, most)
        except ValueError:
            return RefusedForGood(f"its headers do not fit into one frame of {most} bytes")
        return Outgoing(data, message.id, topic)

    def _method(self, channel: int, topic: str) -> bytes:
        try:
            found = frames.publish_method(channel, self._exchange, topic, mandatory=True)
        except UnicodeEncodeError as error:
            raise RefusedForGood(
                "its topic is not valid Unicode (an unpaired surrogate)"
            ) from error
        except ValueError as error:
            raise RefusedForGood(f"its topic {error}") from error
        if len(self._methods) >= _TOPICS:
            self._methods.clear()
        self._methods[channel, topic] = found
        return found


def packed_copy(
    copy: Copy, *, exchange: str, routing_key: str, channel: int, most: int
) -> Outgoing | None:
    """Return a copy as frames; None where its properties do not fit into one."""
    method = frames.publish_method(channel, exchange, routing_key, mandatory=True)
    try:
        data = frames.message_frames(
            method, channel, (copy.properties,), copy.flags, copy.body, most
        )
    except ValueError:
        return None
    return Outgoing(data, copy.id, routing_key)
