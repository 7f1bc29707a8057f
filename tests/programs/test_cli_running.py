"""`relay` and `consume`: in this process where they end by themselves, else as real processes."""

import json
import os
import pty
import signal
import sqlite3
import subprocess
import sys
import time
from itertools import islice
from pathlib import Path
from textwrap import dedent

import pytest

from tests.programs.shop import Shop

STOPS_WITHIN = 2.0

SHIPPING = dedent('''
    """A consumer with a database of its own."""

    import sqlite3
    from dataclasses import dataclass

    from postroom.connections import sqlite3_transactions
    from postroom.consumer import Consumer, Context
    from postroom.message import message
    from postroom.retry import RetryPolicy
    from postroom.stores.sqlite import SqliteStore

    FAILING = "failing"

    @message("shop.order-placed")
    @dataclass
    class OrderPlaced:
        number: int
        note: str

    shipping = Consumer(
        "shipping",
        begin=sqlite3_transactions("shipping.db"),
        store=SqliteStore("shipping.db"),
        retry=RetryPolicy(max_attempts=1),
    )
    other = 5

    @shipping.on(OrderPlaced)
    def ship(order: OrderPlaced, context: Context[sqlite3.Connection]) -> None:
        context.connection.execute("create table if not exists parcel (number integer)")
        if order.number < 0:
            raise ValueError("no such order")
        context.connection.execute("insert into parcel values (?)", (order.number,))
''')

PUTTING = dedent("""
    import sqlite3
    import sys

    from shipping import OrderPlaced
    from postroom.outbox import SyncOutbox
    from postroom.stores.sqlite import SqliteStore

    outbox = SyncOutbox(SqliteStore("shop.db"))
    connection = sqlite3.connect("shop.db", isolation_level=None)
    connection.execute("BEGIN IMMEDIATE")
    for number in map(int, sys.argv[1:]):
        outbox.put(connection, OrderPlaced(number, "by a script"))
    connection.execute("COMMIT")
""")


@pytest.fixture
def shipping(shop: Shop) -> Shop:
    """A shop with a consumer module and a script that puts orders."""
    (shop.path / "shipping.py").write_text(SHIPPING)
    (shop.path / "put.py").write_text(PUTTING)
    assert shop.cli("init", POSTROOM_STORE="sqlite:///shipping.db").code == 0
    return shop


def finished(shop: Shop, *args: str, **environ: str) -> tuple[int, str, str]:
    """Run a command as a process to its end."""
    process = shop.process(*args, stdin=None, **environ)
    out, err = process.communicate(timeout=30)
    return process.returncode, out, err


def stopped(process: "subprocess.Popen[str]", kind: signal.Signals, sign: str) -> tuple[str, float]:
    """Wait for a log line, send a signal, and return what was said then, and the seconds taken."""
    assert process.stderr is not None
    line = ""
    for line in process.stderr:
        if sign in line:
            break
    assert sign in line
    began = time.monotonic()
    process.send_signal(kind)
    _, err = process.communicate(timeout=30)
    return err, time.monotonic() - began


def parcels(shop: Shop) -> list[int]:
    connection = sqlite3.connect(shop.path / "shipping.db")
    found = [number for (number,) in connection.execute("select number from parcel order by 1")]
    connection.close()
    return found


def test_the_whole_story(shipping: Shop) -> None:
    """Orders are put by a program, sent, handled once; one is given up and sent again."""
    shop = shipping
    subprocess.run(
        [sys.executable, "put.py", "1", "2", "-3"], cwd=shop.path, env=shop.environ, check=True
    )

    code, out, _ = finished(shop, "relay", "--until-empty", "--timeout", "20s", "--json")
    assert (code, json.loads(out)["sent"]) == (0, 3)

    consume = ("consume", "shipping:shipping", "--until-empty", "--timeout", "20s", "--json")
    code, out, err = finished(shop, *consume)
    assert code == 0, err
    assert json.loads(out) == {
        "consumers": ["shipping"],
        "handled": 2,
        "duplicates": 0,
        "failed": 0,
        "dead": 1,
    }
    assert parcels(shop) == [1, 2]
    assert "event=dead-lettered" in err

    seen = json.loads(finished(shop, "status", "--json")[1])
    assert seen["outbox"]["routes"]["default"]["sent"] == 3
    assert seen["broker"]["dead_letters"] == 1

    (letter,) = json.loads(finished(shop, "dead", "list", "--from", "shipping", "--json")[1])[
        "messages"
    ]
    assert letter["payload"] == {"number": -3, "note": "by a script"}
    assert letter["error"] == "ValueError: no such order"

    source = (shop.path / "shipping.py").read_text()
    (shop.path / "shipping.py").write_text(source.replace("order.number < 0", "False"))
    assert finished(shop, "dead", "replay", "--from", "shipping", "--yes")[0] == 0
    assert finished(shop, *consume)[0] == 0
    assert parcels(shop) == [-3, 1, 2]


@pytest.mark.parametrize("kind", [signal.SIGTERM, signal.SIGINT])
def test_a_relay_stops_in_time_and_with_0(shop: Shop, kind: signal.Signals) -> None:
    shop.put(*(shop.order(number) for number in range(50)))
    process = shop.process("relay", "--json")

    err, seconds = stopped(process, kind, "event=lanes-taken")

    assert process.returncode == 0, err
    assert seconds < STOPS_WITHIN
    assert "event=relay-stopped" in err
    assert "Traceback" not in err
    assert not shop.cli("status", "--json").json["relays"]


def test_two_signals_at_once_are_one(shop: Shop) -> None:
    """Coreutils' `timeout` signals the process and its group."""
    process = shop.process("relay", "--json")
    assert process.stderr is not None
    assert any("event=lanes-taken" in line for line in process.stderr)

    process.send_signal(signal.SIGTERM)
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=30)

    assert process.returncode == 0, err
    assert json.loads(out)["sent"] == 0


AGAIN = dedent("""
    import asyncio, signal, sys, threading
    from postroom import _signals
    from postroom.cli import start

    kind, _signals._ONE_WISH = signal.Signals[sys.argv[1]], float(sys.argv[2])

    async def main() -> None:
        stop, release = asyncio.Event(), threading.Event()
        with start.stopped_by_signals(stop):
            handler = asyncio.get_running_loop().run_in_executor(None, release.wait)
            signal.raise_signal(kind)
            await stop.wait()
            signal.raise_signal(kind)
            release.set()
            await handler

    asyncio.run(main())
    signal.raise_signal(kind)
    print("ended")
""")


@pytest.mark.parametrize("kind", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("wish", [0, 1000])
def test_a_later_second_signal_ends_at_once_whatever_runs(kind: signal.Signals, wish: int) -> None:
    process = subprocess.run(
        [sys.executable, "-c", AGAIN, kind.name, str(wish)],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )

    assert (process.returncode, process.stdout) == ((0, "ended\n") if wish else (-kind, ""))
    assert process.stderr == f"{kind.name}: stopping\n"


@pytest.mark.parametrize("kind", [signal.SIGTERM, signal.SIGINT])
def test_a_consumer_stops_in_time_and_with_0(shipping: Shop, kind: signal.Signals) -> None:
    process = shipping.process("consume", "shipping:shipping")

    err, seconds = stopped(process, kind, "event=consumer-started")

    assert process.returncode == 0, err
    assert seconds < STOPS_WITHIN
    assert "event=consumer-stopped" in err
    assert "Traceback" not in err


def test_a_relay_stops_in_time_while_the_broker_is_away(shop: Shop) -> None:
    shop.put(shop.order())
    process = shop.process("relay", POSTROOM_BROKER="sqlite:////no/such/directory/b.db")

    err, seconds = stopped(process, signal.SIGTERM, "event=paused")

    assert process.returncode == 0, err
    assert seconds < STOPS_WITHIN


def test_a_relay_writes_json_lines_and_nothing_to_standard_output(shop: Shop) -> None:
    shop.put(shop.order())

    done = shop.cli("relay", "--until-empty", POSTROOM_LOG__FORMAT="json")

    lines = [json.loads(line) for line in done.err.splitlines() if line.startswith("{")]
    assert {"relay-started", "lanes-taken", "sent", "relay-stopped"} <= {
        line["event"] for line in lines
    }
    assert done.out == ""
    assert done.err.splitlines()[-1] == "1 sent, 0 retried, 0 dead"


def test_the_log_level_is_obeyed(shop: Shop) -> None:
    shop.put(shop.order())

    assert "event=" not in shop.cli("relay", "--once", POSTROOM_LOG__LEVEL="error").err
    shop.put(shop.order())
    assert "event=publishing" in shop.cli("relay", "--once", POSTROOM_LOG__LEVEL="debug").err


def test_once_does_one_round(shop: Shop) -> None:
    shop.put(shop.order())

    done = shop.cli("relay", "--once", "--name", "relay-1", "--json").json

    name = done.pop("relay")
    assert name.startswith("relay-1-")
    assert done == {"sent": 1, "retried": 0, "dead": 0}
    assert shop.cli("status", "--json").json["outbox"]["unsent"] == 0


def test_until_empty_gives_up_in_time(shop: Shop) -> None:
    """With 3 where the broker is away, because then nobody else is to blame."""
    shop.put(shop.order())
    away = {"POSTROOM_BROKER": "sqlite:////no/such/directory/b.db"}

    done = shop.cli("relay", "--until-empty", "--timeout", "300ms", **away)
    once = shop.cli("relay", "--once", **away)

    assert (done.code, once.code) == (3, 3)
    assert "cannot be reached" in once.err


def test_a_relay_without_tables_ends_with_3(empty_shop: Shop) -> None:
    for args in (("relay",), ("relay", "--once"), ("relay", "--until-empty")):
        done = empty_shop.cli(*args)
        assert done.code == 3, done.err
        assert "run `postroom init`" in done.err


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("shipping", "does not say which consumer of the module"),
        ("shipping:", "is not MODULE:APP"),
        ("./shipping:shipping", "is not MODULE:APP, such as shop.shipping:consumer"),
        ("shipping.py:shipping", "there is no module 'shipping.py' in"),
        (":shipping", "is not MODULE:APP"),
        ("shiping:shipping", "there is no module 'shiping' in"),
        ("shipping.more:shipping", "there is no module 'shipping.more' in"),
        ("shipping:shiping", "did you mean 'shipping:shipping'?"),
        ("shipping:other", "shipping:other is a int, not a Consumer"),
        ("broken:consumer", "importing 'broken' failed: ZeroDivisionError: division by zero"),
        ("needs:consumer", "importing 'needs' failed: ModuleNotFoundError: No module named 'xyz'"),
        ("nothing:consumer", "the module has no consumer; make one"),
    ],
)
def test_a_wrong_path_is_explained(shipping: Shop, path: str, expected: str) -> None:
    (shipping.path / "broken.py").write_text("1 / 0")
    (shipping.path / "needs.py").write_text("import xyz")
    (shipping.path / "nothing.py").write_text("")

    code, out, err = finished(shipping, "consume", path)

    assert (code, out) == (2, "")
    assert expected in err
    assert "Traceback" not in err


def test_a_consumer_without_handlers_ends_with_2(shipping: Shop) -> None:
    (shipping.path / "idle.py").write_text(SHIPPING.partition("@shipping.on")[0])

    code, _, err = finished(shipping, "consume", "idle:shipping")

    assert code == 2
    assert "has no handlers" in err


@pytest.mark.parametrize(("answer", "code"), [("y", 0), ("n", 5), ("", 5), ("\x04", 5)])
def test_a_person_at_a_terminal_is_asked(shop: Shop, answer: str, code: int) -> None:
    shop.dead(2)
    master, slave = pty.openpty()
    process = shop.process("dead", "discard", stdin=slave)
    os.write(master, f"{answer}\n".encode())

    out, err = process.communicate(timeout=30)

    os.close(master)
    os.close(slave)
    assert "Delete 2 dead messages for good? [y/N]" in err
    assert process.returncode == code
    assert ("2 dead messages were deleted" in out) == (code == 0)


def test_a_watch_goes_on_until_it_is_stopped(shop: Shop) -> None:
    process = shop.process("status", "--watch", "0.1")
    assert process.stdout is not None
    seen = [line for line in islice(process.stdout, 12) if "the outbox is empty" in line]
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)

    assert process.returncode == 0, err
    assert len(seen) > 1


def test_the_working_directory_of_a_caller_is_not_needed(shop: Shop, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    process = subprocess.run(
        [sys.executable, "-m", "postroom.cli.main", "status", "--json"],
        cwd=elsewhere,
        env={**shop.environ, "POSTROOM_CONFIG": str(shop.path / "postroom.toml")},
        capture_output=True,
        check=False,
    )

    # Relative paths in the settings are relative to where the command runs.
    assert process.returncode == 3
