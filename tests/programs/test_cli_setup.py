"""The command line as a whole: settings, errors, exit codes, help; `init` and `schema`."""

import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import version
from typing import Any

import pytest
import typer.main

import postroom
from postroom.cli.main import app
from tests.programs.shop import Shop

HUSH = "s3cr3t"
ADDRESSES = (
    f"sqlite://ann:{HUSH}@host/shop.db",
    f"postgresql://ann:{HUSH}@host/shop",
    f"memory:{HUSH}@",
    f"ann:{HUSH}@host",
    f"sqlite:///no/such/directory/x.db?password={HUSH}",
)


def commands() -> Iterator[tuple[str, ...]]:
    root: Any = typer.main.get_command(app)
    for name, command in root.commands.items():
        yield (name,)
        yield from ((name, each) for each in getattr(command, "commands", ()))


def test_init_does_only_what_is_missing_and_says_so(empty_shop: Shop) -> None:
    first, second = empty_shop.cli("init"), empty_shop.cli("init")

    assert (first.code, second.code) == (0, 0)
    assert first.out.splitlines() == [
        "postroom.toml: written",
        "sqlite:///postroom.db: applied 0001_first_tables",
        "sqlite:///postroom-broker.db: ready",
    ]
    assert second.out.splitlines() == [
        "postroom.toml: was there, left as it is",
        "sqlite:///postroom.db: up to date",
        "sqlite:///postroom-broker.db: ready",
    ]
    assert {path.name for path in empty_shop.path.iterdir()} >= {
        "postroom.toml",
        "postroom.db",
        "postroom-broker.db",
    }


def test_init_leaves_a_file_of_the_user_alone(empty_shop: Shop) -> None:
    config = empty_shop.path / "shop.toml"
    config.write_text('store = "sqlite:///mine.db"')

    done = empty_shop.cli("init", "--config", "shop.toml", "--json")

    assert done.json == {
        "config": {"path": "shop.toml", "written": False},
        "store": "sqlite:///mine.db",
        "migrations": ["0001_first_tables"],
        "broker": "sqlite:///postroom-broker.db",
    }
    assert config.read_text() == 'store = "sqlite:///mine.db"'
    assert not (empty_shop.path / "postroom.toml").exists()


def test_init_writes_the_addresses_in_use(empty_shop: Shop) -> None:
    done = empty_shop.cli("init", POSTROOM_STORE="sqlite:///a.db?busy_timeout=2s")

    again = empty_shop.cli("status", "--json")
    assert (done.code, again.code) == (0, 0)
    text = (empty_shop.path / "postroom.toml").read_text()
    assert 'store = "sqlite:///a.db?busy_timeout=2s"' in text
    assert 'broker = "sqlite:///postroom-broker.db"' in text
    assert not (empty_shop.path / "postroom.db").exists()


def test_init_writes_no_address_that_cannot_be_used(empty_shop: Shop) -> None:
    done = empty_shop.cli("init", POSTROOM_STORE="sqlit:///a.db")

    assert done.code == 2
    assert "POSTROOM_STORE: unknown scheme 'sqlit'" in done.err
    assert list(empty_shop.path.iterdir()) == []


def test_init_says_where_it_cannot_write(empty_shop: Shop) -> None:
    done = empty_shop.cli("init", "--config", "no/such/directory/shop.toml")

    assert (done.code, done.out) == (2, "")
    assert "no/such/directory/shop.toml: cannot be written" in done.err


def test_schema_prints_sql_that_makes_the_same_tables(empty_shop: Shop) -> None:
    script = empty_shop.cli("schema").out
    by_hand = sqlite3.connect(empty_shop.path / "by_hand.db", isolation_level=None)
    by_hand.executescript(script)
    by_hand.close()

    assert empty_shop.cli("schema", "--json").json == {"store": "sqlite", "sql": script}
    done = empty_shop.cli("init", "--json", POSTROOM_STORE="sqlite:///by_hand.db")
    assert done.json["migrations"] == []


@pytest.mark.parametrize("command", list(commands()), ids=" ".join)
def test_every_help_has_examples(shop: Shop, command: tuple[str, ...]) -> None:
    text = shop.cli(*command, "--help").out

    assert "Usage: " in text
    assert [line for line in text.splitlines() if "<bool>" in line and "--help" not in line] == []
    if command not in {("dead",), ("held",)}:
        assert f"postroom {' '.join(command)}" in text.partition("Examples:")[2]


def test_the_help_lists_the_exit_codes(shop: Shop) -> None:
    text = shop.cli("--help").out

    assert [
        line.split()[0] for line in text.partition("Exit codes:")[2].splitlines() if line.split()
    ] == [*("0", "1", "2", "3", "4", "5", "70")]


def test_init_says_what_was_done_before_the_broker_failed(empty_shop: Shop) -> None:
    done = empty_shop.cli("init", POSTROOM_BROKER="sqlite:////no/such/directory/b.db")

    assert done.code == 3
    assert done.out.splitlines() == [
        "postroom.toml: written",
        "sqlite:///postroom.db: applied 0001_first_tables",
    ]


def test_init_refuses_tables_of_a_newer_version(shop: Shop) -> None:
    connection = sqlite3.connect(shop.path / "shop.db")
    with connection:
        connection.execute("insert into postroom_schema values (99, 'future', 0)")
    connection.close()

    done = shop.cli("init")

    assert done.code == 3
    assert "upgrade Postroom" in done.err


@pytest.mark.parametrize(
    ("text", "environ", "told"),
    [
        ("", {"POSTROOM_STORE": ""}, "POSTROOM_STORE: expected an address, not an empty text"),
        ("", {"POSTROOM_BROKER": "sqlit:///b.db"}, "POSTROOM_BROKER: unknown scheme 'sqlit'"),
        ('store = "sqlit:///a.db"', {}, "postroom.toml: store: unknown scheme 'sqlit'"),
        (
            'broker = "sqlite:///b.db?max_message_bytes=many"',
            {},
            "postroom.toml: broker: option 'max_message_bytes' in the address: 'many' is not a",
        ),
    ],
)
def test_an_error_of_an_address_says_where_it_was_read(
    empty_shop: Shop, text: str, environ: dict[str, str], told: str
) -> None:
    (empty_shop.path / "postroom.toml").write_text(text)

    done = empty_shop.cli("status", **environ)

    assert done.code == 2
    assert told in done.err


def test_sizes_in_addresses_are_read_like_sizes_in_the_file(shop: Shop) -> None:
    address = "sqlite:///broker.db?max_message_bytes=100KiB"

    assert shop.cli("status", POSTROOM_BROKER=address).code == 0


def test_the_package_runs_and_knows_its_version() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "postroom", "--version"], capture_output=True, text=True, check=True
    )

    assert done.stdout == f"postroom {postroom.__version__}\n"


def test_ctrl_c_while_it_loads_prints_no_traceback(empty_shop: Shop) -> None:
    loading = empty_shop.path / "typer.py"
    loading.write_text("import signal; signal.raise_signal(signal.SIGINT)")
    done = subprocess.run(
        [sys.executable, "-m", "postroom", "status"],
        cwd=empty_shop.path,
        capture_output=True,
        text=True,
        check=False,
    )

    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_the_version(shop: Shop) -> None:
    assert shop.cli("--version").out == f"postroom {version('postroom')}\n"


@pytest.mark.parametrize(
    "args",
    [
        ("status", "--nonsense"),
        ("nonsense",),
        ("show",),
        ("dead", "list", "--limit", "0"),
        ("dead", "list", "--since", "yesterday"),
        ("dead", "list", "--from", "shipping", "--route", "default"),
        ("status", "--watch", "1", "--json"),
        ("status", "--max-age", "5"),
        ("prune", "--sent-older-than", "7"),
        ("relay", "--once", "--until-empty"),
        ("relay", "--timeout", "5s"),
        ("consume", "nowhere:consumer"),
        ("consume", "nowhere"),
        ("--config", "no.toml", "status"),
    ],
    ids=" ".join,
)
def test_wrong_use_exits_with_2(shop: Shop, args: tuple[str, ...]) -> None:
    done = shop.cli(*args)

    assert (done.code, done.out) == (2, "")
    assert done.err


@pytest.mark.parametrize("args", [("--config", "a.toml", "status"), ("status", "--config=a.toml")])
def test_global_options_stand_before_or_after_the_command(
    shop: Shop, args: tuple[str, ...]
) -> None:
    (shop.path / "a.toml").write_text("stor = 1")

    done = shop.cli(*args)

    assert done.code == 2
    assert done.err.splitlines()[0] == (
        "error: a.toml: unknown key 'stor' at the top level; did you mean 'store'?"
    )


def test_an_error_is_one_line_and_what_to_do(shop: Shop) -> None:
    done = shop.cli("status", POSTROOM_STORE="sqlite:///other.db")

    assert done.code == 3
    first, second = done.err.splitlines()
    assert first.startswith("error: there is no database at ")
    assert first.endswith("run `postroom init`")
    assert second == "  -> see docs/reference/errors.md#schemamismatch"


def test_debug_shows_the_traceback_and_keeps_the_code(shop: Shop) -> None:
    done = shop.cli("status", "--debug", POSTROOM_STORE="sqlite:///other.db")

    assert done.code == 3
    assert "Traceback" in done.err


def test_a_locked_store_exits_with_3(shop: Shop) -> None:
    shop.dead(1)
    blocker = sqlite3.connect(shop.path / "shop.db", isolation_level=None)
    blocker.execute("BEGIN IMMEDIATE")

    done = shop.cli("dead", "discard", "--yes")

    blocker.close()
    assert (done.code, done.out) == (3, "")
    assert "write lock" in done.err


def test_an_unsupported_address_exits_with_2(shop: Shop) -> None:
    done = shop.cli("status", POSTROOM_STORE=f"mysql://ann:{HUSH}@host/shop")

    assert done.code == 2
    assert "mysql is not supported by this version" in done.err


@pytest.mark.parametrize("variable", ["POSTROOM_STORE", "POSTROOM_BROKER"])
@pytest.mark.parametrize("command", list(commands()), ids=" ".join)
def test_no_output_holds_a_password(shop: Shop, command: tuple[str, ...], variable: str) -> None:
    if command == ("lab",):
        pytest.skip("works on places of its own")
    extra = {
        ("relay",): ["--once"],
        ("show",): ["x"],
        ("dead", "show"): ["x"],
        ("consume",): ["x:y"],
    }

    for address in ADDRESSES:
        done = shop.cli(*command, *extra.get(command, []), "--debug", **{variable: address})
        assert HUSH not in done.out + done.err, address


def test_memory_is_warned_about(shop: Shop) -> None:
    done = shop.cli("relay", "--once", POSTROOM_STORE="memory:", POSTROOM_BROKER="memory:")

    assert done.code == 0
    assert "warning: the store is memory:, which is empty" in done.err


def test_there_are_no_colours_where_there_is_no_terminal(shop: Shop) -> None:
    shop.dead(1)

    told = [shop.cli(*args) for args in (("status",), ("dead", "list"), ("show", "x"), ("--help",))]

    assert "\x1b" not in "".join(done.out + done.err for done in told)
