"""The same shop on SQLAlchemy, and a handler that passes the news on."""

import asyncio
from dataclasses import dataclass

from sqlalchemy import create_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, sessionmaker

from postroom import Consumer, Context, Relay, SyncOutbox, message
from postroom.brokers.sqlite import EmbeddedBroker
from postroom.connections.sqlalchemy import begin_immediately
from postroom.events import Acknowledged, Event
from postroom.stores.sqlite import SqliteStore


class Base(DeclarativeBase):
    """The tables of the shop."""


class Order(Base):
    """What was ordered."""

    __tablename__ = "orders"
    id: Mapped[str] = mapped_column(primary_key=True)
    cents: Mapped[int]


class Bill(Base):
    """What was billed."""

    __tablename__ = "bills"
    order_id: Mapped[str] = mapped_column(primary_key=True)
    cents: Mapped[int]


@message("shop.order-placed", key="order_id")
@dataclass
class OrderPlaced:
    """Somebody ordered for so many cents."""

    order_id: str
    cents: int


@message("shop.bill-sent", key="order_id")
@dataclass
class BillSent:
    """The bill of an order is written."""

    order_id: str


engine = begin_immediately(create_engine("sqlite:///shop.db"))
transaction = sessionmaker(engine).begin
store = SqliteStore("shop.db")
outbox = SyncOutbox(store)
stop = asyncio.Event()


def stop_after_the_last(event: Event) -> None:
    """End the example when the mail is out."""
    if isinstance(event, Acknowledged) and event.consumer == "mail":
        stop.set()


billing = Consumer("billing", begin=transaction, store=store)
mail = Consumer("mail", begin=transaction, store=store, observers=[stop_after_the_last])


@billing.on(OrderPlaced)
def send_bill(order: OrderPlaced, context: Context[Session]) -> None:
    """Write a bill and say so; bill, message and inbox row are one transaction."""
    context.connection.add(Bill(order_id=order.order_id, cents=order.cents))
    context.put(BillSent(order_id=order.order_id))


@mail.on(BillSent)
def write(sent: BillSent, context: Context[Session]) -> None:
    """Tell the customer."""
    bill = context.connection.get_one(Bill, sent.order_id)
    cause = context.message.headers["causation-id"]
    print(
        f"mail about order {sent.order_id}: {bill.cents} cents; a message caused it: {bool(cause)}"
    )


async def main() -> None:
    """Place an order, then relay and handle until the mail is out."""
    broker = EmbeddedBroker("broker.db")
    await store.open()
    await store.migrate()
    await broker.open()
    Base.metadata.create_all(engine)

    with transaction() as session:
        session.add(Order(id="7", cents=1990))
        outbox.put(session, OrderPlaced(order_id="7", cents=1990))

    async with asyncio.TaskGroup() as group:
        for consumer in (billing, mail):
            group.create_task(consumer.run(broker, stop))
        group.create_task(Relay(store, broker).run(stop))

    await broker.close()
    await store.close()
    engine.dispose()


if __name__ == "__main__":
    asyncio.run(main())
