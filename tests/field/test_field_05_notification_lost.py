"""Notifications are lost on reconnect and on silent drops.

The relay polls seldom, its listener is ended by the server or cut off without a word, and a
message is committed meanwhile. It must be published within the poll and two seconds, always; and
once the listener is back, wake-ups work again.
"""

import asyncio
from urllib.parse import urlsplit

import pytest

from postroom.lab.servers.proxy import Proxy
from postroom.stores.postgresql import waiting
from tests.field.conftest import SERVERS
from tests.field.relaying import relaying
from tests.postgresql import ground
from tests.servers import Server

POLL = 4.0


@pytest.mark.parametrize("server", SERVERS)
async def test_field_05_listener_ended(server: Server) -> None:
    with ground(server.url) as place:
        async with relaying(place, server.url, poll=POLL) as relay:
            listener = await relay.listener()
            for number in range(3):
                assert place.query("select pg_terminate_backend(%s)", listener) == [(True,)]
                relay.commit(f"without {number}")
                assert await relay.sent(within=POLL + 2) == f"without {number}"
                listener = await relay.listener(but=listener)
            await asyncio.sleep(0.5)  # until it has said that it sleeps

            relay.commit("heard")

            assert await relay.sent(within=POLL / 2) == "heard"


@pytest.mark.parametrize("server", SERVERS)
async def test_field_05_silent_wire(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "ASK", 0.2)
    monkeypatch.setattr(waiting, "ANSWER", 1.0)
    address = urlsplit(server.url)
    with ground(server.url) as place, Proxy(address.hostname or "", address.port or 5432) as proxy:
        through = address._replace(netloc=f"{address.username}@127.0.0.1:{proxy.port}").geturl()
        async with relaying(place, through, poll=POLL) as relay:
            proxy.silence()
            relay.commit("not heard")
            await asyncio.sleep(1)
            proxy.restore()

            assert await relay.sent(within=POLL + 2) == "not heard"
