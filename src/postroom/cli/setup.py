"""`init` and `schema`: what must be there before the first message."""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import typer

from postroom._redact import redacted
from postroom.app import Postroom
from postroom.cli.exits import CommandFailed, Exit
from postroom.cli.screen import document, show
from postroom.cli.start import Json, common, examples, opened, run
from postroom.cli.template import template
from postroom.drivers import broker_of, store_of
from postroom.settings import FILE, PREFIX, Settings

app = typer.Typer()


@app.command(
    epilog=examples(
        "postroom init",
        "postroom --config /etc/postroom.toml init",
        "POSTROOM_STORE=sqlite:////srv/shop.db postroom init --json",
    )
)
def init(context: typer.Context, *, as_json: Json = False) -> None:
    """Write postroom.toml, create the tables, and get the broker ready.

    Does only what is missing, so it can run before every start of a program.
    """
    config = common(context).config or Path(FILE)
    written = _write_config(config)

    # Said as it goes: where the broker fails, a person knows that the store is done.
    tell = (lambda _: None) if as_json else show
    tell(f"{config}: {'written' if written else 'was there, left as it is'}")

    async def work() -> dict[str, object]:
        async with opened(context) as postroom:
            return await _prepare(postroom, tell)

    done = run(work())
    if as_json:
        document({"config": {"path": str(config), "written": written}, **done})


@app.command(epilog=examples("postroom schema > schema.sql", "postroom schema --json"))
def schema(context: typer.Context, *, as_json: Json = False) -> None:
    """Print the SQL that `init` would run on an empty database; changes nothing."""
    store = store_of(common(context).settings())
    if as_json:
        document({"store": store.name, "sql": store.schema()})
    else:
        typer.echo(store.schema(), nl=False)


def _write_config(path: Path) -> bool:
    if path.exists():
        return False
    text = template(*_addresses())
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        return False
    except OSError as error:
        raise CommandFailed(Exit.USAGE, f"{path}: cannot be written: {error.strerror}") from error
    return True


def _addresses() -> tuple[str, str]:
    """Return store and broker of the environment, else the defaults; refuse what cannot be used.

    A file with an address that does not work would stay when the variable is mended.
    """
    names = {name: f"{PREFIX}{name.upper()}" for name in ("store", "broker")}
    given = {name: os.environ.get(variable, "").strip() for name, variable in names.items()}
    found = {name: text for name, text in given.items() if text}
    defaults = Settings(origins={name: names[name] for name in found})
    settings = replace(
        defaults,
        store=found.get("store", defaults.store),
        broker=found.get("broker", defaults.broker),
    )
    store_of(settings)
    broker_of(settings)
    return settings.store, settings.broker


async def _prepare(postroom: Postroom, tell: Callable[[str], None]) -> dict[str, object]:
    store, broker = redacted(postroom.settings.store), redacted(postroom.settings.broker)
    migrations = list(await postroom.store.migrate())
    news = f"applied {', '.join(migrations)}" if migrations else "up to date"
    tell(f"{store}: {news}")
    await postroom.broker.ping()
    tell(f"{broker}: ready")
    return {"store": store, "migrations": migrations, "broker": broker}
