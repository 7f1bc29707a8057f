"""Names for classes: explicit, stable, of this very class."""

from dataclasses import dataclass

from postroom import message
from postroom.message import message_type


@message("shop.order-placed", aliases=("shop.ordered",), key="id", version="n", topic="orders")
@dataclass
class OrderPlaced:
    """A class with everything that can be said."""

    id: str
    n: int


class Later(OrderPlaced):
    """A class without a name of its own."""


def test_a_class_bears_what_was_said() -> None:
    stamp = message_type(OrderPlaced)

    assert stamp is not None
    assert (stamp.name, stamp.aliases) == ("shop.order-placed", ("shop.ordered",))
    assert (stamp.key, stamp.version, stamp.topic) == ("id", "n", "orders")


def test_a_subclass_does_not_inherit_the_name() -> None:
    assert message_type(Later) is None


def test_the_class_stays_what_it_was() -> None:
    assert OrderPlaced(id="a", n=1) == OrderPlaced("a", 1)
