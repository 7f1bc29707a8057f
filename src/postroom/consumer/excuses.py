"""When an error that looks like an outage of the database is the message's own after all."""

_ENOUGH = 5


class Excuses:
    """Remembers how often a message was given back, uncounted, while others were committed.

    An error such as "database is locked" mostly says that the database is away, and then nobody
    gets on. Where one message meets it again and again while others are committed in between, it
    is likelier that its handler provokes it (by a second database, by a lock of its own).
    """

    def __init__(self) -> None:
        """Begin with nothing noticed."""
        self._commits = 0
        self._given: dict[str, tuple[int, int]] = {}

    def committed(self, message_id: str) -> None:
        """Note that this message got through."""
        self._commits += 1
        self._given.pop(message_id, None)

    def forget(self, message_id: str) -> None:
        """Note that this message is given up."""
        self._given.pop(message_id, None)

    def excuse(self, message_id: str) -> bool:
        """Return whether one more such error of this message is still nobody's fault."""
        times, seen = self._given.get(message_id, (0, -1))
        if seen != self._commits:
            times += 1
        self._given[message_id] = (times, self._commits)
        return times <= _ENOUGH
