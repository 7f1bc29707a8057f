"""The rights that the page names are enough, each of them is needed, and there are no others."""

import re
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import asyncpg
import pytest

from postroom.errors import StoreError
from postroom.message import State
from postroom.outcome import Dead, Retry, Settled
from postroom.store import Query
from postroom.stores.postgresql import PostgresqlStore
from postroom.stores.postgresql.names import identifier
from tests.stores.postgresql import SECOND, Ground, connected, lease, message, put, run, sent

PAGE = Path(__file__).parents[2] / "docs/drivers/postgresql.md"
GRANT = re.compile(
    r"^grant ([a-z, ]+) on ((?:(?:schema|function) )?\S+) to shop_(\w+);(?: --.*)?$", re.MULTILINE
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Right:
    """One right of a role."""

    role: str
    what: str
    on: str


def rights() -> list[Right]:
    """Return what the page grants, one by one."""
    return [
        Right(role=role, what=what.strip(), on=on)
        for many, on, role in GRANT.findall(PAGE.read_text())
        for what in many.split(",")
    ]


@dataclass(frozen=True, slots=True)
class Staff:
    """A schema, and a role that has just the rights of the page."""

    ground: Ground
    role: str

    def address(self) -> str:
        """Return the server's address for this role."""
        server = urlsplit(self.ground.url)
        return server._replace(netloc=f"{self.role}@{server.hostname}:{server.port}").geturl()

    async def change(self, right: Right, verb: str) -> None:
        """Grant or revoke a right."""
        preposition = {"grant": "to", "revoke": "from"}[verb]
        on = right.on.replace("postroom.postroom_", "postroom_").replace(
            "schema postroom", f"schema {identifier(self.ground.schema)}"
        )
        await self.ground.sql(f"{verb} {right.what} on {on} {preposition} {self.role}")

    async def store(self) -> PostgresqlStore:
        """Return an open store of this role; the last one is closed."""
        for store in self.ground.stores[1:]:
            await store.close()
        return await self.ground.store(url=self.address())


@pytest.fixture
async def staff(ground: Ground, request: pytest.FixtureRequest) -> AsyncIterator[Staff]:
    """The role that the test is about."""
    kind: str = request.param
    staff = Staff(ground, f"postroom_{kind}_{uuid4().hex[:8]}")
    await ground.sql(f"create role {staff.role} login")
    # A strict database has done this for all functions.
    await ground.sql("revoke execute on function postroom_wake from public")
    for right in rights():
        if right.role == kind:
            await staff.change(right, "grant")
    yield staff
    for store in ground.stores[1:]:
        await store.close()
    await ground.sql(f"drop owned by {staff.role}")
    await ground.sql(f"drop role {staff.role}")


async def write(staff: Staff) -> None:
    """Do everything that a writer does; a relay sleeps and is woken."""
    await staff.ground.sql("select setval('postroom_asleep', 9000000000000000)")
    async with connected(staff.address()) as connection, connection.transaction():
        await put(connection, staff.ground.stores[0], message(uuid4().hex))
        await put(connection, staff.ground.stores[0], message(uuid4().hex), message(uuid4().hex))
    (asleep,) = await staff.ground.sql("select last_value from postroom_asleep")
    assert asleep["last_value"] == 0, "nobody was woken"


async def consume(staff: Staff) -> None:
    """Do everything that a consumer does."""
    store, seen = staff.ground.stores[0], uuid4().hex
    async with connected(staff.address()) as connection, connection.transaction():
        assert await run(connection, store.mark("shipping", seen)) == 1
        assert await run(connection, store.mark("shipping", seen)) == 0


async def relay(staff: Staff) -> None:
    """Do everything that a relay does."""
    ground, name = staff.ground, uuid4().hex
    store = await staff.store()
    for table in ("outbox", "lane", "relay"):
        await ground.sql(f"delete from postroom_{table}")  # noqa: S608
    lanes = await lease(store, name)
    await ground.put(*(message(f"{name}{n}", key=str(n)) for n in range(8)))
    await ground.put(message(f"{name}next", key="0"))
    first, second, third, fourth, *_ = await ground.look(store, lanes)
    await store.settle(
        lanes,
        [
            Settled(first, Retry(delay=SECOND, error="")),
            Settled(second, Dead(error="", blocks=False)),
            *sent(third),
        ],
        keep=True,
    )
    await store.settle(lanes, sent(fourth), keep=False)
    behind = [entry for entry in await ground.look(store, lanes) if entry.behind]
    assert await store.hold(lanes, behind) == 1
    ground.clock.advance(2)
    await ground.sql("update postroom_outbox set state = 'scheduled', due_at = 1 where key = '7'")
    swept = await store.sweep(lanes, limit=9, orphans=True)
    assert (swept.due, swept.scheduled) == (1, 1)
    assert store._listener is not None
    await ground.sql("select setval('postroom_asleep', 0)")
    assert await store._listener._listen()
    await store._listener._work(store._listener._connection, 9).rows("sleep", length=1)
    await store._keep_marks(lanes)
    await store.stats()
    await store.give(lanes[:1])
    await store.leave(name)


async def attend(staff: Staff) -> None:
    """Do everything that people do."""
    ground = staff.ground
    owner = ground.stores[0]
    lanes = await lease(owner, "owner")
    await ground.put(*(message(uuid4().hex, key=str(n)) for n in range(5)))
    entries = await ground.look(owner, lanes)
    dead = [Settled(one, Dead(error="", blocks=number < 2)) for number, one in enumerate(entries)]
    await owner.settle(lanes, [*dead[:4], *sent(*entries[4:])], keep=True)
    async with ground.connected() as connection:
        await run(connection, owner.mark("shipping", uuid4().hex))
    ground.clock.advance(9)

    desk = await staff.store()
    await desk.stats()
    assert await desk.replay(Query(ids=[entries[0].message.id]), limit=1, **ADA) == 1
    assert await desk.release(Query(ids=[entries[1].message.id]), limit=1, **ADA) == 1
    assert await desk.replay(Query(ids=[entries[2].message.id]), limit=1, **ADA) == 1
    assert await desk.discard(Query(ids=[entries[3].message.id]), limit=1, **ADA) == 1
    assert await desk.find(Query(states=[State.DEAD]), limit=9)
    now = ground.clock.now() + timedelta(seconds=1)
    sent_rows, inbox_rows = await desk.prune(sent_before=now, inbox_before=now, limit=1, **ADA)
    assert sent_rows
    assert inbox_rows
    assert await desk.audit(limit=9)


REFUSED = (
    *(StoreError, asyncpg.InsufficientPrivilegeError, asyncpg.UndefinedTableError),
    # Newer servers say nothing where the sequence may not be read: nobody is woken.
    AssertionError,
)
ADA: dict[str, Any] = {"actor": "ada", "dry_run": False}
WORK: dict[str, Callable[[Staff], Awaitable[None]]] = {
    "writer": write,
    "consumer": consume,
    "relay": relay,
    "desk": attend,
}


@pytest.mark.parametrize(("staff", "kind"), [(kind, kind) for kind in WORK], indirect=["staff"])
async def test_the_rights_of_a_role_are_enough(staff: Staff, kind: str) -> None:
    await WORK[kind](staff)


@pytest.mark.parametrize(("staff", "kind"), [(kind, kind) for kind in WORK], indirect=["staff"])
async def test_every_right_of_a_role_is_needed(staff: Staff, kind: str) -> None:
    spare = []
    for right in rights():
        if right.role != kind:
            continue
        await staff.change(right, "revoke")
        try:
            await WORK[kind](staff)
        except REFUSED:
            pass
        else:
            spare.append(right)
        await staff.change(right, "grant")

    assert spare == []


@pytest.mark.parametrize("staff", ["writer"], indirect=True)
async def test_a_writer_cannot_read_what_others_wrote(staff: Staff) -> None:
    async with connected(staff.address()) as connection:
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await connection.fetch(
                f"select * from {identifier(staff.ground.schema)}.postroom_outbox"  # noqa: S608
            )
