"""What the world saw, and the rules that it must have followed."""

from collections import defaultdict
from collections.abc import Collection, Sequence
from datetime import datetime

from postroom.errors import BrokerError, OutcomeUnknown, RefusedForGood, RefusedForNow
from postroom.lane import Lane, lane_of
from postroom.message import Entry, Message, State
from postroom.outcome import Settled
from postroom.store import Query, Store
from postroom.testing.clock import ManualClock
from postroom.testing.scripted import ScriptedBroker
from tests.properties.process import LEASE, RENEWAL, Process

ALL = 10_000
PIPELINED = "pipe"
"""The route that gives up the order of a key where a message is refused."""
Place = tuple[str, int]
Key = tuple[str, str]


class Ledger:
    """Writes down what happened outside of the relays, and compares it with the rules."""

    def __init__(
        self,
        store: Store,
        broker: ScriptedBroker,
        clock: ManualClock,
        *,
        keep: bool,
        max_attempts: int,
    ) -> None:
        self._store = store
        self._broker = broker
        self._clock = clock
        self._keep = keep
        self._max_attempts = max_attempts
        self.committed: set[str] = set()
        self.undone: set[str] = set()
        self.removed: set[str] = set()
        """Discarded or pruned by a person."""
        self.confirmed: set[str] = set()
        self.arrived: list[str] = []
        self.finished: set[str] = set()
        """Confirmed in a step that ended in health: never to be sent again."""
        self._released: set[str] = set()
        self._unordered: set[str] = set()
        """Dead, replayed or discarded once: their later arrival says nothing about order."""
        self._refusals: defaultdict[str, float] = defaultdict(float)
        self._last_place: dict[Key, int] = {}
        self._owners: dict[Place, tuple[str, int]] = {}
        self._epochs: dict[Place, int] = {}
        self._renewed: dict[str, datetime] = {}

    # What relays do

    async def before_publish(
        self, process: Process, messages: Sequence[Message], *, stopped: bool
    ) -> None:
        """Check the rule of order: nothing unsent of its key stands before a message."""
        rows = await self.rows()
        stops_key = self._broker.features.refusal_stops_key
        sending: set[int] = set()
        for message in messages:
            seq, epoch = (int(message.headers[f"postroom-{name}"]) for name in ("seq", "epoch"))
            row = next((row for row in rows if row.message.id == message.id), None)
            if stopped and not self._owns(process, row, epoch):
                # It had looked at its own clock before it was stopped. Nothing can undo that.
                continue
            assert row is not None, f"{message.id} is sent but is no row"
            assert self._owns(process, row, epoch), f"{process.name} sends in a lane of others"
            assert (row.seq, row.state) == (seq, State.READY), f"sent from {row}"
            earlier = [
                other.seq
                for other in rows
                if other.seq < seq
                and other.seq not in sending
                and other.message.id not in process.confirmed
                and self._keeps_back(other, row)
                and not self._was_in_flight(process, other)
            ]
            assert not earlier, f"{seq} is sent before {earlier}"
            assert message.id not in process.in_flight, f"{seq} is in flight already"
            if stops_key or row.route == PIPELINED:
                sending.add(seq)

    def published(
        self,
        process: Process,
        messages: Sequence[Message],
        answers: Sequence[BrokerError | None],
    ) -> None:
        """Note confirms and refusals."""
        assert len(messages) == len(answers), process.name
        for message, answer in zip(messages, answers, strict=True):
            if answer is None:
                self.confirmed.add(message.id)
            elif isinstance(answer, RefusedForNow | RefusedForGood):
                self._refusals[message.id] += 1
            elif isinstance(answer, OutcomeUnknown) and not answer.timed_out:
                # Two losses alone convict at the earliest, or one reply that names an error.
                self._refusals[message.id] += 1 if answer.error_reply else 0.5
        for message in self._broker.arrived[len(self.arrived) :]:
            self._arrives(message, late=process.late)

    def settled(
        self,
        process: Process,
        lanes: Sequence[Lane],
        outcomes: Sequence[Settled],
        done: Collection[int],
    ) -> None:
        """Check that nobody settles in a lane that is not theirs."""
        for one in outcomes:
            assert one.entry.seq not in done or self._holds(process, one.entry, lanes), (
                f"{process.name} settled a row of others"
            )

    def held(
        self, process: Process, lanes: Sequence[Lane], entries: Sequence[Entry], count: int
    ) -> None:
        """Check that nobody holds in a lane that is not theirs."""
        assert count <= sum(self._holds(process, entry, lanes) for entry in entries)

    def leased(self, process: Process, lanes: Sequence[Lane]) -> None:
        """Check that a lane has one owner, and that its epoch rose with every change."""
        now = self._clock.now()
        mine = {(lane.route, lane.number): (process.name, lane.epoch) for lane in lanes}
        for place, (_, epoch) in mine.items():
            owner = self._owners.get(place)
            if owner == (process.name, epoch):
                continue
            assert epoch > self._epochs.get(place, 0), f"the epoch of {place} did not rise"
            if owner is not None and owner[0] != process.name:
                idle = now - self._renewed[owner[0]]
                assert idle > LEASE + RENEWAL, f"{place} was taken from a healthy owner"
            self._epochs[place] = epoch
        for place, (name, _) in list(self._owners.items()):
            if name == process.name and place not in mine:
                del self._owners[place]
        self._owners |= mine
        self._renewed[process.name] = now

    def gave(self, process: Process, lanes: Sequence[Lane] | None) -> None:
        """Note lanes without an owner."""
        for place, owner in list(self._owners.items()):
            given = lanes is None or Lane(*place, owner[1]) in lanes
            if owner[0] == process.name and given:
                del self._owners[place]

    def lanes_of(self, process: Process) -> list[Lane]:
        """Return what the process owns as far as the database is concerned."""
        return [
            Lane(*place, epoch)
            for place, (name, epoch) in self._owners.items()
            if name == process.name
        ]

    # What people do

    def replays(self, rows: Collection[Entry]) -> None:
        """Note that these are to be sent again."""
        ids = {row.message.id for row in rows}
        self.finished -= ids
        self._unordered |= ids
        self._released -= ids
        for message_id in ids:
            self._refusals[message_id] = 0

    def releases(self, rows: Collection[Entry]) -> None:
        """Note that these dead rows need not block any more."""
        self._released |= {row.message.id for row in rows}

    def removes(self, rows: Collection[Entry]) -> None:
        """Note that these are gone by a person's will."""
        ids = {row.message.id for row in rows}
        self.removed |= ids
        self._unordered |= ids

    # What must hold

    async def rows(self) -> Sequence[Entry]:
        """Return the whole outbox."""
        return await self._store.find(Query(), limit=ALL)

    async def check(self) -> None:
        """Compare the outbox with what happened."""
        rows = await self.rows()
        ids = {row.message.id for row in rows}
        assert len(ids) == len(rows), "a message stands in the outbox twice"
        assert ids <= self.committed, "a row without a commit"
        lost = self.committed - ids - self.removed
        if not self._keep:
            lost -= self.confirmed
        assert not lost, f"lost: {lost}"
        assert not self.undone & {*ids, *self.arrived}, "rolled back, and yet there"
        for row in rows:
            self._check_row(row)
        self._unordered |= {row.message.id for row in rows if row.state is State.DEAD}

    def _arrives(self, message: Message, *, late: bool) -> None:
        """Check one arrival at the broker; `late` if its sender had been frozen."""
        assert message.id in self.committed, "sent without a commit"
        assert late or message.id not in self.finished, "sent twice without any fault"
        if message.id not in self.arrived and message.key is not None:
            place = int(message.headers["postroom-seq"])
            key = (message.type, message.key)
            ordered = message.type != PIPELINED and message.id not in self._unordered
            if ordered and not self._expired(message):
                assert place > self._last_place.get(key, 0), f"{place} arrives out of order"
                self._last_place[key] = place
        self.arrived.append(message.id)

    def _check_row(self, row: Entry) -> None:
        message = row.message
        assert row.lane == lane_of(message.key, message.id), row
        assert row.attempts <= self._refusals[message.id], f"an outage was charged: {row}"
        match row.state:
            case State.SENT:
                assert message.id in self.confirmed, f"sent without a confirm: {row}"
            case State.DEAD:
                assert row.error, f"dead without a reason: {row}"
                assert row.blocks == self._parks(row) or self._expired(message), row
            case State.WAITING:
                assert row.blocks, row
                assert row.due_at is not None, row
                assert 0 < row.attempts < self._max_attempts, row
            case State.HELD:
                assert row.blocks, row
                assert message.key is not None, row
            case State.SCHEDULED:
                assert row.due_at == message.deliver_at is not None, row
                assert row.attempts == 0, row
            case State.READY:
                assert not row.blocks, row
                assert row.due_at is None, row

    def _owns(self, process: Process, row: Entry | None, epoch: int) -> bool:
        if row is None:
            return False
        return self._owners.get((row.route, row.lane)) == (process.name, epoch)

    def _holds(self, process: Process, entry: Entry, lanes: Sequence[Lane]) -> bool:
        name, epoch = self._owners.get((entry.route, entry.lane), ("", 0))
        return name == process.name and Lane(entry.route, entry.lane, epoch) in lanes

    def _keeps_back(self, earlier: Entry, row: Entry) -> bool:
        """Tell whether an earlier row of the same key must go first; an expired one never."""
        if (earlier.route, earlier.message.key) != (row.route, row.message.key):
            return False
        if row.message.key is None:
            return False
        if self._expired(earlier.message):
            return False
        return earlier.blocks or earlier.state is State.READY

    def _was_in_flight(self, process: Process, earlier: Entry) -> bool:
        """Tell whether it was so when the other was read: allowed where keys are pipelined."""
        return earlier.route == PIPELINED and earlier.message.id in process.tried

    def _parks(self, row: Entry) -> bool:
        return row.route == "park" and row.message.id not in self._released

    def _expired(self, message: Message) -> bool:
        return message.expires_at is not None and message.expires_at <= self._clock.now()


def orphans(rows: Sequence[Entry]) -> list[Entry]:
    """Return held rows that nothing unsent of their key precedes: the next sweep frees them."""
    first: dict[Key, Entry] = {}
    for row in rows:
        if row.message.key is not None and (row.blocks or row.state is State.READY):
            first.setdefault((row.route, row.message.key), row)
    return [row for row in first.values() if row.state is State.HELD]
