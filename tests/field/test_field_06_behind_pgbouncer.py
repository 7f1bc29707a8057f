"""Behind pgbouncer in transaction mode.

The whole conformance suite runs behind one in `tests/stores/test_postgresql_pooler.py`, and what
a session may keep is looked at there. Here a relay runs behind one: everything leaves, in order,
by polling, with one warning.
"""

import asyncio
import logging

import pytest

from tests.field.conftest import SERVERS
from tests.field.relaying import relaying
from tests.postgresql import ground
from tests.servers import Server
from tests.stores.pgbouncer import pooled

POLL = 0.2


@pytest.mark.parametrize("server", SERVERS)
async def test_field_06_behind_pgbouncer(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    with ground(server.url) as place, pooled(server.url) as url:
        async with relaying(place, url, poll=POLL) as relay:
            for number in range(20):
                relay.commit(f"{number}")
            arrived = [await relay.sent(within=10) for _ in range(20)]
            async with asyncio.timeout(20):
                while not warned(caplog):
                    await asyncio.sleep(0.01)
            await asyncio.sleep(3 * POLL)

    assert arrived == [f"{number}" for number in range(20)]
    (warning,) = warned(caplog)
    assert "pooler" in warning


def warned(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return what was said aloud."""
    return [one.getMessage() for one in caplog.records if one.levelno >= logging.WARNING]
