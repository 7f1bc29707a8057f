"""RabbitMQ in one shop: the driver for its processes, AMQP of its own for the judge.

AMQP tells what is ready, and not what consumers have in their hands. So every copy that relays
publish also lands in a queue of the lab's own.
"""

from collections.abc import Collection, Mapping, Sequence
from datetime import timedelta
from urllib.parse import parse_qs, urlencode, urlsplit, urlunsplit

from pamqp import commands
from pamqp.base import Frame

from postroom.brokers.rabbitmq import RabbitmqBroker
from postroom.lab.broker import Grave
from postroom.lab.brokers.rabbitmq.reading import MOST, Ears, consume, empty, ids, ready
from postroom.lab.brokers.rabbitmq.wire import Content, Missing, Wire
from postroom.lab.database import Unusable
from postroom.lab.servers.rabbitmq import remove_vhost
from postroom.lab.shop import CONSUMERS, TOPIC

VHOST, NAMES, DELAYS = "vhost", "names", "delays"
"""What the lab has made there: a virtual host, queues in somebody's, delay queues in it."""
_LEVELS = 16
_DELAY = "postroom.delay.quorum."
_HEARTBEAT = timedelta(seconds=1)
_CONNECT = timedelta(seconds=2)


def address(
    url: str,
    *,
    exchange: str = "postroom",
    made: str = VHOST,
    management: str,
    shared: bool = False,
) -> str:
    """Return the address of a shop's RabbitMQ, with everything that its processes must know."""
    options = {
        "exchange": exchange,
        "made": made,
        "management": management,
        "shared": "1" if shared else "",
    }
    return f"{url.partition('?')[0]}?{urlencode(options)}"


class RabbitmqShop:
    """What the shop needs of RabbitMQ."""

    tells_hands = False

    def __init__(self, address: str) -> None:
        """Use the server, virtual host and exchange of that address."""
        self.url, _, query = address.partition("?")
        options = {name: values[0] for name, values in parse_qs(query).items()}
        self._address = address
        self._exchange = options["exchange"]
        self._made = options["made"]
        self._management = options["management"]
        self._shared = bool(options.get("shared"))
        self._groups: tuple[str, ...] = ()
        self._hands = Wire(self.url)
        self._ears = Ears(self.url, self._audit)

    @property
    def host(self) -> str:
        """Its host."""
        return self._hands.host

    @property
    def port(self) -> int:
        """Where it listens."""
        return self._hands.port

    def through(self, port: int) -> str:
        """Return the address of it behind a proxy on that port."""
        parts = urlsplit(self._address)
        user = parts.netloc.rpartition("@")[0]
        return urlunsplit(parts._replace(netloc=f"{user}@127.0.0.1:{port}"))

    def client(self, *, max_message_bytes: int = 262_144) -> RabbitmqBroker:
        """Return the driver."""
        return RabbitmqBroker(
            self.url,
            exchange=self._exchange,
            single_active_consumer=not self._shared,
            heartbeat=_HEARTBEAT,
            connect_timeout=_CONNECT,
            max_message_bytes=max_message_bytes,
        )

    async def create(self, groups: Sequence[str]) -> None:
        """Make it as a user would; then the queue of what arrives."""
        broker = self.client()
        await broker.open()
        try:
            await broker.apply_topology({group: [TOPIC] for group in groups})
        finally:
            await broker.close()
        self._groups = tuple(groups)
        self._ears.dead = {self._dead(group): group for group in groups}
        self._do(
            commands.Queue.Declare(queue=self._audit, durable=True),
            commands.Queue.Bind(queue=self._audit, exchange=self._exchange, routing_key=TOPIC),
        )

    def arrivals(self) -> Sequence[str]:
        """Return the ids of what came into the lab's own queue."""
        return self._ears.heard().arrivals

    def left(self) -> tuple[int, str]:
        """Count what is ready."""
        counts = [self._count(self._queue(group)) for group in self._groups]
        return sum(counts), repr(counts)

    def waiting(self) -> Mapping[str, Collection[str]]:
        """Return what is ready, or waits for a retry; that may be for either group."""
        look = Wire(self.url)
        try:
            look.call(commands.Basic.Qos(prefetch_count=MOST), commands.Basic.QosOk)
            found = {group: ids(self._all(look, self._queue(group))) for group in self._groups}
            delayed: set[str] = set()
            if self._groups:
                for level in range(_LEVELS):
                    delayed |= ids(self._all(look, f"{_DELAY}{level:02}"))
        finally:
            look.close()
        return {group: ready | delayed for group, ready in found.items()}

    def graves(self) -> Sequence[Grave]:
        """Return the dead letters of all groups."""
        return self._ears.heard().graves

    def unbind(self) -> None:
        """Let one exchange behind the shop's own lead to all queues; then take it away."""
        queues = [self._audit, *map(self._queue, self._groups)]
        self._do(
            commands.Exchange.Declare(exchange=self._way, exchange_type="fanout", durable=True),
            *(commands.Queue.Bind(queue=queue, exchange=self._way) for queue in queues),
        )
        self.bind()
        self._do(
            *(
                commands.Queue.Unbind(queue=queue, exchange=self._exchange, routing_key=TOPIC)
                for queue in queues
            ),
            commands.Exchange.Unbind(
                destination=self._way, source=self._exchange, routing_key=TOPIC
            ),
        )

    def bind(self) -> None:
        """Let the exchange lead to all queues again."""
        self._do(
            commands.Exchange.Bind(destination=self._way, source=self._exchange, routing_key=TOPIC)
        )

    def remove(self) -> None:
        """Delete what the lab has made there."""
        self.close()
        match self._made:
            case "vhost":
                vhost = urlsplit(self.url).path[1:]
                try:
                    remove_vhost(f"{self.url}?management={self._management}", vhost)
                except OSError as error:
                    raise Unusable(f"RabbitMQ: {error}") from error
            case "names":
                queues = [name for group in CONSUMERS for name in self._queues(group)]
                self._delete([self._audit, *queues], [self._exchange, self._way])
            case _:
                levels = [f"{_DELAY}{level:02}" for level in range(_LEVELS)]
                self._delete(levels, [*levels, f"{_DELAY}end"])

    def has_delays(self) -> bool:
        """Say whether delay queues are there."""
        try:
            self._count(f"{_DELAY}00")
        except Missing:
            return False
        return True

    def close(self) -> None:
        """Disconnect."""
        self._ears.close()
        self._hands.close()

    @property
    def _audit(self) -> str:
        return f"{self._exchange}.lab-arrivals"

    @property
    def _way(self) -> str:
        return f"{self._exchange}.lab-way"

    def _queue(self, group: str) -> str:
        return f"{self._exchange}.{group}"

    def _dead(self, group: str) -> str:
        return f"{self._exchange}.{group}.dead"

    def _queues(self, group: str) -> tuple[str, str]:
        return self._queue(group), self._dead(group)

    def _count(self, queue: str) -> int:
        """Count what is ready in a queue."""
        return ready(self._hands, queue)

    def _do(self, *methods: Frame) -> None:
        """Call methods, each answered by its own `Ok`."""
        for method in methods:
            kind = type(method)
            owner = commands.Queue if kind.__qualname__.startswith("Queue") else commands.Exchange
            self._hands.call(method, getattr(owner, f"{kind.__name__}Ok"))

    def _delete(self, queues: Sequence[str], exchanges: Sequence[str]) -> None:
        self._do(
            *(commands.Queue.Delete(queue=queue) for queue in queues),
            *(commands.Exchange.Delete(exchange=exchange) for exchange in exchanges),
        )
        self.close()

    def _all(self, look: Wire, queue: str) -> list[Content]:
        """Return what is ready; it goes back when the wire is closed."""
        if not ready(look, queue):
            return []
        consume(look, queue)
        empty(look, queue)
        return look.take()
