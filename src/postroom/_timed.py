"""Where in a class a time can stand."""

from collections.abc import Collection, Iterator
from functools import cache
from typing import Any

import msgspec


@cache
def timed_fields(cls: Any) -> Collection[str] | None:
    """Return the fields of the class in which a datetime can stand and come back as one.

    None if the class has no fields of its own, but datetimes somewhere.
    """
    whole = msgspec.inspect.type_info(cls)
    if isinstance(whole, msgspec.inspect.DataclassType | msgspec.inspect.StructType):
        return [field.name for field in whole.fields if _has_times(field.type)]
    return None if _has_times(whole) else ()


def _has_times(kind: msgspec.inspect.Type) -> bool:
    return any(isinstance(part, msgspec.inspect.DateTimeType) for part in _kinds(kind))


def _kinds(kind: msgspec.inspect.Type) -> Iterator[msgspec.inspect.Type]:
    """Go through all types that this one is made of, each once."""
    waiting: list[object] = [kind]
    seen: set[int] = set()
    while waiting:
        item = waiting.pop()
        if id(item) in seen:
            continue
        seen.add(id(item))
        if isinstance(item, tuple | list):
            waiting.extend(item)
        elif isinstance(item, msgspec.inspect.Type):
            yield item
            waiting.extend(getattr(item, name) for name in item.__struct_fields__)
        elif isinstance(item, msgspec.inspect.Field):
            waiting.append(item.type)
