"""The shop's broker: which kinds there are, and how `--broker` names them."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from postroom.lab.broker import (
    ALARM,
    EMBEDDED,
    FILE,
    LIMIT,
    ROUTES,
    SERVER,
    WIRE,
    Harbour,
    ShopBroker,
)
from postroom.lab.brokers.embedded import EmbeddedShop, Folders
from postroom.lab.will import Will

OFFERS: Mapping[str, frozenset[str]] = {
    EMBEDDED: frozenset({FILE}),
    "rabbitmq": frozenset({WIRE, ROUTES, SERVER, ALARM, LIMIT}),
    "amqp": frozenset({WIRE, ROUTES}),
}
"""What scenarios get from each: a name starts a server, the scheme of an address does not."""


def kind(choice: str) -> str:
    """Return which of `OFFERS` a choice is; empty where it is none."""
    name, colon, _ = choice.partition("://")
    return name if name in OFFERS and bool(colon) == (name == "amqp") else ""


def shop_broker(address: str, file: Path) -> ShopBroker:
    """Return the broker of a shop: the embedded one in that file where there is no address."""
    if not address:
        return EmbeddedShop(file)
    from postroom.lab.brokers.rabbitmq.shop import RabbitmqShop  # noqa: PLC0415 - an extra

    return RabbitmqShop(address)


@asynccontextmanager
async def harbour(choice: str, will: Will) -> AsyncIterator[Harbour]:
    """Give what the shops of a run use.

    Raises DriverMissing, ServerMissing where no server can be started, and NoBroker where nobody
    answers at the address.
    """
    if choice == EMBEDDED:
        yield Folders()
        return
    from postroom.lab.brokers.rabbitmq import harbour as rabbitmq  # noqa: PLC0415 - an extra

    async with rabbitmq.harbour(choice, will) as found:
        yield found
