"""What has to exist in Redis: a stream for each topic, with the groups that receive it."""

from collections.abc import Mapping, Sequence

from postroom.broker import TopologyPart
from postroom.brokers.redis.names import Names


def parts(names: Names, groups: Mapping[str, Sequence[str]]) -> list[TopologyPart]:
    """Return what these groups need, with the topics of each, in the order of making.

    Raises ValueError for names that Redis cannot be told.
    """
    found: dict[tuple[str, str], TopologyPart] = {}
    for group, topics in groups.items():
        for topic in topics:
            stream = _text(names, topic)
            group.encode()
            for part in (
                TopologyPart(kind="stream", name=stream, detail="of a topic, never trimmed by us"),
                TopologyPart(
                    kind="group",
                    name=f"{group} of {stream}",
                    detail="begins with the oldest entry; is told when entries are done",
                ),
            ):
                found.setdefault((part.kind, part.name), part)
    return list(found.values())


def _text(names: Names, topic: str) -> str:
    return names.stream(topic).decode()
