"""`init` and `schema`: what must be there before the first message."""

from pathlib import Path

import typer

from postroom._redact import redacted
from postroom.app import Postroom
from postroom.cli.exits import CommandFailed, Exit
from postroom.cli.screen import document, show
from postroom.cli.start import Json, common, examples, opened, run
from postroom.cli.template import TEMPLATE
from postroom.drivers import open_store
from postroom.settings import FILE

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

    async def work() -> dict[str, object]:
        async with opened(context) as postroom:
            return await _prepare(postroom)

    done = {"config": {"path": str(config), "written": written}, **run(work())}
    if as_json:
        document(done)
        return
    show(f"{config}: {'written' if written else 'was there, left as it is'}")
    applied = done["migrations"]
    news = (
        f"applied {', '.join(applied)}" if isinstance(applied, list) and applied else "up to date"
    )
    show(f"{done['store']}: {news}")
    show(f"{done['broker']}: ready")


@app.command(epilog=examples("postroom schema > schema.sql", "postroom schema --json"))
def schema(context: typer.Context, *, as_json: Json = False) -> None:
    """Print the SQL that `init` would run on an empty database; changes nothing."""
    store = open_store(common(context).settings().store)
    if as_json:
        document({"store": store.name, "sql": store.schema()})
    else:
        typer.echo(store.schema(), nl=False)


def _write_config(path: Path) -> bool:
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(TEMPLATE)
    except FileExistsError:
        return False
    except OSError as error:
        raise CommandFailed(Exit.USAGE, f"{path}: cannot be written: {error.strerror}") from error
    return True


async def _prepare(postroom: Postroom) -> dict[str, object]:
    migrations = list(await postroom.store.migrate())
    await postroom.broker.ping()
    return {
        "store": redacted(postroom.settings.store),
        "migrations": migrations,
        "broker": redacted(postroom.settings.broker),
    }
