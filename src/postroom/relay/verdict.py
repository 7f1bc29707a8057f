"""What the broker's answers mean for the messages, and for the route as a whole."""

from collections.abc import Iterable, Sequence

from postroom import events
from postroom.errors import (
    BrokerError,
    NotAttempted,
    OutcomeUnknown,
    RefusedForGood,
    RefusedForNow,
)
from postroom.events import Observers
from postroom.message import Entry
from postroom.outcome import Dead, Sent, Settled
from postroom.relay.flight import Answer
from postroom.relay.outage import Outage
from postroom.relay.suspects import Suspects
from postroom.route import Route


class Judge:
    """Decides whose fault it was, by the rules of one route."""

    def __init__(
        self, route: Route, suspects: Suspects, outage: Outage, observers: Observers
    ) -> None:
        """Note suspects and outages there."""
        self._route = route
        self._suspects = suspects
        self._outage = outage
        self._observers = observers

    def judge(self, answers: Iterable[Answer]) -> list[Settled]:
        """Turn the broker's answers into outcomes; whatever is nobody's fault stays ready."""
        settled = []
        trouble: BrokerError | None = None
        at_once = True
        for entry, error in answers:
            match error:
                case None:
                    settled.append(Settled(entry=entry, outcome=Sent()))
                    self._suspects.clear(entry.seq)
                case RefusedForNow():
                    settled.append(self.refused(entry, error.reason))
                    self._suspects.clear(entry.seq)
                case RefusedForGood():
                    dead = Dead(error=error.reason, blocks=self._route.on_dead == "park")
                    settled.append(Settled(entry=entry, outcome=dead))
                    self._suspects.clear(entry.seq)
                case NotAttempted():
                    pass
                case OutcomeUnknown():
                    trouble = error
                    at_once = at_once and not error.timed_out
                    self._suspect(entry, error)
                case _:
                    trouble = error
                    at_once = False
        if any(isinstance(one.outcome, Sent) for one in settled):
            self._outage.confirmed()
            self._suspects.confirmed()
        if trouble is not None and not self._outage.active:
            # Where it is active, another round has met the same outage and told of it.
            self.pause(trouble, at_once=at_once)
        return settled

    def alone(
        self, entry: Entry, answers: Sequence[Answer], after: BrokerError | None
    ) -> list[Settled]:
        """Judge a suspect that was sent by itself; `after` is what a probe said afterwards."""
        match answers:
            case [(_, OutcomeUnknown() as error)]:
                if not self._suspects.convict(entry.seq, error, held=after is None):
                    self.pause(after or error, at_once=not error.timed_out)
                    return []
                self._suspects.clear(entry.seq)
                return [self.refused(entry, error.error_reply or error.reason)]
            case _:
                return self.judge(answers)

    def refused(self, entry: Entry, error: str) -> Settled:
        """Decide about a message that the broker refused for now."""
        outcome = self._route.retry.decide(
            entry.attempts + 1, error, blocks=self._route.on_dead == "park"
        )
        return Settled(entry=entry, outcome=outcome)

    def pause(self, error: BrokerError, *, at_once: bool) -> None:
        """Let the route pause."""
        delay = self._outage.fail(at_once=at_once)
        self._observers.emit(events.Paused(route=self._route.name, error=error.reason, delay=delay))

    def _suspect(self, entry: Entry, error: OutcomeUnknown) -> None:
        if self._suspects.note(entry.seq):
            self._observers.emit(events.Suspected(entry=entry, error=error.reason))
