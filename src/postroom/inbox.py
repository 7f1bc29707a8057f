"""The inbox: the first sight of a message, in the transaction of its effect."""

from postroom.connections import (
    AsyncConnection,
    SyncConnection,
    require_transaction,
    require_transaction_async,
    run,
    run_async,
)
from postroom.store import Writer


class Inbox:
    """Remembers which messages one consumer has seen.

    with engine.begin() as connection:
        if inbox.first(connection, message.id):
            connection.execute(insert(shipments).values(order=order_id))

    The row and the effect are committed together or not at all. Of two parallel copies, one
    waits for the other (or fails as any conflicting transaction does) and is not the first.
    """

    def __init__(self, store: Writer, consumer: str) -> None:
        """Mark messages as seen by this consumer; its name is part of the key, so keep it."""
        if not consumer or "\0" in consumer:
            raise ValueError("a consumer needs a name, without NUL")
        self._store = store
        self._consumer = consumer

    def first(self, connection: SyncConnection, message_id: str) -> bool:
        """Return True if this consumer has not handled the message before, and remember it."""
        require_transaction(connection)
        return run(connection, self._store.mark(self._consumer, _known(message_id))) == 1

    async def first_async(self, connection: AsyncConnection, message_id: str) -> bool:
        """Return True if this consumer has not handled the message before, and remember it."""
        await require_transaction_async(connection)
        statement = self._store.mark(self._consumer, _known(message_id))
        return await run_async(connection, statement) == 1


def _known(message_id: str) -> str:
    if not message_id:
        raise ValueError("a missing id is no id: every message without one would be the same")
    return message_id
