"""Asking a pull consumer for messages: so many at once as there is room for."""

import json
from collections.abc import Callable

from postroom.brokers.nats.connection import NO_RESPONDERS, Connection
from postroom.brokers.nats.headers import parsed, readable
from postroom.brokers.nats.wire import Arrived

_SECOND = 1_000_000_000
_EXPIRES = 30
_HEARTBEAT = 5
_SILENCE = 2 * _HEARTBEAT + 1
"""Seconds without message or heartbeat after which a request counts as lost."""
_IDLE, _NOTHING, _EXPIRED = 100, 404, 408
_PENDING = b"Nats-Pending-Messages"
_OVER = ("batch completed", "message size exceeds")


class Pulls:
    """The requests that are not answered yet."""

    def __init__(
        self,
        connection: Connection,
        *,
        stream: str,
        consumer: str,
        inbox: str,
        prefetch: int,
        lost: Callable[[str], None],
    ) -> None:
        """Ask that consumer; answers come to `inbox`, and `lost` is told why nothing more comes."""
        self._connection = connection
        self._subject = f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{consumer}".encode()
        self._inbox = inbox.encode()
        self._prefetch = prefetch
        self._lost = lost
        self._asked = 0
        """Messages that were asked for and did not come yet."""
        self._heard_at = 0.0

    def ask(self, held: int, now: float) -> None:
        """Ask for what there is room for, where so many are held already."""
        room = self._prefetch - held - self._asked
        # Not for each message that is done, unless nothing is asked for.
        if room < 1 or (self._asked and room < self._prefetch // 4):
            return
        if not self._asked:
            self._heard_at = now
        self._asked += room
        question = {
            "batch": room,
            "expires": _EXPIRES * _SECOND,
            "idle_heartbeat": _HEARTBEAT * _SECOND,
        }
        data = json.dumps(question).encode()
        line = b"PUB %b %b %d\r\n" % (self._subject, self._inbox, len(data))
        self._connection.write(b"%b%b\r\n" % (line, data))

    def is_message(self, arrived: Arrived, now: float) -> bool:
        """Note an answer; say whether it is a message."""
        self._heard_at = now
        status = arrived.status
        if not status:
            # Under its own subject: to which request it belongs is not said.
            self._asked = max(self._asked - 1, 0)
            return True
        if status == _IDLE:
            return False
        self._asked = max(self._asked - _unanswered(arrived, self._asked), 0)
        words = readable(arrived.headers.partition(b"\r\n")[0][12:].strip())
        if status == NO_RESPONDERS:
            self._lost("its consumer does not exist, or has no leader")
        elif status not in {_NOTHING, _EXPIRED} and not words.lower().startswith(_OVER):
            self._lost(f"the server ended the request for messages: {words} ({status})")
        return False

    def check(self, now: float) -> None:
        """Tell where nothing was heard for too long."""
        if self._asked and now - self._heard_at > _SILENCE:
            self._lost("no sign of life from the consumer: no message and no heartbeat")


def _unanswered(arrived: Arrived, all_of_them: int) -> int:
    """Return how many messages of a request that ended did not come."""
    for name, value in parsed(arrived.headers):
        if name == _PENDING and value.isdigit():
            return int(value)
    return all_of_them
