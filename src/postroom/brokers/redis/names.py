"""What everything is called in Redis."""

from dataclasses import dataclass

GIVEN_BACK, LATER = b"postroom:given-back", b"postroom:later"
"""Who holds the entries of a group that nobody has in hand: to be taken at once, or when due."""


@dataclass(frozen=True, slots=True)
class Names:
    """The names of keys, and of what is in them; all begin with one prefix."""

    prefix: str

    def stream(self, topic: str) -> bytes:
        """Return the stream of a topic. Raises UnicodeEncodeError."""
        return f"{self.prefix}:{topic}".encode()

    def dead(self, group: str) -> bytes:
        """Return the stream of a group's dead letters."""
        return f"{self.prefix}.dead:{group}".encode()

    def delayed(self, group: str, topic: str) -> bytes:
        """Return the sorted set of the entries that wait for a retry, by when they are due."""
        return f"{self.prefix}.delayed:{_escaped(group)}:{topic}".encode()

    def active(self, group: str) -> bytes:
        """Return the key that names a group's one consumer that receives."""
        return f"{self.prefix}.active:{group}".encode()

    @property
    def topics(self) -> bytes:
        """The set of the topics that groups were made for."""
        return f"{self.prefix}.topics".encode()


def _escaped(group: str) -> str:
    """Return the group without colons, so that no two pairs have one name."""
    return group.replace("%", "%25").replace(":", "%3A")
