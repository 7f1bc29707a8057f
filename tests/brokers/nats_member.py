"""Another consumer of the group billing: it says what it receives, and answers nothing.

Usage: python nats_member.py URL TOPIC
"""

import asyncio
import sys

from postroom.brokers.nats import NatsBroker


async def main(url: str, topic: str) -> None:
    """Receive until killed."""
    broker = NatsBroker(url)
    await broker.open()
    async with broker.subscribe([topic], group="billing", prefetch=5) as box:
        async for delivery in box:
            sys.stdout.write(f"{delivery.message.id}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
