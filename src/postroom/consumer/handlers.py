"""Which handler takes which type: a small table, filled by a decorator."""

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from postroom.codecs import decode
from postroom.errors import SettingsError, Undecodable, UnknownType
from postroom.message import Message, message_type
from postroom.route import Routes

Handler = Callable[[Any, Any], Any]


@dataclass(frozen=True, slots=True)
class _Registration:
    handler: Handler
    into: type | None

    def read(self, message: Message) -> object:
        """Return the event that the handler takes."""
        return message if self.into is None else decode(message, self.into)


class Handlers:
    """Handlers by the name of the type."""

    def __init__(self) -> None:
        """Begin with none."""
        self._table: dict[str, _Registration] = {}
        self._topics: list[tuple[str | None, tuple[str, ...]]] = []

    def __iter__(self) -> Iterator[Handler]:
        """Go through the handlers."""
        return (registration.handler for registration in self._table.values())

    def topics(self, routes: Routes) -> tuple[str, ...]:
        """Return the topics that carry what the handlers take, in the order of registration.

        What was said at the registration comes first, then the topic of the type's route.
        """
        found: dict[str, None] = {}
        for topic, names in self._topics:
            for name in names:
                route = routes.of_type(name)
                found[topic or (route and route.topic) or name] = None
        return tuple(found)

    def add(
        self, kind: type | str, handler: Handler, *, into: type | None, topic: str | None
    ) -> None:
        """Let the handler take a class, by its name and aliases, or a name."""
        names: tuple[str, ...]
        if isinstance(kind, str):
            names = (kind,)
        else:
            stamp = message_type(kind)
            if stamp is None:
                raise SettingsError(
                    f"{kind.__name__} has no stable name; decorate it with "
                    '@message("...") or register the handler for a name'
                )
            names = (stamp.name, *stamp.aliases)
            into = into or kind
            topic = topic or stamp.topic or None
        for name in names:
            if name in self._table:
                raise SettingsError(f"two handlers take {name}; one consumer has one for a type")
            self._table[name] = _Registration(handler, into)
        self._topics.append((topic, names))

    def of(self, message: Message) -> tuple[Handler, object]:
        """Return the handler of a message and the event for it.

        Raises UnknownType, or Undecodable where the payload does not fit the type.
        """
        if not message.id:
            raise Undecodable("it has no id, so nobody could tell a copy from a new one")
        registration = self._table.get(message.type)
        if registration is None:
            raise UnknownType(f"no handler takes {message.type}")
        return registration.handler, registration.read(message)


def is_async(handler: Handler) -> bool:
    """Say whether calling the handler gives something to await."""
    call = inspect.unwrap(handler)
    return inspect.iscoroutinefunction(call) or inspect.iscoroutinefunction(
        getattr(call, "__call__", None)  # noqa: B004 - the method itself is looked at
    )
