"""Acknowledgements of the same moment travel together."""

import asyncio

from postroom.brokers.redis.member import GroupGone, Member
from postroom.errors import BrokerUnavailable

_Waiting = dict[str, list[tuple[bytes, "asyncio.Future[bool]"]]]


class Acks:
    """Collects what is done while the last ones are under way."""

    def __init__(self, member: Member) -> None:
        """Tell for that consumer."""
        self._member = member
        self._waiting: _Waiting = {}
        self._task: asyncio.Task[None] | None = None

    async def ack(self, topic: str, entry: bytes) -> bool:
        """Let go of an entry; say whether it was ours. Raises BrokerUnavailable or GroupGone."""
        answer: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(topic, []).append((entry, answer))
        if self._task is None or self._task.done():
            self._task = asyncio.ensure_future(self._tell())
        return await answer

    async def end(self, patience: float) -> None:
        """Wait until everything is told."""
        if self._task is not None and not self._task.done():
            await asyncio.wait((self._task,), timeout=patience)

    async def _tell(self) -> None:
        while self._waiting:
            waiting, self._waiting = self._waiting, {}
            for topic, pairs in waiting.items():
                await self._tell_of(topic, pairs)

    async def _tell_of(self, topic: str, pairs: list[tuple[bytes, "asyncio.Future[bool]"]]) -> None:
        try:
            answers = await self._member.ack(topic, [entry for entry, _ in pairs])
        except (BrokerUnavailable, GroupGone) as error:
            for _, future in pairs:
                if not future.done():
                    future.set_exception(error)
            return
        for (_, future), answer in zip(pairs, answers, strict=True):
            if not future.done():
                future.set_result(answer)
