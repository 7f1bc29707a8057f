"""A publisher in a process of its own, which hangs while it publishes a batch.

python kafka_publisher.py URL TOPIC COUNT SECONDS HANG
"""

import asyncio
import ctypes
import sys
from datetime import timedelta

from postroom.brokers.kafka import KafkaBroker
from postroom.message import Message


async def main() -> None:
    """Say what it is about to do, and in the end how many were confirmed."""
    url, topic, count, seconds, hang = sys.argv[1:]
    broker = KafkaBroker(url)
    await broker.open()

    async def publish(names: list[str]) -> int:
        batch = [Message(id=one, type="t", topic=topic, payload=b"x" * 10_000) for one in names]
        results = await broker.publish(batch, timeout=timedelta(seconds=int(seconds)))
        return results.count(None)

    say(f"ready {await publish(['warm'])}")
    sys.stdin.readline()
    publishing = asyncio.create_task(publish([str(number) for number in range(int(count))]))
    await asyncio.sleep(0.5)  # what is still not in librdkafka's hands then, is never sent
    say("queued")
    ctypes.PyDLL(None).sleep(int(hang))  # keeps the interpreter's lock: no thread of ours runs
    say(f"confirmed {await publishing}")
    await broker.close()


def say(what: str) -> None:
    """Tell whoever started us."""
    sys.stdout.write(f"{what}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(main())
