"""Settings: one frozen object, read once from `postroom.toml` and the environment."""

import difflib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal

from postroom._clock import check_span
from postroom._document import (
    ADDRESS,
    COUNT,
    FLAG,
    Reader,
    Table,
    Tables,
    dotted_keys,
    duration,
    parse,
    suggestion,
    table_of,
)
from postroom._redact import redacted
from postroom.errors import SettingsError
from postroom.limits import Limits
from postroom.relay import RelayOptions
from postroom.retry import RetryPolicy
from postroom.route import Route, Routes

__all__ = ["LogOptions", "Retention", "Settings", "duration", "redacted", "suggestion"]

FILE = "postroom.toml"
"""Where settings are looked for when nobody names a file."""
PREFIX = "POSTROOM_"


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """How long finished things are kept; `postroom prune` goes by it."""

    sent: timedelta = timedelta(days=7)
    """Sent messages."""
    inbox: timedelta = timedelta(days=30)
    """Ids of handled messages: a copy that comes back later than this takes effect again."""

    def __post_init__(self) -> None:
        """Refuse an inbox that forgets what the outbox can still replay."""
        check_span("retention.sent", self.sent)
        check_span("retention.inbox", self.inbox)
        if self.inbox < self.sent:
            raise ValueError(
                "retention.inbox must be at least retention.sent: a sent message that is "
                "replayed after its id was forgotten takes effect twice"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class LogOptions:
    """What the command line writes to standard error."""

    format: Literal["logfmt", "json"] = "logfmt"
    level: Literal["debug", "info", "warning", "error"] = "info"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Everything that can be set, checked.

    The addresses may hold passwords: they are left out of the object's own text, and
    `redacted` makes them fit for printing.
    """

    store: str = field(default="sqlite:///postroom.db", repr=False)
    """Address of the database with the outbox."""
    broker: str = field(default="sqlite:///postroom-broker.db", repr=False)
    """Address of the broker."""
    relay: RelayOptions = field(default_factory=RelayOptions)
    routes: tuple[Route, ...] = ()
    """In order; the first that matches a type takes it, a catch-all follows them."""
    retention: Retention = field(default_factory=Retention)
    limits: Limits = field(default_factory=Limits)
    log: LogOptions = field(default_factory=LogOptions)
    origins: Mapping[str, str] = field(default_factory=dict, repr=False, compare=False)
    """Where the addresses were read, for errors about them: `store` from `postroom.toml: store`."""

    def __post_init__(self) -> None:
        """Refuse combinations that could not work."""
        try:
            Routes(self.routes)
        except ValueError as error:
            raise SettingsError(f"routes: {error}") from error

    @classmethod
    def load(
        cls, path: Path | str | None = None, environ: Mapping[str, str] = os.environ
    ) -> "Settings":
        """Read `postroom.toml` and the environment, which comes first where both speak.

        The file is `path`, else what `POSTROOM_CONFIG` names (these must exist), else
        `postroom.toml` in the working directory if there is one. Raises SettingsError with
        the file, the key and an example for whatever is unknown or of a wrong kind.
        """
        file = _file(path, environ)
        table = _table()
        variables = _variables(table, environ)
        reader = Reader(file=str(file or "settings"), variables=variables, root=table)
        document = _document(file) if file else {}
        settings: Settings = reader.build(table, document)
        given = {*document, *reader.variables}
        origins: dict[str, str] = {
            key: reader.origin(key) for key in ("store", "broker") if key in given
        }
        return replace(settings, origins=origins)


# The tables of the file


def _table() -> Table:
    relay = table_of(RelayOptions())
    # The relay obeys `keep_sent`, but people look for it beside the other retentions.
    timing = {key: kind for key, kind in relay.keys.items() if key != "keep_sent"}
    return Table(
        {
            "store": ADDRESS,
            "broker": ADDRESS,
            "relay": Table(timing, relay.build),
            "routes": Tables(table_of(Route(), retry=_retry_table(RetryPolicy()))),
            "retention": Table({"keep_sent": FLAG, **table_of(Retention()).keys}, _retention),
            "limits": table_of(Limits()),
            "log": table_of(LogOptions()),
        },
        _settings,
    )


def _retention(values: dict[str, Any]) -> tuple[bool | None, Retention]:
    return values.pop("keep_sent", None), Retention(**values)


def _settings(values: dict[str, Any]) -> Settings:
    keep_sent, retention = values.pop("retention", (None, Retention()))
    relay = values.pop("relay", RelayOptions())
    if keep_sent is not None:
        relay = replace(relay, keep_sent=keep_sent)
    return Settings(**values, relay=relay, retention=retention)


def _retry_table(default: RetryPolicy) -> Table:
    """One flat table: nobody wants to write `routes.retry.backoff.initial`."""
    backoff = table_of(default.backoff)

    def build(values: dict[str, Any]) -> RetryPolicy:
        attempts = values.pop("max_attempts", default.max_attempts)
        return replace(default, max_attempts=attempts, backoff=backoff.build(values))

    return Table({"max_attempts": COUNT, **backoff.keys}, build)


# Where they come from


def _file(path: Path | str | None, environ: Mapping[str, str]) -> Path | None:
    named = path or environ.get(f"{PREFIX}CONFIG")
    if not named:
        return Path(FILE) if Path(FILE).exists() else None
    if not Path(named).exists():
        raise SettingsError(f"{named}: no such file; `postroom init` writes a {FILE} to start from")
    return Path(named)


def _document(file: Path) -> Mapping[str, Any]:
    try:
        # utf-8-sig: some editors put a mark before the first line, which TOML refuses.
        return parse(file.read_text("utf-8-sig"), str(file))
    except UnicodeDecodeError as error:
        raise SettingsError(f"{file}: not UTF-8: {error.reason}") from error
    except OSError as error:
        raise SettingsError(f"{file}: cannot be read: {error.strerror}") from error


def _variables(table: Table, environ: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    known = {PREFIX + key.replace(".", "__").upper(): key for key in dotted_keys(table)}
    found = {}
    for name, text in environ.items():
        if name in known:
            found[known[name]] = (name, text)
        elif name.startswith(PREFIX) and name != f"{PREFIX}CONFIG":
            _check_stranger(name, [each.removeprefix(PREFIX) for each in known])
    return found


def _check_stranger(name: str, known: list[str]) -> None:
    """Refuse a variable that was meant for us.

    Others share the prefix by no fault of the user: Kubernetes sets POSTROOM_PORT and more in
    every pod beside a service called postroom.
    """
    own = name.removeprefix(PREFIX)
    section = own.partition("__")[0]
    if section == "ROUTES":
        raise SettingsError(f"{name}: routes are set in {FILE}, not by the environment")
    close = difflib.get_close_matches(own, known, n=1, cutoff=0.75)
    if close:
        raise SettingsError(f"{name}: unknown variable; did you mean {PREFIX}{close[0]}?")
    if "__" in own:
        near = [each for each in known if each.startswith(f"{section}__")] or known
        names = ", ".join(PREFIX + each for each in near)
        raise SettingsError(f"{name}: unknown variable; known here: {names}")
