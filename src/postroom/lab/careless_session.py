"""The careless order service on SQLAlchemy, with an engine made in the plain way.

Its driver does not begin before a SAVEPOINT, so SQLite commits when the savepoint is released,
whatever is rolled back later.
"""

from sqlalchemy import Engine, create_engine, text
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from postroom.connections.sqlalchemy import begin_immediately
from postroom.errors import NoTransaction
from postroom.lab import plants, shop
from postroom.lab.brief import Brief
from postroom.lab.journal import Journal

_COUNT = text("SELECT orders FROM customers WHERE name = :name")
_BOOK = text("UPDATE customers SET orders = :n WHERE name = :name")
_WRITE = text(
    "INSERT INTO orders (message_id, customer, n, amount, placed_at)"
    " VALUES (:id, :name, :n, :amount, 0)"
)


def run(brief: Brief, journal: Journal) -> None:
    """Write orders, each in a savepoint; every second one is rolled back as a whole."""
    url = f"sqlite:///{brief.places.file('shop')}"
    plain = create_engine(url, connect_args={"timeout": 10})
    cured = begin_immediately(create_engine(url, connect_args={"timeout": 10}))
    for number in range(brief.orders):
        try:
            _order(plain, brief, number)
        except NoTransaction as error:
            journal.write("put-refused", error=error.reason)
            _order(cured, brief, number)
        except OperationalError as error:
            # Reading first and writing later loses against another writer: so be it.
            journal.write("refused", error=str(error.orig))
    plain.dispose()
    cured.dispose()


def _order(engine: Engine, brief: Brief, number: int) -> None:
    name = shop.customer(number % brief.customers)
    outbox = plants.outbox(brief)
    with Session(engine) as session:
        with session.begin_nested():
            n = session.execute(_COUNT, {"name": name}).scalar_one() + 1
            order = shop.OrderPlaced(customer=name, n=n, amount=number)
            (sent,) = outbox.put(session, order)
        session.execute(_BOOK, {"n": n, "name": name})
        session.execute(_WRITE, {"id": sent.id, "name": name, "n": n, "amount": number})
        if number % 2:
            session.rollback()
        else:
            session.commit()
