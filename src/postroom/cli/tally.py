"""An observer that counts, for what a command says at its end."""

from collections import Counter

from postroom import events


class Tally:
    """Counts what happened, and remembers whether the broker is away."""

    def __init__(self) -> None:
        """Begin at nothing."""
        self._counts: Counter[type[events.Event]] = Counter()
        self._paused: dict[str, str] = {}

    def __call__(self, event: events.Event) -> None:
        """Count one event."""
        self._counts[type(event)] += 1
        match event:
            case events.Paused(route=name, error=error):
                self._paused[name] = error
            case events.ConsumerPaused(consumer=name, error=error):
                self._paused[name] = error
            case events.Resumed(route=name) | events.ConsumerResumed(consumer=name):
                self._paused.pop(name, None)
            case _:
                pass

    def of(self, kind: type[events.Event]) -> int:
        """Return how many there were of one kind."""
        return self._counts[kind]

    @property
    def paused(self) -> str | None:
        """Why something waits for its broker or database now, if anything does."""
        return next(iter(self._paused.values()), None)
