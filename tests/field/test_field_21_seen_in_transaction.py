"""'Seen' recorded outside the handler's transaction: effect and inbox row are one."""

import sqlite3
from contextlib import closing, suppress
from typing import Any

import pytest

from postroom import Inbox, Message

MESSAGE = Message(type="shop.order-placed", payload=b"{}")
KINDS = ("sqlite3", "session", "aiosqlite")


def test_a_handler_that_raises_runs_again(small_shop: Any) -> None:
    inbox = Inbox(small_shop.store, "shipping")
    seen = []
    for failing in (True, False, False):
        with (
            suppress(RuntimeError),
            closing(sqlite3.connect(small_shop.store.path)) as connection,
            connection,
        ):
            connection.execute("BEGIN IMMEDIATE")
            seen.append(inbox.first(connection, MESSAGE.id))
            if failing:
                raise RuntimeError

    assert seen == [True, True, False]
    assert small_shop.seen() == 1


@pytest.mark.crash
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("point", ["begun", "first", "second", "committed"])
def test_killed_while_handling(small_shop: Any, killed_at: Any, kind: str, point: str) -> None:
    """Killed between inbox row and commit it runs again; killed after the commit it does not."""
    killed_at(kind, "handle", point)
    after_kill = small_shop.orders(), small_shop.seen()
    killed_at(kind, "handle", "committed")

    assert after_kill == (({f"{kind}-0"}, 1) if point == "committed" else (set(), 0))
    assert small_shop.orders() == {f"{kind}-0"}
    assert small_shop.seen() == 1
