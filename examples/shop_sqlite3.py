"""Orders in one database, parcels in another, and a message in between. Only sqlite3."""

import asyncio
import sqlite3
from dataclasses import dataclass

from postroom import Consumer, Context, Relay, SyncOutbox, message
from postroom.brokers.sqlite import EmbeddedBroker
from postroom.connections import sqlite3_transactions
from postroom.events import Acknowledged, Event
from postroom.stores.sqlite import SqliteStore


@message("shop.order-placed", key="order_id")
@dataclass
class OrderPlaced:
    """Somebody ordered an item."""

    order_id: str
    item: str


shop = SqliteStore("shop.db")
warehouse = SqliteStore("warehouse.db")
outbox = SyncOutbox(shop)
in_shop = sqlite3_transactions("shop.db")
in_warehouse = sqlite3_transactions("warehouse.db")


def place(order_id: str, item: str) -> None:
    """Save an order and say so: both, or neither."""
    with in_shop() as connection:
        connection.execute("INSERT INTO orders VALUES (?, ?)", (order_id, item))
        outbox.put(connection, OrderPlaced(order_id=order_id, item=item))


def place_and_fail(order_id: str) -> None:
    """Put a message in a transaction that is rolled back: nobody hears of it."""
    try:
        with in_shop() as connection:
            outbox.put(connection, OrderPlaced(order_id=order_id, item="nothing"))
            connection.execute("INSERT INTO orders VALUES (?, ?)", (order_id, None))
    except sqlite3.IntegrityError as error:
        print(f"order {order_id} failed: {error}")


stop = asyncio.Event()
waiting_for = {"1", "2"}


def stop_when_all_is_done(event: Event) -> None:
    """End the example once the broker knows that every order was handled."""
    if isinstance(event, Acknowledged):
        waiting_for.discard(event.message.key or "")
        if not waiting_for:
            stop.set()


shipping = Consumer(
    "shipping", begin=in_warehouse, store=warehouse, observers=[stop_when_all_is_done]
)


@shipping.on(OrderPlaced)
def ship(order: OrderPlaced, context: Context[sqlite3.Connection]) -> None:
    """Pack a parcel. The row that remembers this message is in the same transaction."""
    context.connection.execute("INSERT INTO parcels VALUES (?, ?)", (order.order_id, order.item))


async def main() -> None:
    """Create the tables, place orders, then relay and ship until all is done."""
    broker = EmbeddedBroker("broker.db")
    for store in (shop, warehouse):
        await store.open()
        await store.migrate()
    await broker.open()
    with in_shop() as connection:
        connection.execute("CREATE TABLE orders (id TEXT PRIMARY KEY, item TEXT NOT NULL)")
    with in_warehouse() as connection:
        connection.execute("CREATE TABLE parcels (order_id TEXT, item TEXT)")

    place("1", "a kettle")
    place_and_fail("-")
    place("2", "two cups")

    async with asyncio.TaskGroup() as group:
        group.create_task(shipping.run(broker, stop))
        group.create_task(Relay(shop, broker).run(stop))

    with in_warehouse() as connection:
        for order_id, item in connection.execute("SELECT * FROM parcels ORDER BY order_id"):
            print(f"parcel for order {order_id}: {item}")
    await broker.close()
    for store in (shop, warehouse):
        await store.close()


if __name__ == "__main__":
    asyncio.run(main())
