"""From an address to a driver."""

import asyncio
import sys
import traceback
from datetime import timedelta
from pathlib import Path
from textwrap import dedent

import pytest

from postroom._redact import redacted
from postroom.drivers import open_broker, open_store, store_of
from postroom.errors import SettingsError
from postroom.message import Message
from postroom.settings import Settings
from postroom.stores.memory import MemoryStore
from postroom.stores.postgresql import PostgresqlStore
from postroom.stores.sqlite import SqliteStore


def refusal(url: str) -> str:
    with pytest.raises(SettingsError) as caught:
        open_store(url)
    return caught.value.reason


def test_a_relative_and_an_absolute_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    for url in ("sqlite:///shop.db", f"sqlite:///{tmp_path}/shop.db", "SQLite:///shop.db"):
        store = open_store(url)
        assert isinstance(store, SqliteStore)
        assert store.path == tmp_path / "shop.db"


def test_a_path_may_hold_escaped_characters(tmp_path: Path) -> None:
    store = open_store(f"sqlite:///{tmp_path}/a%20b%3F.db")

    assert isinstance(store, SqliteStore)
    assert store.path == tmp_path / "a b?.db"


def test_nothing_is_opened() -> None:
    open_store("sqlite:////no/such/directory/shop.db")
    open_broker("sqlite:////no/such/directory/broker.db")


def test_memory() -> None:
    assert isinstance(open_store("memory:"), MemoryStore)
    assert open_broker("memory:").name == "memory"


def test_options_in_the_address_and_by_name() -> None:
    store = open_store("sqlite:///shop.db?prefix=mail_", busy_timeout=timedelta(seconds=1))

    assert isinstance(store, SqliteStore)
    assert store.prefix == "mail_"


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("sqlit:///shop.db", "store: unknown scheme 'sqlit'; did you mean 'sqlite'?"),
        (
            "ftp://host/",
            "store: unknown scheme 'ftp'; known here: sqlite, postgresql, postgres, memory",
        ),
        ("shop.db", "store: 'shop.db' is not an address such as sqlite:///postroom.db"),
        ("", "store: '' is not an address such as sqlite:///postroom.db"),
        ("sqlite://shop.db", "did you mean 'sqlite:///shop.db'?"),
        ("sqlite:shop.db", "did you mean 'sqlite:///shop.db'?"),
        ("sqlite://", "store: a sqlite address needs a file"),
        ("sqlite:///:memory:", "memory: keeps everything in this process"),
        ("memory:shop", "store: nothing follows 'memory:'"),
        (
            "sqlite+aiosqlite:///shop.db",
            "store: Postroom brings its own client: write sqlite:///shop.db, without '+...'",
        ),
        (
            "sqlite:///shop.db?prefx=a",
            "store: unknown option 'prefx' in the address; did you mean 'prefix'?",
        ),
        ("sqlite:///shop.db?prefix=a;drop", "store: sqlite:///shop.db?prefix=a;drop: "),
        ("sqlite:///shop.db?busy_timeout=5", "option 'busy_timeout' in the address: '5' is not a"),
    ],
)
def test_an_address_that_cannot_be_used_is_refused_with_the_cure(url: str, expected: str) -> None:
    assert expected in refusal(url)


@pytest.mark.parametrize("scheme", ["mysql", "mysql+pymysql", "rabbitmq", "servicebus"])
def test_what_is_to_come_is_said_to_be_not_supported_yet(scheme: str) -> None:
    reason = refusal(f"{scheme}://ann:s3cr3t@host/shop")

    known = "sqlite:, postgresql:, postgres:, memory:"
    assert reason == f"store: {scheme} is not supported by this version; known: {known}"


def test_a_server_is_named_with_its_own_options_and_with_those_of_its_client() -> None:
    store = open_store(
        "postgres://ann@host:5433/shop?sslmode=require&prefix=mail_&schema=My%20Schema",
        connections=2,
    )

    assert isinstance(store, PostgresqlStore)
    assert store.dsn == "postgres://ann@host:5433/shop?sslmode=require"
    assert store.schema().startswith('create schema if not exists "My Schema"')
    assert "mail_outbox" in store.schema()


def test_a_client_library_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("postroom.stores.postgresql")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "asyncpg", None)

    reason = refusal("postgresql://host/shop")

    assert reason == (
        "store: the client library 'asyncpg' is missing: install the extra `postgresql` of postroom"
    )


@pytest.mark.parametrize(
    "url",
    [
        "ann:s3cr3t@host",
        "x://ann:s3cr3t@h",
        "sqlite://a:s3cr3t@h/x",
        "postgresql+asyncpg://ann:s3cr3t@h",
    ],
)
def test_no_refusal_repeats_a_password(url: str) -> None:
    assert "s3cr3t" not in refusal(url)


@pytest.mark.parametrize("scheme", ["postgresql", "amqp"])
@pytest.mark.parametrize(
    "password",
    ["q9/zx", "q9?zx", "q9?zx=1", "q9#zx", "q9[zx", "q9]zx", "q9@zx", "12/zx", "12?zx", "q9@1/zx"],
)
def test_a_password_that_is_not_escaped_is_refused_with_the_cure(
    scheme: str, password: str
) -> None:
    with pytest.raises(SettingsError) as caught:
        (open_store if scheme == "postgresql" else open_broker)(f"{scheme}://ann:{password}@h/shop")

    assert "/ as %2F" in redacted(caught.value.reason)
    assert "@ as %40" in redacted(caught.value.reason)
    told = "".join(traceback.format_exception(caught.value)).partition("postroom.errors.")[2]
    assert not [piece for piece in ("q9", "zx", "12/") if piece in told]


@pytest.mark.parametrize("port", ["abc", "65536", "-1", "5432x", "1:2"])
def test_a_port_that_is_none_is_refused(port: str) -> None:
    assert "a port is a number" in refusal(f"postgresql://ann:s3cr3t@host:{port}/shop")


@pytest.mark.parametrize("count", ["0", "x", "-1", "1.5", ""])
def test_a_number_of_connections_that_is_none_is_refused(count: str) -> None:
    reason = refusal(f"postgresql://host/shop?connections={count}")

    assert reason == (
        "store: option 'connections' in the address: must be at least 1, and a whole number, "
        f"not {count!r}"
    )


@pytest.mark.parametrize(
    "address",
    [
        "//ann:s3'c r\"et@host:5432/shop",
        "//ann:a%2Fb%40c@host/shop?sslmode=require",
        "//a.example:1,b.example:2/shop?target_session_attrs=primary",
        "//[::1]:5432/shop",
        "//[::1]/shop",
        "///shop?host=/var/run/postgresql",
        "//%2Fvar%2Frun/shop",
        "//ann@/shop",
        "//host/shop?user=ann@example&password=x",
        "//host",
        "//",
    ],
)
def test_addresses_of_servers_that_work_are_taken_as_they_are(address: str) -> None:
    store = open_store(f"postgresql:{address}")

    assert isinstance(store, PostgresqlStore)
    assert store.dsn == f"postgresql:{address}"


def test_a_wrong_address_of_the_settings_is_named_by_its_variable(tmp_path: Path) -> None:
    address = "postgresql://ann:s3/cr3t@host/shop"
    path = tmp_path / "postroom.toml"
    path.write_text("")
    settings = Settings.load(path, {"POSTROOM_STORE": address})

    with pytest.raises(SettingsError, match=r"^POSTROOM_STORE: the address cannot be read"):
        store_of(settings)


@pytest.fixture
def others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package of somebody else, installed with drivers of its own."""
    (tmp_path / "theirs.py").write_text(
        dedent("""
            from postroom.stores.memory import MemoryStore

            def open_theirs(url, **options):
                store = MemoryStore()
                store.opened_by = (url, options)
                return store
        """)
    )
    info = tmp_path / "theirs-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[postroom.stores]\ntheirs = theirs:open_theirs\nbroken = not_installed:open_it\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "theirs", raising=False)


@pytest.mark.usefixtures("others")
def test_a_third_party_adds_a_scheme() -> None:
    store = open_store("theirs://host/shop", prefix="a_")

    assert vars(store)["opened_by"] == ("theirs://host/shop", {"prefix": "a_"})


@pytest.mark.usefixtures("others")
def test_a_third_party_that_cannot_be_imported_is_named() -> None:
    assert refusal("broken://host") == (
        "store: the driver 'broken' of theirs cannot be imported: No module named 'not_installed'"
    )


@pytest.mark.usefixtures("others")
def test_third_parties_are_among_the_suggestions() -> None:
    assert "did you mean 'theirs'?" in refusal("their://host")


@pytest.mark.parametrize("option", ["retention", "unclaimed_retention", "lease", "busy_timeout"])
def test_absurd_times_in_an_address_are_refused(option: str) -> None:
    with pytest.raises(SettingsError, match=f"'{option}'.*1000000d is too long a time"):
        open_broker(f"sqlite:///broker.db?{option}=1000000d")


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("sqlite:///broker.db?lease=1us", "lease must be from 0.1 s to 36500 days, not 1e-06 s"),
        ("sqlite:///broker.db?busy_timeout=30d", "busy_timeout must be from 0 s to 1 days"),
    ],
)
def test_times_that_could_not_work_are_refused(url: str, expected: str) -> None:
    with pytest.raises(SettingsError, match=expected):
        open_broker(url)


def test_the_longest_times_work(tmp_path: Path) -> None:
    query = "lease=36500d&retention=36500d&unclaimed_retention=36500d&busy_timeout=1d"
    broker = open_broker(f"sqlite:///{tmp_path}/broker.db?{query}")

    async def use() -> list[object]:
        await broker.open()
        message = Message(type="t", topic="t", payload=b"")
        results = await broker.publish([message], timeout=timedelta(days=1))
        async with broker.subscribe(["t"], group="g", prefetch=1) as box:
            await (await anext(box)).retry(timedelta.max, "never again")
        await broker.close()
        return list(results)

    assert asyncio.run(use()) == [None]
