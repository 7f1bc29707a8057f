"""Suspects: messages that may be what ends the broker's connection.

When a connection is lost after sending, nobody knows which of the messages beside each other
ended it, if one did. After two unknown outcomes in a row a message is sent alone. It is
convicted (refused for now) only on evidence: the broker closed with an error reply to it, or the
connection was lost on it alone, while probes without it held before and after.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from postroom.errors import OutcomeUnknown
from postroom.message import Entry

_STRIKES = 2
_STRIKES_IN_COMPANY = 5


@dataclass(slots=True)
class _Record:
    unknown: int = 0
    strikes: int = 0
    tried: int = 0


class Suspects:
    """Remembers unknown outcomes by seq, for as long as this relay lives."""

    def __init__(self, after: int) -> None:
        """Suspect a message after that many unknown outcomes in a row."""
        self._after = after
        self._records: dict[int, _Record] = {}
        self._failed_alone: set[int] = set()
        self._turn = 0

    def __contains__(self, seq: object) -> bool:
        """Say whether the message must be sent alone."""
        record = self._records.get(seq) if isinstance(seq, int) else None
        return record is not None and record.unknown >= self._after

    def __len__(self) -> int:
        """Return how many messages are remembered."""
        return len(self._records)

    def remember(self, entries: Iterable[Entry]) -> bool:
        """Say whether the outcome of any of these was unknown when it was sent last."""
        return bool(self._records) and any(entry.seq in self._records for entry in entries)

    def turn(self, seq: int) -> int:
        """Return when it was last tried alone; the one tried longest ago goes first.

        A round may go on with suspects that were forgotten meanwhile, with their lanes.
        """
        record = self._records.get(seq)
        return 0 if record is None else record.tried

    def note(self, seq: int) -> bool:
        """Note an unknown outcome; return True when it becomes a suspect by this."""
        record = self._records.setdefault(seq, _Record())
        record.unknown += 1
        return record.unknown == self._after

    def convict(self, seq: int, error: OutcomeUnknown, *, held: bool) -> bool:
        """Judge a suspect that was sent alone and got no confirm.

        `held` says that the broker answered a probe before and after. A time-out convicts
        nobody. Where another suspect failed alone too and nothing was confirmed since, the
        broker is likelier to be flapping, and much more evidence is needed.
        """
        record = self._records[seq]
        self._turn += 1
        record.tried = self._turn
        if error.error_reply is not None:
            return True
        if error.timed_out or not held:
            return False
        self._failed_alone.add(seq)
        record.strikes += 1
        alone = self._failed_alone == {seq}
        return record.strikes >= (_STRIKES if alone else _STRIKES_IN_COMPANY)

    def clear(self, seq: int) -> None:
        """Forget a message that is confirmed, convicted or given up."""
        self._records.pop(seq, None)
        self._failed_alone.discard(seq)

    def confirmed(self) -> None:
        """Note that something got through: failures alone before it are no sign of flapping."""
        self._failed_alone.clear()

    def forget(self) -> None:
        """Forget all; the lanes may have changed hands."""
        self._records.clear()
        self._failed_alone.clear()
