"""The relay: own lanes, read, publish, settle."""

import asyncio
import math
import os
import socket
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from secrets import token_hex
from typing import TypeVar

from postroom import events
from postroom._clock import Clock, SystemClock
from postroom._tasks import task_group
from postroom.errors import StoreUnavailable
from postroom.events import Observer, Observers
from postroom.relay.dispatch import Dispatch
from postroom.relay.flight import RelayBroker
from postroom.relay.options import RelayOptions
from postroom.relay.outage import Outage
from postroom.relay.step import Step
from postroom.relay.tenure import Tenure
from postroom.route import Routes
from postroom.store import Store

T = TypeVar("T")


class Relay:
    """Publishes what the outbox holds: at least once, in order per key.

    Run as many as you like beside each other: they share the lanes, and each message is sent by
    the owner of its lane alone. A message is published first and settled afterwards, so a crash
    can repeat one but never lose one.
    """

    def __init__(
        self,
        store: Store,
        broker: RelayBroker,
        *,
        routes: Routes | None = None,
        options: RelayOptions | None = None,
        observers: Iterable[Observer] = (),
        clock: Clock | None = None,
        name: str | None = None,
    ) -> None:
        """Move messages from that (opened) store to that (opened) broker.

        `name` must be unique among all relays that ever run; the default is host, process id
        and a random part.
        """
        self.name = name or f"{socket.gethostname()}-{os.getpid()}-{token_hex(4)}"
        self._store = store
        self._options = options or RelayOptions()
        self._clock = clock or SystemClock()
        self._observers = Observers(observers)
        self._tenure = Tenure(
            store,
            self.name,
            options=self._options,
            clock=self._clock,
            observers=self._observers,
            able=self._able,
        )
        self._dispatches = [
            Dispatch(
                route,
                store,
                broker,
                self._tenure,
                options=self._options,
                clock=self._clock,
                observers=self._observers,
            )
            for route in routes or Routes()
        ]
        self._store_outage = Outage(self._options.probe, self._clock)
        self._stopping = False
        self._someone_idle = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None

    async def step(self) -> Step:
        """Do what can be done now in every route, and return what that was. Never sleeps.

        All that is begun comes to its end: a batch, or up to `overlap` of them beside each other.
        Raises StoreUnavailable while the database cannot be used.
        """
        if self._tenure.due:
            await self._tenure.renew()
        total = Step()
        for dispatch in self._dispatches:
            total += await dispatch.step()
        return total

    async def run(self, stop: asyncio.Event) -> None:
        """Work until `stop` is set; then end what is in flight and give the lanes back.

        Outages of the broker and of the database are waited out. Raises what no waiting can
        cure, such as SchemaMismatch.
        """
        self._loop = asyncio.get_running_loop()
        self._stopping = False
        self._observers.emit(events.RelayStarted(relay=self.name))
        try:
            async with task_group() as group:
                background = [group.create_task(self._keep()), group.create_task(self._listen())]
                loops = [
                    group.create_task(self._serve(dispatch))
                    for dispatch in self._dispatches
                    for _ in range(self._options.overlap)
                ]
                await stop.wait()
                self._stopping = True
                self._nudge()
                await self._give_idle()
                await asyncio.wait(loops)
                for task in background:
                    task.cancel()
        finally:
            self._loop = None
            await self._leave()
            self._observers.emit(events.RelayStopped(relay=self.name))

    async def leave(self) -> None:
        """Give all lanes back: the end for those who call `step` themselves."""
        await self._tenure.leave()

    def wake(self) -> None:
        """Look at the outbox now. Call it after a commit in the same process, from any thread.

        Does nothing where the relay does not run.
        """
        loop = self._loop
        if loop is not None:
            # Closed meanwhile: the caller's commit must not look failed because of that.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(self._nudge)

    def _able(self) -> Mapping[str, bool]:
        return {dispatch.route.name: dispatch.able for dispatch in self._dispatches}

    def _nudge(self) -> None:
        for dispatch in self._dispatches:
            dispatch.nudge.set()

    async def _serve(self, dispatch: Dispatch) -> None:
        while not self._stopping:
            step = await self._guarded(dispatch.round)
            if step is not None and step.idle and not self._stopping:
                await self._rest(dispatch)

    async def _rest(self, dispatch: Dispatch) -> None:
        # Without a lane no commit matters, and a round that ends looks by itself.
        if dispatch.idle and math.isfinite(dispatch.next_in):
            self._someone_idle.set()
        await dispatch.rest(self._options.poll)

    async def _keep(self) -> None:
        while True:
            if self._tenure.due:
                taken = await self._guarded(self._tenure.renew)
                if taken is not None:
                    self._note_store_back()
                if taken:
                    self._nudge()
            await asyncio.sleep(max(self._tenure.due_in, 0.01))

    async def _listen(self) -> None:
        """Wait for commits, but only while a route rests: a busy one looks by itself."""
        while True:
            await self._someone_idle.wait()
            await self._guarded(lambda: self._store.wait(self._options.poll))
            self._someone_idle.clear()
            self._nudge()

    async def _guarded(self, work: Callable[[], Awaitable[T]]) -> T | None:
        """Do the work; while the database is away return None, after a pause."""
        try:
            return await work()
        except StoreUnavailable as error:
            delay = self._store_outage.fail(at_once=False)
            self._observers.emit(events.StoreLost(error=error.reason, delay=delay))
            if not self._stopping:
                await asyncio.sleep(delay.total_seconds())
            return None

    def _note_store_back(self) -> None:
        """Believe it of a renewal alone, which writes: a locked database can be read."""
        if self._store_outage.active:
            self._store_outage.answer()
            self._store_outage.confirmed()
            self._observers.emit(events.StoreBack())

    async def _give_idle(self) -> None:
        await self._guarded(self._tenure.give_idle)

    async def _leave(self) -> None:
        try:
            await self._tenure.leave()
        except StoreUnavailable as error:
            # Nothing is lost by it: the others take the lanes when the lease is over.
            self._observers.emit(events.StoreLost(error=error.reason, delay=self._options.lease))
