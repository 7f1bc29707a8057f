"""A process that receives from a Redis; it says what it got, one JSON line each.

Usage: python redis_party.py URL PREFIX TOPIC GROUP PREFETCH LEASE SINGLE. It answers nothing, and
takes the next delivery when a line comes in.
"""

import asyncio
import json
import sys
from datetime import timedelta

from postroom.brokers.redis import RedisBroker


async def consume(
    url: str, prefix: str, topic: str, group: str, prefetch: str, lease: str, single: str
) -> None:
    """Receive until killed."""
    broker = RedisBroker(
        url,
        prefix=prefix,
        lease=timedelta(seconds=float(lease)),
        single_active_consumer=single == "single",
    )
    await broker.open()
    async with broker.subscribe([topic], group=group, prefetch=int(prefetch)) as box:
        async for delivery in box:
            sys.stdout.write(json.dumps({"id": delivery.message.id}) + "\n")
            sys.stdout.flush()
            await asyncio.to_thread(sys.stdin.readline)


if __name__ == "__main__":
    asyncio.run(consume(*sys.argv[1:]))
