"""`python -m postroom`, and where the `postroom` command starts."""

import signal
import sys


def run() -> None:
    """Run the command line; Ctrl-C while it loads ends it without a traceback."""
    try:
        from postroom.cli.main import app  # noqa: PLC0415 - it takes a while to load

        app()
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
    except ModuleNotFoundError as error:
        if error.name not in {"typer", "rich"}:
            raise
        sys.exit("postroom: the command line needs more: install the extra `cli` of postroom")


if __name__ == "__main__":
    run()
