"""What one session has to write at its commit, and what becomes of it on a rollback."""

from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from sqlalchemy import inspect
from sqlalchemy.orm import InstanceState, Session, SessionTransaction

from postroom.errors import NoTransaction
from postroom.message import Message


@dataclass(slots=True)
class Kept:
    """A message that is written at the commit."""

    message: Message
    owner: SessionTransaction
    """The transaction or savepoint whose rollback takes the message along."""
    source: object | None
    """The object that recorded the event; None where it was put by hand."""
    written: bool = False


class Ledger:
    """The messages and objects of one session's transaction."""

    def __init__(self, key: Hashable) -> None:
        """Begin empty; `key` tells the ledgers of several outboxes apart."""
        self._key = key
        self._kept: list[Kept] = []
        self._undone: list[Kept] = []
        self._tracked: dict[InstanceState[Any], object] = {}
        self.refusal: NoTransaction | None = None
        """Why nothing can be put on the session's connection."""
        self.committing = 0
        """How many commits have been announced and not done yet; a savepoint's counts too."""
        self.restoring = False
        """Whether a rollback has happened whose effect on the objects is not there yet."""
        self.writing = False
        """Whether the messages are written; those that come now are written at once."""

    # Messages

    def keep(
        self, messages: Iterable[Message], owner: SessionTransaction, source: object | None = None
    ) -> None:
        """Keep messages for the commit, after those kept before."""
        self._kept.extend(Kept(message, owner, source) for message in messages)

    def unwritten(self) -> list[Kept]:
        """Return what is still to be written, in order."""
        return [kept for kept in self._kept if not kept.written]

    def promote(self, savepoint: SessionTransaction) -> None:
        """Pass what a released savepoint held on to the transaction around it."""
        outer = boundary(savepoint.parent)
        for kept in self._of(savepoint):
            kept.owner = outer

    def undo(self, transaction: SessionTransaction) -> None:
        """Take back what was kept in a transaction, or savepoint, that is rolled back."""
        undone = self._of(transaction)
        self._undone += undone
        self._kept = [kept for kept in self._kept if kept.owner is not transaction]

    def resolve(self) -> None:
        """Forget what was taken back, once the session's objects are what they were before.

        An object that is new again may be added again, and is then written as it is: so its
        events stay with it.
        """
        for kept in self._undone:
            if kept.source is not None and (state := _state(kept.source)).transient:
                _stash(state).setdefault(self._key, []).append(kept.message)
        self._undone.clear()

    def clear(self) -> None:
        """Forget everything that was committed."""
        self._kept.clear()
        self._undone.clear()

    def _of(self, transaction: SessionTransaction) -> list[Kept]:
        return [kept for kept in self._kept if kept.owner is transaction]

    # Objects

    def track(self, instance: object, owner: SessionTransaction) -> None:
        """Watch an object that may record events, and keep it alive until the transaction ends."""
        state = _state(instance)
        self._tracked[state] = instance
        if messages := _stash(state).pop(self._key, None):
            self.keep(messages, owner, instance)

    def tracked(self, session: Session) -> Iterator[object]:
        """Go through the watched objects that are in the session, in the order they came."""
        for state, instance in list(self._tracked.items()):
            if state.session is session:
                yield instance
            else:
                del self._tracked[state]

    def retrack(self, instances: Iterable[object]) -> None:
        """Watch these and no others."""
        self._tracked = {_state(instance): instance for instance in instances}


def boundary(transaction: SessionTransaction | None) -> SessionTransaction:
    """Return the transaction or savepoint that the session's inner transaction belongs to."""
    assert transaction is not None  # noqa: S101 - a savepoint always stands in a transaction
    while transaction.parent is not None and not transaction.nested:
        transaction = transaction.parent
    return transaction


def current(session: Session) -> SessionTransaction | None:
    """Return the innermost savepoint that is open, else the transaction, if any is."""
    return session.get_nested_transaction() or session.get_transaction()


def _state(instance: object) -> InstanceState[Any]:
    state: InstanceState[Any] = inspect(instance, raiseerr=True)
    return state


def _stash(state: InstanceState[Any]) -> dict[Hashable, list[Message]]:
    """Return the messages that an object has in its pocket while it is in no session."""
    stash: dict[Hashable, list[Message]] = state.info.setdefault("postroom", {})
    return stash
