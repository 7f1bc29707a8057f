"""The tables: made by several at once, the same as printed, anywhere, and open to plain SQL."""

import asyncio
import json
import re
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import asyncpg
import pytest

from postroom.errors import StoreError
from postroom.message import State
from postroom.store import Query
from postroom.stores.postgresql import PostgresqlStore
from postroom.stores.postgresql.names import identifier
from postroom.testing.conformance.stage import SECOND
from tests.stores.postgresql import ALL, Ground, connected, drop, ids, lease, message, put

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "drivers/postgresql.md").read_text()
VECTORS = json.loads((DOCS / "lane-vectors.json").read_text())
KEYS = [
    (vector.get("key", vector.get("key_repeated", "") * vector.get("times", 1)), vector["lane"])
    for vector in VECTORS["keys"]
]

LIKENESS = """
select 'column', table_name, column_name, data_type || ' ' || is_nullable || ' '
    || coalesce(column_default, '') || ' ' || coalesce(collation_name, '') || ' '
    || coalesce(domain_name, '')
from information_schema.columns where table_schema = $1
union all
select 'index', tablename, indexname, indexdef from pg_indexes where schemaname = $1
union all
select 'constraint', conrelid::regclass::text, conname, pg_get_constraintdef(oid)
from pg_constraint where connamespace = (select oid from pg_namespace where nspname = $1)
union all
select 'table', relname, relkind::text, coalesce(reloptions::text, '')
from pg_class where relnamespace = (select oid from pg_namespace where nspname = $1)
union all
select 'trigger', tgrelid::regclass::text, tgname, pg_get_triggerdef(pg_trigger.oid)
from pg_trigger join pg_class on pg_class.oid = tgrelid
where relnamespace = (select oid from pg_namespace where nspname = $1) and not tgisinternal
union all
select 'migration', name, version::text, '' from {schema}.postroom_schema
order by 1, 2, 3, 4
"""


async def likeness(connection: Any, schema: str) -> list[tuple[str, ...]]:
    """Return everything that makes up a schema, without its name."""
    rows = await connection.fetch(LIKENESS.format(schema=identifier(schema)), schema)
    return [tuple(value.replace(schema, "S") for value in row) for row in rows]


async def test_what_is_printed_makes_what_migrate_makes(ground: Ground) -> None:
    token = uuid4().hex[:8]
    made, printed = f"made {token}", f"printed {token}"
    store = PostgresqlStore(ground.url, schema=made)
    await store.open()
    async with connected(ground.url) as connection:
        try:
            await store.migrate()
            await connection.execute(PostgresqlStore(ground.url, schema=printed).schema())
            assert await likeness(connection, printed) == await likeness(connection, made)
        finally:
            await store.close()
            await drop(ground.url, made)
            await drop(ground.url, printed)


async def test_several_instances_that_start_at_once_migrate_once(ground: Ground) -> None:
    await drop(ground.url, ground.schema)
    stores = [await ground.store() for _ in range(6)]

    applied = await asyncio.gather(*(store.migrate() for store in stores))

    assert sorted(len(names) for names in applied) == [0, 0, 0, 0, 0, 1]
    assert len(await lease(stores[0])) == 64


async def test_a_migration_that_fails_leaves_nothing(ground: Ground) -> None:
    await drop(ground.url, ground.schema)
    async with connected(ground.url) as connection:
        await connection.execute(
            f"create schema {identifier(ground.schema)} create table postroom_audit (other text)"
        )
    store = await ground.store()

    with pytest.raises(Exception, match="postroom_audit"):
        await store.migrate()

    rows = await ground.sql("select from pg_tables where schemaname = $1", ground.schema)
    assert len(rows) == 1


async def test_without_a_schema_the_search_path_decides(ground: Ground) -> None:
    own = f"own_{uuid4().hex[:8]}"
    store = PostgresqlStore(f"{ground.url}?search_path={own}", prefix="mail_")
    async with connected(ground.url) as connection:
        await connection.execute(f"create schema {own}")
        try:
            await store.open()
            assert await store.migrate() != []
            lanes = await lease(store)
            await connection.execute(f"set search_path = {own}")
            await put(connection, store, message("a"))
            entries = await store.read(lanes, limit=9, per_lane=9, max_bytes=99)
            tables = await connection.fetch(
                "select tablename from pg_tables where schemaname = $1", own
            )
        finally:
            await store.close()
            await drop(ground.url, own)

    assert ids(entries) == ["a"]
    assert {row["tablename"].partition("_")[0] for row in tables} == {"mail"}


async def test_a_writer_may_have_another_search_path(ground: Ground) -> None:
    """Nothing of the tables, their trigger included, looks for a name in it."""
    await ground.sql("select setval('postroom_asleep', 9000000000000000)")
    async with connected(ground.url) as connection:
        await connection.execute("set search_path = pg_catalog")
        await put(connection, ground.stores[0], message("a"), message("b"))
        await put(connection, ground.stores[0], message("c"))

    assert len(await ground.sql("select from postroom_outbox")) == 3


@pytest.mark.parametrize("schema", ["", "a\0b", "x" * 64, "\N{SNOWMAN}" * 22])
def test_a_schema_that_cannot_be_is_refused(schema: str) -> None:
    with pytest.raises(ValueError, match="schema"):
        PostgresqlStore("postgresql://host/shop", schema=schema)


@pytest.mark.parametrize("prefix", ["", "a-b", "Post", "a; drop", "x" * 50])
def test_a_prefix_that_cannot_be_is_refused(prefix: str) -> None:
    with pytest.raises(ValueError, match="prefix"):
        PostgresqlStore("postgresql://host/shop", prefix=prefix)


def test_a_store_without_a_connection_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        PostgresqlStore("postgresql://localhost/shop", connections=0)


def block(start: str) -> str:
    """Return the SQL of the page that begins so."""
    (found,) = re.findall(rf"^```sql\n({re.escape(start)}.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    return str(found)


async def test_the_insert_of_the_page_is_sent(ground: Ground) -> None:
    store = await ground.store()
    lanes = await lease(store)

    await ground.sql(block("insert into").replace("postroom.postroom_", "postroom_"))

    (entry,) = await ground.look(store, lanes)
    assert (entry.message.key, entry.message.content_type) == ("order-1", "application/json")
    assert (dict(entry.message.headers), entry.message.payload) == ({}, b'{"order_id": 1}')
    assert ("order-1", entry.lane) in KEYS


async def test_a_scheduled_insert_is_sent_when_it_is_due(ground: Ground) -> None:
    store = await ground.store()
    lanes = await lease(store)
    due = int(ground.clock.now().timestamp() + 5) * 1_000_000
    await ground.sql(
        "insert into postroom_outbox "
        "(id, lane, type, topic, payload, state, deliver_at, due_at) "
        "values ('a', 3, 't', 't', '', 'scheduled', $1, $1)",
        due,
    )

    early = await store.sweep(lanes, limit=9, orphans=False)
    ground.clock.advance(5 * SECOND)
    late = await store.sweep(lanes, limit=9, orphans=False)

    assert (early.scheduled, late.scheduled) == (0, 1)
    assert ids(await ground.look(store, lanes)) == ["a"]


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("lane", -1),
        ("lane", 64),
        ("state", "'sending'"),
        ("key", "repeat('x', 1025)"),
        ("id", "''"),
        ("id", "repeat('x', 256)"),
        ("route", "repeat('x', 256)"),
        ("due_at", 1),
        ("state", "'held', due_at = 1"),
    ],
)
async def test_a_row_that_no_relay_could_handle_is_refused(
    ground: Ground, column: str, value: object
) -> None:
    await ground.put(message("a"))

    with pytest.raises(asyncpg.CheckViolationError):
        await ground.sql(f"update postroom_outbox set {column} = {value}")  # noqa: S608


@pytest.mark.parametrize(
    "wrong",
    [
        {"lane": 64},
        {"state": "sending"},
        {"key": "x" * 1025},
        {"id": ""},
        {"route": "x" * 256},
        {"due_at": 1},
        {"state": "sent", "due_at": 1},
    ],
    ids="-".join,
)
async def test_an_insert_with_parameters_is_refused_too(
    ground: Ground, wrong: dict[str, object]
) -> None:
    """Through a client that asks the server for the type of each parameter."""
    row = {"id": "a", "lane": 3, "type": "t", "topic": "t", "payload": b"", **wrong}
    places = ", ".join(f"${number}" for number in range(1, len(row) + 1))
    insert = f"insert into postroom_outbox ({', '.join(row)}) values ({places})"  # noqa: S608

    with pytest.raises(asyncpg.CheckViolationError):
        await ground.sql(insert, *row.values())


async def test_the_lane_function_of_the_page_agrees_with_the_vectors(ground: Ground) -> None:
    await ground.sql(block("create function").replace("postroom.lane_of", "lane_of"))
    keys = [key for key, _ in KEYS if "\0" not in key]

    rows = await ground.sql(
        "select lane_of(key) as lane from unnest($1::text[]) with ordinality as one (key, place) "
        "order by place",
        keys,
    )

    assert [row["lane"] for row in rows] == [lane for key, lane in KEYS if "\0" not in key]


async def test_the_checksum_of_newer_servers_agrees_with_the_vectors(ground: Ground) -> None:
    (short,) = re.findall(r"On PostgreSQL 18 it is shorter: `(.+?)`", PAGE)
    (version,) = await ground.sql("show server_version_num")
    if int(version[0]) < 180_000:
        pytest.skip("PostgreSQL before 18 has no crc32()")
    keys = [key for key, _ in KEYS if "\0" not in key]

    rows = await ground.sql(
        f"select {short} from unnest($1::text[]) with ordinality as k (key, n) order by n",  # noqa: S608
        keys,
    )

    assert [row[0] for row in rows] == [lane for key, lane in KEYS if "\0" not in key]


async def test_every_state_is_allowed_by_the_table(ground: Ground) -> None:
    await ground.put(message("a"))

    for state in State:
        await ground.sql("update postroom_outbox set state = $1", str(state))

    assert len(await ground.stores[0].find(Query(), limit=ALL)) == 1


async def test_a_database_that_cannot_keep_every_text_is_refused(ground: Ground) -> None:
    """An error of the broker in another alphabet would end the relay, again and again."""
    name = f"latin_{uuid4().hex[:8]}"
    async with connected(ground.url) as person:
        await person.execute(
            f"create database {name} encoding 'LATIN1' lc_collate 'C' lc_ctype 'C'"
            " template template0"
        )
        try:
            store = PostgresqlStore(urlsplit(ground.url)._replace(path=f"/{name}").geturl())
            await store.open()
            with pytest.raises(StoreError, match="UTF8"):
                await store.migrate()
            with pytest.raises(StoreError, match="UTF8"):
                await store.stats()
            await store.close()
        finally:
            await person.execute(f"drop database {name} with (force)")
