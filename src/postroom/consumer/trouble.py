"""Why a subscription must be left."""

import asyncio


class Trouble:
    """What went wrong during one subscription; the first reason counts."""

    def __init__(self) -> None:
        self.told: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        """Has the reason once there is one."""
        self.worked = False
        """Whether any delivery was ended meanwhile."""

    def leave(self, reason: str) -> None:
        """Have it left, for something that passes."""
        if not self.told.done():
            self.told.set_result(reason)

    def fail(self, error: BaseException) -> None:
        """Have it left, for something that no waiting cures."""
        if not self.told.done() and not isinstance(error, asyncio.CancelledError):
            self.told.set_exception(error)
