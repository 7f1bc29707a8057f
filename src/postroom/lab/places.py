"""Where a shop keeps its files and its databases."""

from pathlib import Path

from postroom.lab.broker import ShopBroker
from postroom.lab.brokers import shop_broker
from postroom.lab.database import Database
from postroom.lab.databases.line import Line
from postroom.lab.databases.sqlite import SqliteDatabase
from postroom.lab.shop import CONSUMERS


class Places:
    """The files of one shop, all inside one folder, and its databases.

    The databases are files too, or schemas of the PostgreSQL database at `address`; so is the
    broker, or it is at an address of its own.
    """

    def __init__(
        self, root: Path, address: str = "", schema: str = "", broker_address: str = ""
    ) -> None:
        """`schema` is what the names of the schemas begin with."""
        self.root = root
        self.address = address
        self.schema = schema
        self.broker_address = broker_address
        self.consumers: tuple[str, ...] = CONSUMERS
        """Who consumes; where nobody does, what the broker took is judged."""
        self._databases: dict[str, Database] = {}
        self._broker: ShopBroker | None = None
        self._line = Line()

    @property
    def shop(self) -> Database:
        """The order services' database: customers, orders and the outbox."""
        return self.database("shop")

    def effects(self, consumer: str) -> Database:
        """Return the database of one consumer: effects and inbox."""
        return self.database(consumer)

    @property
    def broker(self) -> ShopBroker:
        """The broker."""
        if self._broker is None:
            self._broker = shop_broker(self.broker_address, self.broker_file)
        return self._broker

    @property
    def broker_file(self) -> Path:
        """The embedded broker, in a folder of its own so that it can be taken away whole."""
        return self.root / "broker" / "broker.db"

    @property
    def journals(self) -> Path:
        """What each process says of itself, one file each."""
        return self.root / "journals"

    @property
    def faults(self) -> Path:
        """What the broker does wrong at the moment; read by the wrapper around it."""
        return self.root / "faults.json"

    def file(self, name: str) -> Path:
        """Return the file of a database that is one."""
        return self.broker_file if name == "broker" else self.root / f"{name}.db"

    def database(self, name: str) -> Database:
        """Return a database by its name: `shop`, a consumer's, or the `broker` that is a file."""
        if name not in self._databases:
            self._databases[name] = self._open(name)
        return self._databases[name]

    def create(self) -> None:
        """Make the folders."""
        self.journals.mkdir(parents=True, exist_ok=True)
        self.broker_file.parent.mkdir(exist_ok=True)

    def move(self, address: str) -> None:
        """Have the databases looked for at another address from now on."""
        self.address = address
        for name in [name for name in self._databases if name != "broker"]:
            self._databases.pop(name).close()

    def remove(self) -> None:
        """Drop the schemas, if the databases are such; the folder is left."""
        for name in ("shop", *self.consumers):
            database = self.database(name)
            database.remove()

    def close(self) -> None:
        """Disconnect from the databases."""
        for database in self._databases.values():
            database.close()
        if self._broker is not None:
            self._broker.close()
        self._line.close()

    def _open(self, name: str) -> Database:
        if not self.address or name == "broker":
            return SqliteDatabase(self.file(name))
        from postroom.lab.databases.postgresql import PostgresqlDatabase  # noqa: PLC0415 - an extra

        schema = f"{self.schema}_{name}"
        return PostgresqlDatabase(self.address, schema, name=name, line=self._line)
