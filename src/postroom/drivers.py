"""Drivers: from an address to a store or a broker; a driver is imported only when it is named."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any, cast
from urllib.parse import parse_qsl, unquote

from postroom._document import duration, size, suggestion
from postroom._redact import redacted
from postroom.broker import Broker
from postroom.errors import SettingsError
from postroom.settings import Settings
from postroom.store import Store

MEMORY = "memory"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Driver:
    """One driver that comes with Postroom."""

    module: str
    name: str
    path: bool = False
    """Its address is the path of a file."""
    server: bool = False
    """Its address names a server."""
    client_options: bool = False
    """It may carry options of the client library as well."""
    extra: str = ""
    """What has to be installed for it, as in `postroom[...]`."""
    options: Mapping[str, Callable[[str], object]]
    """What may follow the `?` of its address, and how it is read."""


def _flag(text: str) -> bool:
    if text not in {"true", "false"}:
        raise ValueError(f"{text!r} is not true or false")
    return text == "true"


def _names(text: str) -> tuple[str, ...]:
    return tuple(filter(None, text.split(",")))


def _count(text: str) -> int:
    if not text.isascii() or not text.isdigit() or not int(text):
        raise ValueError(f"must be at least 1, and a whole number, not {text[:40]!r}")
    return int(text)


_POSTGRESQL = _Driver(
    module="postroom.stores.postgresql",
    name="PostgresqlStore",
    server=True,
    client_options=True,
    extra="postgresql",
    options={"schema": str, "prefix": str, "connections": _count},
)
_STORES = {
    "sqlite": _Driver(
        module="postroom.stores.sqlite",
        name="SqliteStore",
        path=True,
        options={"prefix": str, "busy_timeout": duration},
    ),
    "postgresql": _POSTGRESQL,
    "postgres": _POSTGRESQL,
    MEMORY: _Driver(module="postroom.stores.memory", name="MemoryStore", options={}),
}
_RABBITMQ = _Driver(
    module="postroom.brokers.rabbitmq",
    name="RabbitmqBroker",
    server=True,
    extra="rabbitmq",
    options={
        "exchange": str,
        "queue_type": str,
        "single_active_consumer": _flag,
        "declare": _flag,
        "groups": _names,
        "max_message_bytes": size,
        "max_in_flight": _count,
        "heartbeat": duration,
        "connect_timeout": duration,
        "cacertfile": str,
        "certfile": str,
        "keyfile": str,
        "verify": _flag,
        "external": _flag,
    },
)
_KAFKA = _Driver(
    module="postroom.brokers.kafka",
    name="KafkaBroker",
    server=True,
    extra="kafka",
    options={
        "group_prefix": str,
        "declare": _flag,
        "partitions": int,
        "replication": int,
        "max_message_bytes": size,
        "session_timeout": duration,
        "connect_timeout": duration,
        "tls": _flag,
        "cacertfile": str,
        "certfile": str,
        "keyfile": str,
        "verify": _flag,
        "sasl": str,
    },
)
_NATS = _Driver(
    module="postroom.brokers.nats",
    name="NatsBroker",
    server=True,
    extra="nats",
    options={
        "stream": str,
        "subjects": _names,
        "declare": _flag,
        "replicas": _count,
        "max_age": duration,
        "duplicate_window": duration,
        "ack_wait": duration,
        "max_message_bytes": size,
        "max_in_flight": _count,
        "heartbeat": duration,
        "connect_timeout": duration,
        "inbox_prefix": str,
        "cacertfile": str,
        "certfile": str,
        "keyfile": str,
        "verify": _flag,
        "tls_first": _flag,
    },
)
_REDIS = _Driver(
    module="postroom.brokers.redis",
    name="RedisBroker",
    server=True,
    extra="redis",
    options={
        "prefix": str,
        "declare": _flag,
        "missing_stream": str,
        "max_message_bytes": size,
        "max_in_flight": _count,
        "maxlen": _count,
        "replicas": _count,
        "fsync": _flag,
        "delete_acked": _flag,
        "single_active_consumer": _flag,
        "lease": duration,
        "connect_timeout": duration,
        "cacertfile": str,
        "certfile": str,
        "keyfile": str,
        "verify": _flag,
    },
)
_BROKERS = {
    "sqlite": _Driver(
        module="postroom.brokers.sqlite",
        name="EmbeddedBroker",
        path=True,
        options={
            "busy_timeout": duration,
            "lease": duration,
            "max_message_bytes": size,
            "retention": duration,
            "unclaimed_retention": duration,
        },
    ),
    "amqp": _RABBITMQ,
    "amqps": _RABBITMQ,
    "kafka": _KAFKA,
    "nats": _NATS,
    "tls": _NATS,
    "redis": _REDIS,
    "rediss": _REDIS,
    MEMORY: _Driver(module="postroom.brokers.memory", name="MemoryBroker", options={}),
}
_NOT_YET = frozenset(
    {
        *("cockroachdb", "mysql", "mariadb", "mssql", "sqlserver"),
        *("oracle", "mongodb", "rabbitmq"),
        *("servicebus", "sqs", "pubsub", "pulsar"),
    }
)


def open_store(url: str, **options: object) -> Store:
    """Return the store at this address, not opened yet: `await store.open()` connects.

    `sqlite:///relative.db`, `sqlite:////absolute.db`, `postgresql://user@host/database` or
    `memory:`; a third party adds others by an entry point of the group `postroom.stores` that
    takes the address and the options.
    Raises SettingsError for an address that no driver takes.
    """
    return cast("Store", _make("store", _STORES, url, options))


def open_broker(url: str, **options: object) -> Broker:
    """Return the broker at this address, not opened yet: `await broker.open()` connects.

    `sqlite:///relative.db`, `amqp://user@host/vhost`, `amqps://...`, `kafka://host`,
    `nats://host`, `tls://host` (NATS too), `redis://host/0`, `rediss://...` or `memory:`; the
    entry points of third parties are in `postroom.brokers`.
    """
    return cast("Broker", _make("broker", _BROKERS, url, options))


def store_of(settings: Settings) -> Store:
    """Return the store that the settings name; an error says where they were read."""
    with _origin(settings, "store"):
        return open_store(settings.store)


def broker_of(settings: Settings) -> Broker:
    """Return the broker that the settings name; an error says where they were read."""
    with _origin(settings, "broker"):
        return open_broker(settings.broker)


@contextmanager
def _origin(settings: Settings, what: str) -> Iterator[None]:
    try:
        yield
    except SettingsError as error:
        origin = settings.origins.get(what, what)
        raise SettingsError(f"{origin}: {error.reason.removeprefix(f'{what}: ')}") from error


def scheme_of(url: str) -> str:
    """Return the part of an address that names the driver, in lower case; empty without one."""
    return url.partition(":")[0].strip().lower() if ":" in url else ""


def _make(what: str, own: Mapping[str, _Driver], url: str, options: Mapping[str, object]) -> Any:
    scheme = scheme_of(url)
    if scheme in own:
        return _build(what, own[scheme], url, options)
    others = {point.name: point for point in entry_points(group=f"postroom.{what}s")}
    if scheme in others:
        return _load(what, others[scheme])(url, **options)
    raise SettingsError(_refusal(what, url, [*own, *others]))


def _build(what: str, driver: _Driver, url: str, options: Mapping[str, object]) -> Any:
    if driver.server:
        _check_server(what, url)
    rest, _, query = url.partition(":")[2].partition("?")
    query, foreign = _divided(driver, query)
    given = {**_query(what, driver, query), **options}
    make = _imported(what, driver)
    arguments: tuple[str, ...] = ()
    if driver.path:
        arguments = (_path(what, rest),)
    elif driver.server:
        arguments = (f"{scheme_of(url)}:{rest}{foreign and '?'}{foreign}",)
    elif rest.strip("/"):
        raise SettingsError(f"{what}: nothing follows 'memory:', it has no name and no place")
    try:
        return make(*arguments, **given)
    except ValueError as error:
        raise SettingsError(f"{what}: {redacted(url)}: {error}") from error


def _check_server(what: str, url: str) -> None:
    """Refuse an address whose parts are not where they belong, without repeating any of them.

    What a client library says of it may hold a piece of the password.
    """
    match = _SERVER.fullmatch(url.partition(":")[2])
    ports = _PORT.findall(match["hosts"] or "") if match else []
    fields = (match["query"] or "").split("&") if match else []
    if (
        match is None
        or any(int(port) > _LAST_PORT for port in ports)
        or not all("=" in field for field in fields if field)
    ):
        raise SettingsError(
            f"{what}: the address cannot be read: in a user or password write / as %2F, ? as %3F, "
            "# as %23, @ as %40, : as %3A, [ as %5B, ] as %5D and % as %25; a port is a number; "
            # Last, because an `@` behind an address looks like a part of it, and would be hidden.
            f"write it as in {scheme_of(url)}://user:password@host:port/name"
        )


_HOST = r"(?:\[[^\[\]/?#@]+\]|[^\[\]/?#@:,\s]+)(?::[0-9]{1,5})?"
_PORT = re.compile(r":([0-9]{1,5})(?=,|$)")
_LAST_PORT = 65535
_SERVER = re.compile(
    r"//(?:[^/?#@\[\]\x00-\x1f]*@)?"
    rf"(?P<hosts>{_HOST}(?:,{_HOST})*)?"
    r"(?:/[^?#@\x00-\x1f]*)?(?:\?(?P<query>[^#\x00-\x1f]*))?"
)


def _imported(what: str, driver: _Driver) -> Callable[..., Any]:
    try:
        return cast("Callable[..., Any]", getattr(import_module(driver.module), driver.name))
    except ModuleNotFoundError as error:
        raise SettingsError(
            f"{what}: the client library {error.name!r} is missing: "
            f"install the extra `{driver.extra}` of postroom"
        ) from error


def _divided(driver: _Driver, query: str) -> tuple[str, str]:
    """Return the part of the query that is ours, and the one that is the client library's."""
    if not driver.client_options:
        return query, ""
    parts = [part for part in query.split("&") if part]
    ours = [part for part in parts if unquote(part.partition("=")[0]) in driver.options]
    return "&".join(ours), "&".join(part for part in parts if part not in ours)


def _query(what: str, driver: _Driver, query: str) -> dict[str, object]:
    given: dict[str, object] = {}
    for name, text in parse_qsl(query, keep_blank_values=True):
        if name not in driver.options:
            hint = suggestion(name, driver.options)
            raise SettingsError(f"{what}: unknown option {name!r} in the address; {hint}")
        try:
            given[name] = driver.options[name](text)
        except ValueError as error:
            raise SettingsError(f"{what}: option {name!r} in the address: {error}") from error
    return given


def _path(what: str, rest: str) -> str:
    path = unquote(rest.removeprefix("///"))
    if path == ":memory:" or not rest.strip("/"):
        raise SettingsError(
            f"{what}: a sqlite address needs a file, as in sqlite:///postroom.db; "
            "memory: keeps everything in this process"
        )
    if not rest.startswith("///"):
        # What looks like a name and a password is not repeated.
        meant = "postroom.db" if "@" in path else path.lstrip("/")
        raise SettingsError(
            f"{what}: a sqlite address has three slashes before a relative path and four before "
            f"an absolute one; did you mean 'sqlite:///{meant}'?"
        )
    return path


def _load(what: str, point: EntryPoint) -> Callable[..., Any]:
    try:
        return cast("Callable[..., Any]", point.load())
    except ImportError as error:
        package = point.dist.name if point.dist else point.module
        raise SettingsError(
            f"{what}: the driver {point.name!r} of {package} cannot be imported: {error}"
        ) from error


def _refusal(what: str, url: str, known: Iterable[str]) -> str:
    scheme = scheme_of(url)
    names = ", ".join(f"{name}:" for name in known)
    if not scheme or "/" in scheme:
        return f"{what}: {redacted(url)!r} is not an address such as sqlite:///postroom.db"
    plain = scheme.partition("+")[0]
    if plain != scheme and plain in known:
        meant = redacted(f"{plain}:{url.partition(':')[2]}")
        return f"{what}: Postroom brings its own client: write {meant}, without '+...'"
    if plain in _NOT_YET:
        return f"{what}: {scheme} is not supported by this version; known: {names}"
    return f"{what}: unknown scheme {scheme!r}; {suggestion(scheme, known)}"
