"""Routes: which way a type of message goes, and by which rules."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Literal

from postroom.message import Message
from postroom.retry import RetryPolicy


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """The rules for the messages whose type matches one of `types`."""

    name: str = "default"
    types: tuple[str, ...] = ("*",)
    """Names or patterns (`shop.*`) of message types."""
    topic: str | None = None
    """Where they go; None means a topic named like the type."""
    retry: RetryPolicy = field(default_factory=RetryPolicy)
    on_dead: Literal["continue", "park"] = "continue"
    """What a dead message does to its key: let the next go on, or wait for a person."""
    pipelined_keys: bool = False
    """Send several messages of one key at once: faster, but a partial refusal loses the order."""


class Routes:
    """All routes of a process, in order; the first that matches a type takes it."""

    def __init__(self, routes: Sequence[Route] = ()) -> None:
        """Take the routes in order; a catch-all `default` follows them unless one is named so."""
        named = list(routes)
        if all(route.name != "default" for route in named):
            named.append(Route())
        names = [route.name for route in named]
        if len(set(names)) != len(names):
            raise ValueError("two routes have the same name")
        self._routes = {route.name: route for route in named}

    def __iter__(self) -> Iterator[Route]:
        """Go through the routes in order."""
        return iter(self._routes.values())

    def of(self, message: Message) -> Route | None:
        """Return the route of a message's type, or None when none matches."""
        return self.of_type(message.type)

    def of_type(self, name: str) -> Route | None:
        """Return the route of a type's name, or None when none matches."""
        for route in self._routes.values():
            if any(fnmatchcase(name, pattern) for pattern in route.types):
                return route
        return None

    def named(self, name: str) -> Route | None:
        """Return the route of that name."""
        return self._routes.get(name)
