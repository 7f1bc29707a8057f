"""Exit codes, and errors that end a command with one of them."""

from enum import IntEnum

from postroom.errors import (
    BrokerUnavailable,
    PostroomError,
    SettingsError,
    StoreError,
    StoreUnavailable,
)


class Exit(IntEnum):
    """What the exit code of a command means; scripts may rely on it."""

    DONE = 0
    """Done; also a relay or consumer that was asked to stop."""
    WRONG = 1
    """The check or the lab found something wrong, or a time-out passed."""
    USAGE = 2
    """Wrong use: an option, a setting, or a path to a consumer."""
    UNREACHABLE = 3
    """The store or the broker cannot be used: away, locked, read-only, or its tables missing."""
    NOT_FOUND = 4
    """There is no such message, or no such consumer group."""
    NOT_CONFIRMED = 5
    """Nothing was changed, because nobody said yes."""
    FAULT = 70
    """A fault in Postroom or in the imported code; `--debug` shows where."""


MEANINGS = {
    Exit.DONE: "done (also after a planned stop)",
    Exit.WRONG: "the check or the lab found something wrong, or a time-out passed",
    Exit.USAGE: "wrong use: an option, a setting, or the path of a consumer",
    Exit.UNREACHABLE: "the store or the broker cannot be used",
    Exit.NOT_FOUND: "no such message, or no such consumer group",
    Exit.NOT_CONFIRMED: "nothing was changed, because nobody confirmed it",
    Exit.FAULT: "a fault in Postroom or in imported code",
}


class CommandFailed(Exception):
    """Ends the command with one line and an exit code."""

    def __init__(self, code: Exit, reason: str, *, cure: str = "") -> None:
        """Say what is wrong, and what to do about it."""
        super().__init__(reason)
        self.code = code
        self.reason = reason
        self.cure = cure


def code_of(error: PostroomError) -> Exit:
    """Return the exit code that an error of the library stands for."""
    match error:
        case SettingsError():
            return Exit.USAGE
        case StoreError() | BrokerUnavailable():
            return Exit.UNREACHABLE
        case _:
            return Exit.FAULT


def cure_of(error: PostroomError) -> str:
    """Return what to do about it, with the page that says more."""
    page = str(error).removeprefix(error.reason).strip(" ()")
    match error:
        case StoreUnavailable():
            hint = "nothing was changed; set POSTROOM_STORE if another database is meant"
        case BrokerUnavailable():
            hint = "messages wait in the outbox meanwhile; set POSTROOM_BROKER if another is meant"
        case SettingsError():
            hint = "all settings: docs/reference/settings.md"
        case _:
            hint = ""
    return "; ".join(filter(None, [hint, page]))
