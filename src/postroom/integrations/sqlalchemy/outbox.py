"""The outbox of a session: what is put early is written last."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar, Unpack

from sqlalchemy import Connection, event
from sqlalchemy.exc import UnboundExecutionError
from sqlalchemy.orm import Session, SessionTransaction

from postroom.codecs import PutOptions
from postroom.connections import require_transaction
from postroom.errors import NoTransaction, PutRefused
from postroom.integrations.sqlalchemy.ledger import Kept, Ledger, boundary, current
from postroom.integrations.sqlalchemy.targets import AnySession, Sessions, sync_session, target_of
from postroom.limits import Limits
from postroom.message import Message
from postroom.outbox import SyncOutbox
from postroom.route import Routes
from postroom.store import Writer

Bound = TypeVar("Bound", bound=Sessions)
T = TypeVar("T")


class SessionOutbox:
    """Puts messages into a session, synchronous or not, to be written at its commit.

        outbox = SessionOutbox(store)
        Sessions = outbox.bind(sessionmaker(engine))

        with Sessions.begin() as session:
            outbox.put(session, OrderPlaced(order_id=7))
            session.add(Order(id=7))

    The rows are written after everything that the session flushes. Of two sessions that change
    the same object the one that commits first has the lower places in the outbox, wherever in
    the code the messages are put: their order is the order of the commits.
    """

    def __init__(
        self,
        store: Writer,
        *,
        routes: Routes | None = None,
        limits: Limits | None = None,
        bind_arguments: Mapping[str, Any] | None = None,
    ) -> None:
        """Write the rows of this store; the store need not be open.

        Where sessions have several engines, `bind_arguments` say which of them holds the outbox,
        as they do for `Session.connection`.
        """
        self._outbox = SyncOutbox(store, routes=routes, limits=limits)
        self._limits = limits or Limits()
        self._bind_arguments = dict(bind_arguments or {})
        self._collectors: list[tuple[type[Any], Callable[[Any], Iterable[object]]]] = []

    def bind(self, sessions: Bound) -> Bound:
        """Serve these sessions, present and future ones; return them.

        Takes a `sessionmaker` or `async_sessionmaker`, a scoped one, a class, or one session. A
        listener of your own to `before_commit` that changes objects has to be registered before.
        """
        target = target_of(sessions)
        for name, listener in self._listeners():
            if not event.contains(target, name, listener):
                event.listen(target, name, listener)
        if isinstance(target, Session) and target.in_transaction():
            self._begin(target)
        return sessions

    def collect(self, of: type[T], pull: Callable[[T], Iterable[object]]) -> None:
        """Put the events that objects of the class, or of a subclass, record by themselves.

            outbox.collect(Order, lambda order: order.pull_events())

        `pull` returns the events that the object has recorded, in order, and forgets them. It is
        called when the session has flushed, and where a savepoint begins or ends; it must not
        load anything. Events recorded inside a savepoint that is rolled back are dropped with
        it. Objects of the class stay in memory until the transaction ends.
        """
        self._collectors.append((of, pull))

    def put(
        self, session: AnySession, *events: object, **options: Unpack[PutOptions]
    ) -> tuple[Message, ...]:
        """Keep the events for the session's commit, in this order; return them as messages.

        There is nothing to await, in an asynchronous session either. The same checks and options
        as `SyncOutbox.put`. Rolling back, also to a savepoint, drops what was put since.
        """
        if not events:
            return ()
        inner = sync_session(session)
        ledger, owner = self._open(inner)
        messages = self._outbox.prepare(*events, **options)
        ledger.keep(messages, owner)
        if ledger.writing:
            self._write(inner, ledger)
        return messages

    def _open(self, session: Session) -> tuple[Ledger, SessionTransaction]:
        owner = current(session)
        if owner is None:
            raise NoTransaction(
                "the session has no open transaction (it is new, committed, rolled back or "
                "closed); add the business data first, or use `with session.begin():`"
            )
        ledger = session.info.get(self)
        if ledger is None:
            raise PutRefused(
                "nobody would write the message: call outbox.bind(Sessions) once, with the "
                "factory that makes your sessions, before they are used"
            )
        if not session.is_active:
            raise NoTransaction("the session's transaction has failed; roll it back first")
        if ledger.refusal is not None:
            raise NoTransaction(*ledger.refusal.args)
        return ledger, owner

    # What the session tells

    def _listeners(self) -> Iterator[tuple[str, Callable[..., None]]]:
        yield "after_transaction_create", self._created
        yield "after_begin", self._connected
        yield "before_commit", self._committing
        yield "after_commit", self._committed
        yield "after_rollback", self._rolled_back
        yield "after_soft_rollback", self._restored
        yield "after_transaction_end", self._ended
        for name in ("transient_to_pending", "detached_to_persistent", "loaded_as_persistent"):
            yield name, self._attached

    def _created(self, session: Session, transaction: SessionTransaction) -> None:
        if transaction.parent is None:
            self._begin(session)
        elif transaction.nested:
            # What was recorded before the savepoint survives its rollback.
            self._pull(session, self._ledger(session), boundary(transaction.parent))

    def _connected(
        self, session: Session, transaction: SessionTransaction, connection: Connection
    ) -> None:
        if transaction.nested or not self._is_ours(session, connection):
            return
        ledger = self._ledger(session)
        try:
            require_transaction(connection)
        except NoTransaction as refusal:
            ledger.refusal = refusal
            if ledger.unwritten():
                raise

    def _committing(self, session: Session) -> None:
        ledger = self._ledger(session)
        ledger.committing += 1
        session.flush()
        savepoint = session.get_nested_transaction()
        if savepoint is not None:
            self._pull(session, ledger, savepoint)
        else:
            self._write(session, ledger)

    def _committed(self, session: Session) -> None:
        ledger = self._ledger(session)
        ledger.committing -= 1
        savepoint = session.get_nested_transaction()
        if savepoint is not None:
            ledger.promote(savepoint)
        else:
            ledger.clear()

    def _rolled_back(self, session: Session) -> None:
        ledger = self._ledger(session)
        ledger.committing = 0
        ledger.restoring = True
        if (transaction := current(session)) is not None:
            ledger.undo(transaction)
            ledger.writing = ledger.writing and transaction.nested

    def _restored(self, session: Session, _previous: SessionTransaction) -> None:
        ledger = session.info.get(self)
        if ledger is None or not ledger.restoring:
            return
        ledger.restoring = False
        ledger.resolve()
        for instance in ledger.tracked(session):
            for _, pull in self._collectors_of(instance):
                list(pull(instance))
        if not session.in_transaction():
            session.info.pop(self, None)

    def _ended(self, session: Session, transaction: SessionTransaction) -> None:
        if transaction.parent is not None and not transaction.nested:
            return
        ledger = self._ledger(session)
        ledger.undo(transaction)
        if transaction.nested:
            if ledger.committing and session.get_nested_transaction() is None:
                # The commit of the transaction was announced while the savepoint was open.
                self._write(session, ledger)
        elif not ledger.restoring:
            ledger.resolve()
            session.info.pop(self, None)

    def _attached(self, session: Session, instance: object) -> None:
        owner = current(session)
        if owner is not None and next(self._collectors_of(instance), None) is not None:
            self._ledger(session).track(instance, owner)

    # What is done about it

    def _begin(self, session: Session) -> None:
        """Begin a ledger, with the objects that are in the session from before."""
        ledger = session.info[self] = Ledger(self)
        if self._collectors:
            known = [*session.identity_map.values(), *session.new]
            ledger.retrack(one for one in known if next(self._collectors_of(one), None))

    def _ledger(self, session: Session) -> Ledger:
        ledger: Ledger = session.info.get(self) or session.info.setdefault(self, Ledger(self))
        return ledger

    def _pull(self, session: Session, ledger: Ledger, owner: SessionTransaction) -> None:
        """Take what the session's objects have recorded."""
        for instance in ledger.tracked(session):
            for _, pull in self._collectors_of(instance):
                if events := tuple(pull(instance)):
                    ledger.keep(self._outbox.prepare(*events), owner, instance)

    def _write(self, session: Session, ledger: Ledger) -> None:
        """Write what is kept, after what the session has flushed."""
        root = session.get_transaction()
        if root is not None:
            self._pull(session, ledger, root)
        ledger.writing = True
        unwritten = ledger.unwritten()
        if not unwritten:
            return
        connection = self._connection(session)
        if session.twophase and connection.dialect.name == "postgresql":
            # What has notified cannot be prepared; a relay that sleeps finds it at its next look.
            connection.exec_driver_sql("set local postroom.quiet = 'on'")
        for part in _parts(unwritten, self._limits):
            self._outbox.put(connection, *(kept.message for kept in part))
            for kept in part:
                kept.written = True

    def _connection(self, session: Session) -> Connection:
        try:
            return session.connection(bind_arguments=dict(self._bind_arguments))
        except UnboundExecutionError as error:
            raise PutRefused(
                "the session has more than one engine; say which of them holds the outbox: "
                "SessionOutbox(store, bind_arguments={'mapper': YourModel})"
            ) from error

    def _is_ours(self, session: Session, connection: Connection) -> bool:
        """Say whether the outbox is behind this connection, where the session has several."""
        try:
            bind = session.get_bind(**self._bind_arguments)
        except UnboundExecutionError:
            return False
        return connection.engine is bind.engine

    def _collectors_of(
        self, instance: object
    ) -> Iterator[tuple[type[Any], Callable[[Any], Iterable[object]]]]:
        return (collector for collector in self._collectors if isinstance(instance, collector[0]))


def _parts(kept: Sequence[Kept], limits: Limits) -> Iterator[list[Kept]]:
    """Split what one transaction has put into calls that keep the limits."""
    part: list[Kept] = []
    size = 0
    for one in kept:
        size += len(one.message.payload)
        if part and (size > limits.max_batch_bytes or len(part) == limits.max_batch):
            yield part
            part, size = [], len(one.message.payload)
        part.append(one)
    yield part
