"""The `postroom` command."""

from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import typer

from postroom.cli import audit, dead, held, prune, running, setup, status, topology
from postroom.cli.exits import MEANINGS
from postroom.cli.group import Commands
from postroom.cli.lab import EPILOG as LAB_EXAMPLES
from postroom.cli.lab import lab_command
from postroom.cli.start import Common, examples

_EPILOG = "\n".join(
    [
        examples(
            "postroom init && postroom relay",
            "postroom status --json",
            "postroom --config shop.toml dead list --since 2h",
        ),
        "",
        "Exit codes:",
        *(f"  {int(code):2}  {meaning}" for code, meaning in MEANINGS.items()),
    ]
)

app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    epilog=_EPILOG,
    help="What you commit gets sent; what arrives takes effect once.",
)
lab = typer.Typer()
lab.command("lab", epilog=LAB_EXAMPLES)(lab_command)
for part in (setup.app, topology.app, running.app, status.app):
    app.add_typer(part)
app.add_typer(dead.app, name="dead")
app.add_typer(held.app, name="held")
for part in (prune.app, audit.app, lab):
    app.add_typer(part)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"postroom {version('postroom')}")
        raise typer.Exit


@app.callback()
def options(
    context: typer.Context,
    *,
    config: Annotated[
        Path | None,
        typer.Option(
            "--config", metavar="FILE", help="Settings; else POSTROOM_CONFIG or ./postroom.toml."
        ),
    ] = None,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
    show_version: Annotated[  # noqa: ARG001 - its callback acts
        bool,
        typer.Option("--version", help="Show the version.", is_eager=True, callback=_print_version),
    ] = False,
) -> None:
    """Take the options of all commands, before or after the command's name."""
    context.obj = Common(config=config, debug=debug)


def run() -> None:
    """Start the command line."""
    app()


if __name__ == "__main__":
    run()
