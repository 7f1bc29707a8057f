"""The rights that the page of the driver names are enough, and are those that it names."""

import re
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

from postroom.brokers.redis import RedisBroker
from postroom.lab.servers.redis import RedisServer
from tests.brokers.streams import TOPIC, ask, message, outcome, until

PAGE = Path(__file__).parents[2] / "docs/drivers/redis.md"
Client = Callable[..., RedisBroker]
Serve = Callable[..., RedisServer]


def rights(who: str) -> list[str]:
    """Return what the page says that this user needs."""
    [row] = re.findall(rf"^\| {who} \| (.+) \|$", PAGE.read_text(), flags=re.MULTILINE)
    return re.findall(r"\+[a-z|]+", row.replace("\\|", "|"))


@pytest.fixture
async def users(serve: Serve, prefix: str) -> dict[str, str]:
    """Addresses of users who may do what the page says, and nothing else."""
    server = serve()
    consumer = rights("consumer")
    allowed = {
        "relay": rights("relay"),
        "clerk": consumer,
        "boss": consumer + rights("`topology --apply`, `status`, `dead`"),
    }
    for name, commands in allowed.items():
        user = ("ACL", "SETUSER", name, "on", ">pw", f"~{prefix}*", "-@all")
        await ask(server.url, *user)
        for command in commands:
            known = await ask(server.url, "COMMAND", "INFO", command[1:].partition("|")[0])
            if known != [None]:  # WAITAOF is not in Redis 7.0
                await ask(server.url, "ACL", "SETUSER", name, command)
    return {name: server.url.replace("://", f"://{name}:pw@") for name in allowed}


async def test_the_rights_on_the_page_are_enough(client: Client, users: dict[str, str]) -> None:
    relay, boss = client(users["relay"]), client(users["boss"])
    clerk = client(users["clerk"], delete_acked=True, single_active_consumer=True)
    for broker in (relay, boss, clerk):
        await broker.open()
    await boss.apply_topology({"billing": [TOPIC]})
    await relay.ping()
    assert await outcome(relay, *map(message, "abcd")) == [None] * 4

    async with clerk.subscribe([TOPIC], group="billing", prefetch=2) as box:
        await (await anext(box)).ack()
        await (await anext(box)).retry(timedelta(milliseconds=10), "not yet")
        await (await anext(box)).reject("no stock")
        [subscription] = clerk._subscriptions
        await subscription._live()

        async def waiting() -> bool:
            return any(one.ready + one.out == 2 for one in await boss.queues())

        await until(waiting)

    assert await boss.replay_dead("billing") == 1
    assert await boss.discard_dead("billing") == 0
    assert await boss.drop_group("billing") > 0
