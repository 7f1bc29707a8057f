"""Sessions of a small shop whose orders record what happens to them."""

import asyncio
import sqlite3
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, reconstructor, sessionmaker

from postroom import message
from postroom.connections.sqlalchemy import begin_immediately
from postroom.integrations.sqlalchemy import SessionOutbox
from postroom.store import Writer
from postroom.stores.sqlite import SqliteStore
from tests.postgresql import ground
from tests.servers import needed, postgresql_servers

TABLE = "create table orders (id text primary key, state text not null, version integer not null)"
SERVERS: list[Any] = list(needed(postgresql_servers(), "PostgreSQL"))


@message("shop.order-placed", key="order_id")
@dataclass(frozen=True)
class OrderPlaced:
    """What the shop announces."""

    order_id: str


@message("shop.order-changed", key="order_id")
@dataclass(frozen=True)
class OrderChanged:
    """What the shop announces later."""

    order_id: str
    version: int


class Model(DeclarativeBase):
    """The root of the shop's tables."""


class Order(Model):
    """An aggregate: it changes itself, and records what has happened."""

    __tablename__ = "orders"
    id: Mapped[str] = mapped_column(primary_key=True)
    state: Mapped[str]
    version: Mapped[int]

    def __init__(self, name: str) -> None:
        super().__init__(id=name, state="placed", version=0)
        self.events: list[object] = [OrderPlaced(name)]

    @reconstructor
    def begin(self) -> None:
        """Begin with nothing recorded when loaded."""
        self.events = []

    def change(self) -> None:
        """Do something worth telling."""
        self.version += 1
        self.events.append(OrderChanged(self.id, self.version))

    def pull_events(self) -> list[object]:
        """Return what was recorded, and forget it."""
        events, self.events = self.events, []
        return events


class Changed(Exception):
    """The caller changed its mind."""


@dataclass(frozen=True)
class Place:
    """A database with the shop's tables and those of Postroom."""

    name: str
    store: Writer
    query: Callable[[str], list[Any]]
    """Ask on somebody else's connection."""
    engine: Callable[..., sa.Engine]
    async_engine: Callable[..., AsyncEngine]

    def types(self) -> list[str]:
        """Return the types of the committed messages, in order."""
        return [row[0].split("-")[-1] for row in self.rows("type")]

    def keys(self) -> list[str]:
        """Return the keys of the committed messages, in order."""
        return [row[0] for row in self.rows("key")]

    def orders(self) -> list[str]:
        """Return the committed orders."""
        return [row[0] for row in self.query("select id from orders order by id")]

    def rows(self, columns: str) -> list[Any]:
        """Return columns of the committed messages, in order."""
        return self.query(f"select {columns} from postroom_outbox order by seq")  # noqa: S608


@contextmanager
def sessions_of(place: Place, outbox: SessionOutbox, **options: Any) -> Iterator[Any]:
    """Give a bound factory of sessions."""
    engine = place.engine()
    yield outbox.bind(sessionmaker(engine, **options))
    engine.dispose()


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """Return a database file with the tables."""
    path = tmp_path_factory.mktemp("template") / "shop.db"

    async def prepare() -> None:
        store = SqliteStore(path)
        await store.open()
        await store.migrate()
        await store.close()

    # In a thread, because the tests' own event loop lives in this one.
    with ThreadPoolExecutor(max_workers=1) as thread:
        thread.submit(asyncio.run, prepare()).result()
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(TABLE)
        connection.execute("pragma journal_mode = delete")
    return path.read_bytes()


def _on_sqlite(path: Path) -> Place:
    def query(sql: str) -> list[Any]:
        with closing(sqlite3.connect(path)) as connection:
            return connection.execute(sql).fetchall()

    return Place(
        "sqlite",
        SqliteStore(path),
        query,
        lambda **options: begin_immediately(sa.create_engine(f"sqlite:///{path}", **options)),
        lambda **options: begin_immediately(
            create_async_engine(f"sqlite+aiosqlite:///{path}", **options)
        ),
    )


@contextmanager
def _on_postgresql(url: str, sync: str, awaited: str) -> Iterator[Place]:
    with ground(url, TABLE) as made:
        yield Place(
            "postgresql",
            made.store,
            made.query,
            lambda **options: made.engine(sync, **options),
            lambda **options: made.async_engine(awaited, **options),
        )


def _places() -> list[Any]:
    """Return SQLite, and the servers with the clients shared out among them."""
    drivers = [("psycopg", "asyncpg"), ("psycopg2", "psycopg")]
    servers = [(server, drivers[number % 2]) for number, server in enumerate(SERVERS * 2)]
    return [
        pytest.param(None, id="sqlite"),
        *(
            pytest.param(
                (server.values[0], *names), id=f"{server.id}-{names[0]}", marks=server.marks
            )
            for server, names in servers[:2]
        ),
    ]


@pytest.fixture(params=_places())
def place(request: pytest.FixtureRequest, tmp_path: Path, template: bytes) -> Iterator[Place]:
    """Return a database of the test's own, of each kind."""
    if request.param is None:
        path = tmp_path / "shop.db"
        path.write_bytes(template)
        yield _on_sqlite(path)
        return
    server, sync, awaited = request.param
    with _on_postgresql(server.url, sync, awaited) as made:
        yield made


@pytest.fixture
def simple(tmp_path: Path, template: bytes) -> Place:
    """Return a database of the test's own, for what does not depend on its kind."""
    path = tmp_path / "shop.db"
    path.write_bytes(template)
    return _on_sqlite(path)


@pytest.fixture
def outbox(place: Place) -> SessionOutbox:
    """Return an outbox for sessions on that database."""
    return SessionOutbox(place.store)
