"""One outbox with all that acts on it, and the words in which the machine speaks of it."""

import asyncio
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any, TypeVar

from postroom.desk import Desk
from postroom.errors import StoreUnavailable
from postroom.message import Entry, State
from postroom.outbox import SyncOutbox
from postroom.relay import RelayOptions
from postroom.retry import Backoff, RetryPolicy
from postroom.route import Route, Routes
from postroom.store import Query
from postroom.testing.clock import ManualClock
from postroom.testing.scripted import ScriptedBroker
from tests.properties.choices import MAX_BYTES, Put, Savepoint
from tests.properties.ground import Ground
from tests.properties.ledger import ALL, PIPELINED, Ledger, orphans
from tests.properties.process import LEASE, RENEWAL, Broken, Crash, Fate, Process

T = TypeVar("T")
ATTEMPTS = 3
MOST_RELAYS = 3
RETRY = RetryPolicy(
    max_attempts=ATTEMPTS,
    backoff=Backoff(initial=timedelta(seconds=1), maximum=timedelta(seconds=4), jitter=0),
)
PROBE = Backoff(initial=timedelta(milliseconds=200), maximum=timedelta(seconds=2), jitter=0)
ROUTES = Routes(
    [
        Route(name="go", types=("go",), retry=RETRY),
        Route(name="park", types=("park",), retry=RETRY, on_dead="park"),
        Route(name=PIPELINED, types=(PIPELINED,), retry=RETRY, pipelined_keys=True),
    ]
)


class Undo(Exception):
    """The caller's own reason to roll back."""


class World:
    """Writers, relays, a broker and a person around one store; every action checks the rules."""

    def __init__(
        self,
        ground: Ground,
        clock: ManualClock,
        *,
        keep: bool,
        stops_key: bool,
        batch: int,
        overlap: int,
    ) -> None:
        self.runner = asyncio.Runner()
        self.ground = ground
        self.clock = clock
        self.store = ground.store
        self.outbox = SyncOutbox(self.store, routes=ROUTES)
        self.desk = Desk(self.store, actor="somebody")
        self.broker = ScriptedBroker(
            clock=clock, refusal_stops_key=stops_key, max_message_bytes=MAX_BYTES
        )
        self.ledger = Ledger(self.store, self.broker, clock, keep=keep, max_attempts=ATTEMPTS)
        self.processes: list[Process] = []
        self.written = 0
        self.broken = False
        """A rule was broken: the rest of this run proves nothing."""
        self._options = RelayOptions(
            lease=LEASE,
            renewal=RENEWAL,
            batch=batch,
            overlap=overlap,
            keep_sent=keep,
            probe=PROBE,
        )
        self._born = 0
        self.run(self._open())

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run to its end."""
        try:
            return self.runner.run(work)
        except BaseException:
            self.broken = True
            raise

    async def _open(self) -> None:
        await self.store.open()
        await self.store.migrate()

    def close(self) -> None:
        """Leave nothing behind."""
        self.run(self.store.close())
        self.runner.close()
        self.ground.close()

    # Writers

    def write(self, items: Sequence[Put | Savepoint], *, commits: bool = True) -> None:
        """Do one transaction of a caller."""
        kept: list[str] = []
        undone: list[str] = []
        with suppress(Undo), self.ground.begin() as connection:
            for item in items:
                if isinstance(item, Put):
                    kept.append(self._put(connection, item))
                    continue
                inner: list[str] = []
                with suppress(Undo), self.ground.savepoint(connection):
                    inner += [self._put(connection, put) for put in item.puts]
                    if item.undone:
                        raise Undo
                (undone if item.undone else kept).extend(inner)
            if not commits:
                raise Undo
        self.ledger.committed.update(kept if commits else ())
        self.ledger.undone.update(undone if commits else undone + kept)
        self.run(self.ledger.check())

    def _put(self, connection: Any, put: Put) -> str:
        self.written += 1
        message = put.message(self.written, self.clock.now())
        self.outbox.put(connection, message)
        return message.id

    # Relays

    @property
    def healthy(self) -> list[Process]:
        """The relays that are not frozen."""
        return [process for process in self.processes if not process.frozen]

    @property
    def frozen(self) -> list[Process]:
        """The relays that are."""
        return [process for process in self.processes if process.frozen]

    def pick(self, number: int) -> list[Process]:
        """Return one healthy relay, if there is any."""
        healthy = self.healthy
        return healthy[number % len(healthy) :][:1] if healthy else []

    def join(self) -> None:
        """Start one more relay, unless there are many."""
        if len(self.processes) >= MOST_RELAYS:
            return
        self._born += 1
        self.processes.append(
            Process(
                f"relay-{self._born}",
                self.store,
                self.broker,
                witness=self.ledger,
                routes=ROUTES,
                options=self._options,
                clock=self.clock,
                lock=self.ground.lock,
            )
        )

    def leave(self, processes: Sequence[Process]) -> None:
        """Stop relays as planned."""
        for process in processes:
            self.processes.remove(process)
            self.run(process.relay.leave())
        self.run(self.ledger.check())

    def step(self, processes: Sequence[Process], fate: Fate = "health", spot: str = "") -> None:
        """Let relays do one step at the same time; the first of them may meet a fate."""
        self.run(self._step(processes, fate, spot))

    def thaw(self, processes: Sequence[Process], *, kill: bool = False) -> None:
        """Let frozen relays end their step, or end them where they stand."""
        for process in processes:
            if kill:
                process.kill()
            else:
                process.thaw()
        self.run(self._finish(processes))

    async def _step(
        self, processes: Sequence[Process], fate: Fate = "health", spot: str = ""
    ) -> None:
        for number, process in enumerate(processes):
            process.begin_step(fate if number == 0 else "health", spot)
        await self._finish(processes, locked=fate == "lock")

    async def _finish(self, processes: Sequence[Process], *, locked: bool = False) -> None:
        """Wait until each has ended its step or is frozen; a hanging call gets its time."""
        while running := [process for process in processes if process.runs]:
            passed = sum(process.passed for process in running)
            for _ in range(20):
                await asyncio.sleep(0)
            if any(process.asking for process in running):
                await asyncio.sleep(0.0005)
            elif self.clock.sleepers and passed == sum(process.passed for process in running):
                # Nothing moves but by the clock. Any sooner, and no two runs would be the same.
                self.clock.advance(1)
        self.ground.unlock()
        for process in processes:
            if process.task is not None and process.task.done():
                process.disarm()
                self._ended(process, process.task.exception(), locked=locked)
        await self.ledger.check()

    def _ended(self, process: Process, error: BaseException | None, *, locked: bool) -> None:
        match error:
            case None if process.late:
                pass
            case None:
                self.ledger.finished |= process.confirmed
            case Broken():
                raise AssertionError(*error.args) from error
            case Crash() if process.gone:
                self.processes.remove(process)
            case StoreUnavailable() if locked:
                pass
            case _:
                raise error

    async def sweep(self, process: Process) -> None:
        """Sweep: then nothing is left that is due, or held without a reason."""
        lanes = self.ledger.lanes_of(process)
        while True:
            swept = await self.store.sweep(lanes, limit=ALL, orphans=True)
            if not (swept.due or swept.scheduled or swept.freed):
                break
        now = self.clock.now()
        places = {(lane.route, lane.number) for lane in lanes}
        rows = [row for row in await self.ledger.rows() if (row.route, row.lane) in places]
        assert not orphans(rows)
        assert not [row for row in rows if row.due_at is not None and row.due_at <= now]
        await self.ledger.check()

    # People

    async def act(self, action: str, query: Query, limit: int) -> None:
        """Let a person replay, discard, release or prune, after an exact preview."""
        before = await self.ledger.rows()
        preview = await self._act(action, query, limit, dry_run=True)
        assert await self.ledger.rows() == before, "a dry run changed something"
        count = await self._act(action, query, limit, dry_run=False)
        after = {row.message.id: row for row in await self.ledger.rows()}
        gone = [row for row in before if row.message.id not in after]
        changed = [row for row in before if after.get(row.message.id, row) != row]
        assert len(gone) + len(changed) == count == preview
        states = {row.state for row in gone}
        match action:
            case "replay":
                assert not gone
                self.ledger.replays(changed)
            case "release":
                assert not gone
                self.ledger.releases(changed)
            case "discard":
                assert not changed
                assert not states & {State.READY, State.SENT}
            case _:
                assert not changed
                assert states <= {State.SENT}
        self.ledger.removes(gone)
        await self.ledger.check()

    async def _act(self, action: str, query: Query, limit: int, *, dry_run: bool) -> int:
        match action:
            case "replay":
                return await self.desk.replay(query, limit=limit, dry_run=dry_run)
            case "discard":
                return await self.desk.discard(query, limit=limit, dry_run=dry_run)
            case "release":
                return await self.desk.release(query, limit=limit, dry_run=dry_run)
        moment = self.clock.now() - timedelta(seconds=limit)
        sent, _ = await self.desk.prune(sent_before=moment, limit=2, dry_run=dry_run)
        return sent

    # The end

    def heal(self) -> None:
        """Make everything work again: then everything drains, and nothing is stuck."""
        self.ground.unlock()
        self.broker.up()
        self.broker.unblock()
        self.thaw(self.frozen)
        if not self.processes:
            self.join()
        self.run(self._drain())
        while parked := [row for row in self.run(self.ledger.rows()) if _is_parked(row)]:
            self.run(self.act("release", Query(), len(parked)))
            self.run(self._drain())
        rows = self.run(self.ledger.rows())
        stuck = [row for row in rows if row.state not in {State.SENT, State.DEAD}]
        assert not stuck, f"stuck: {stuck}"
        dead = {row.message.id for row in rows if row.state is State.DEAD}
        gone = self.ledger.committed - self.ledger.removed - dead - set(self.ledger.arrived)
        assert not gone, f"never arrived: {gone}"

    async def _drain(self) -> None:
        """Step until nothing moves for longer than any lease, backoff or schedule lasts.

        A message that the broker fails on, for as long as its faults last, moves too.
        """
        quiet = 0
        for _ in range(500):
            before = await self.ledger.rows(), len(self.broker.calls)
            for process in list(self.processes):
                await self._step([process])
            moved = (await self.ledger.rows(), len(self.broker.calls)) != before
            quiet = 0 if moved else quiet + 1
            if quiet > 7:
                return
            self.clock.advance(0.1 if moved else 6)


def _is_parked(row: Entry) -> bool:
    return row.state is State.DEAD and row.blocks
