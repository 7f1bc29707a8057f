"""A consumer in a process of its own, to be killed: it acknowledges all but one message.

python kafka_member.py URL PREFIX TOPIC HELD
"""

import asyncio
import sys
from datetime import timedelta

from postroom.brokers.kafka import KafkaBroker


async def main() -> None:
    """Tell what arrives, and keep the one in hands."""
    url, prefix, topic, held = sys.argv[1:]
    broker = KafkaBroker(url, group_prefix=prefix, session_timeout=timedelta(seconds=6))
    await broker.open()
    async with broker.subscribe([topic], group="billing", prefetch=20) as box:
        async for delivery in box:
            sys.stdout.write(f"{delivery.message.id} {delivery.redelivered}\n")
            sys.stdout.flush()
            if delivery.message.id != held:
                await delivery.ack()


if __name__ == "__main__":
    asyncio.run(main())
