"""The root of the command line: global options anywhere, and one place that ends on errors."""

import traceback
from collections.abc import Sequence
from typing import Any

import typer
from typer.core import TyperGroup

from postroom._redact import redacted
from postroom.cli.exits import CommandFailed, Exit, code_of, cure_of
from postroom.cli.screen import say
from postroom.cli.start import Common
from postroom.errors import PostroomError

_WITH_VALUE = ("--config",)
_FLAGS = ("--debug",)


class Commands(TyperGroup):
    """Takes `--config` and `--debug` before and after the command, and prints errors."""

    def __init__(self, **options: Any) -> None:
        """Take the commands; their flags take no value, so help must not show a kind of one."""
        super().__init__(**options)
        _without_kinds(self)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Move the global options to the front, where they are declared."""
        return super().parse_args(ctx, _globals_first(args))

    def invoke(self, ctx: Any) -> Any:
        """Run the command; an error becomes one line, what to do, and its exit code."""
        try:
            return super().invoke(ctx)
        except Exception as error:
            if isinstance(error, _NOT_OURS) or hasattr(error, "exit_code"):
                raise
            code, reason, cure = _told(error)
            if isinstance(ctx.obj, Common) and ctx.obj.debug:
                say(redacted("".join(traceback.format_exception(error))))
            say(f"error: {redacted(reason)}", "bold red")
            if cure:
                say(f"  -> {redacted(cure)}")
            ctx.exit(int(code))


def _without_kinds(command: Any) -> None:
    for option in command.params:
        if getattr(option, "is_flag", False):
            option.metavar = ""
    for each in getattr(command, "commands", {}).values():
        _without_kinds(each)


_NOT_OURS = (typer.Abort, BrokenPipeError)


def _told(error: Exception) -> tuple[Exit, str, str]:
    match error:
        case CommandFailed():
            return error.code, error.reason, error.cure
        case PostroomError():
            return code_of(error), error.reason, cure_of(error)
        case _:
            reason = f"{type(error).__name__}: {error}"
            return Exit.FAULT, reason, "this should not happen; --debug shows where it did"


def _globals_first(args: Sequence[str]) -> list[str]:
    front: list[str] = []
    rest: list[str] = []
    remaining = iter(args)
    for arg in remaining:
        if arg == "--":
            return [*front, *rest, arg, *remaining]
        if arg in _FLAGS or arg.startswith(tuple(f"{name}=" for name in _WITH_VALUE)):
            front.append(arg)
        elif arg in _WITH_VALUE:
            front += [arg, *[value for value in [next(remaining, None)] if value is not None]]
        else:
            rest.append(arg)
    return front + rest
