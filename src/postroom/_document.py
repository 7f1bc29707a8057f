"""Read dataclasses from a TOML document and the environment, by their own fields."""

import difflib
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from datetime import timedelta
from types import NoneType, UnionType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from postroom._clock import LONGEST
from postroom._redact import redacted
from postroom.errors import SettingsError


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One value: what is wanted, an example as the file has it, and how it is read."""

    wanted: str
    example: str
    read: Callable[[object], object]
    """Raises ValueError for what it cannot take."""
    toml: bool = False
    """The text of an environment variable is read as TOML (a number, a list), not as it is."""
    secret: bool = False
    """The value must not be repeated in an error."""


@dataclass(frozen=True, slots=True)
class Table:
    """Keys of one table, and what to make of the values that were given."""

    keys: Mapping[str, "Kind | Table | Tables"]
    build: Callable[[dict[str, Any]], Any]


@dataclass(frozen=True, slots=True)
class Tables:
    """A list of tables of one kind."""

    each: Table


def table_of(default: Any, **special: Kind | Table | Tables) -> Table:
    """Return the table that changes fields of this dataclass; what it leaves out stays.

    The kind of a field follows from its type, or is given in `special`.
    """
    hints = get_type_hints(type(default))
    keys = {
        each.name: special.get(each.name)
        or _kind_of(each.name, hints[each.name], getattr(default, each.name))
        for each in fields(default)
    }
    return Table(keys, lambda values: replace(default, **values))


def duration(text: str) -> timedelta:
    """Read a duration such as `500ms`, `15s`, `1h30m` or `7d`.

    Raises ValueError for anything else; a number without a unit is not a duration.
    """
    if not _DURATION.fullmatch(text):
        raise ValueError(f"{text!r} is not a duration such as 500ms, 15s, 1h30m or 7d")
    try:
        parts = [float(number) * _UNITS[unit] for number, unit in _PART.findall(text)]
        span = timedelta(microseconds=round(sum(parts)))
    except OverflowError:
        span = timedelta.max
    if span > LONGEST:
        raise TooLong(f"{text[:40]} is too long a time; at most {LONGEST.days}d")
    return span


class TooLong(ValueError):
    """A duration that no clock can add to now."""


_UNITS = {
    "us": 1,
    "ms": 1_000,
    "s": 1_000_000,
    "m": 60_000_000,
    "h": 3_600_000_000,
    "d": 86_400_000_000,
    "w": 604_800_000_000,
}
_PART = re.compile(r"(\d+(?:\.\d+)?)(us|ms|s|m|h|d|w)")
_DURATION = re.compile(rf"(?:{_PART.pattern})+", re.ASCII)


# The kinds of values


def _text(value: object) -> str:
    if isinstance(value, str) and (text := value.strip()):
        return text
    raise ValueError


def _flag(value: object) -> bool:
    if isinstance(value, bool):
        return value
    raise ValueError


def _count(value: object) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and value > 0:
        return value
    raise ValueError


def _number(value: object) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    raise ValueError


def _texts(value: object) -> tuple[str, ...]:
    if isinstance(value, list) and value:
        return tuple(_text(each) for each in value)
    raise ValueError


def _positive(value: object) -> timedelta:
    if isinstance(value, str) and (delta := duration(value)) > timedelta(0):
        return delta
    raise ValueError


def size(text: str) -> int:
    """Read a number of bytes such as `1048576`, `100KiB` or `8MiB`.

    Raises ValueError for anything else.
    """
    match = re.fullmatch(r"(\d+) ?(kB|MB|KiB|MiB)?", text, re.ASCII)
    if match is None or not int(match[1]):
        raise ValueError(f"{text!r} is not a number of bytes such as 1048576, 100KiB or 8MiB")
    return int(match[1]) * _SIZES.get(match[2], 1)


def _bytes(value: object) -> int:
    return size(value) if isinstance(value, str) else _count(value)


_SIZES = {"kB": 1000, "MB": 1000**2, "KiB": 1024, "MiB": 1024**2}

ADDRESS = Kind(wanted="an address", example='"sqlite:///postroom.db"', read=_text, secret=True)
FLAG = Kind(wanted="true or false", example="true", read=_flag, toml=True)
COUNT = Kind(wanted="a whole number from 1", example="500", read=_count, toml=True)
BYTES = Kind(wanted="a number of bytes", example='"8MiB"', read=_bytes)
_OF_TYPE: Mapping[object, Kind] = {
    timedelta: Kind(wanted="a duration", example='"15s"', read=_positive),
    bool: FLAG,
    int: COUNT,
    float: Kind(wanted="a number", example="2.0", read=_number, toml=True),
    str: Kind(wanted="a text", example='"orders"', read=_text),
    tuple[str, ...]: Kind(wanted="a list of texts", example='["shop.*"]', read=_texts, toml=True),
}


def _kind_of(name: str, hint: Any, default: Any) -> Kind | Table:
    if is_dataclass(default):
        return table_of(default)
    if get_origin(hint) is Literal:
        return _choice(get_args(hint))
    if get_origin(hint) is UnionType:
        return _kind_of(name, next(each for each in get_args(hint) if each is not NoneType), None)
    return BYTES if name.endswith("_bytes") else _OF_TYPE[hint]


def _choice(values: tuple[str, ...]) -> Kind:
    def read(value: object) -> object:
        if value in values:
            return value
        raise ValueError

    wanted = "one of " + ", ".join(map(repr, values))
    return Kind(wanted=wanted, example=f'"{values[0]}"', read=read)


# Reading


@dataclass(frozen=True, slots=True, kw_only=True)
class Reader:
    """Reads a document, and lets environment variables come first."""

    file: str
    """How errors name the document."""
    variables: Mapping[str, tuple[str, str]]
    """By dotted key: the name of the environment variable, and its text."""
    root: Table
    """All tables of the document, for hints where a key belongs."""

    def build(self, table: Table, raw: object, path: str = "") -> Any:
        """Return what the table makes of the document, or raise SettingsError."""
        if not isinstance(raw, Mapping):
            raise SettingsError(f"{self.file}: {path}: expected a table, for example [{path}]")
        for key in raw:
            if key not in table.keys:
                raise SettingsError(f"{self.file}: {unknown(key, table, path, self.root)}")
        values: dict[str, Any] = {}
        for key, kind in table.keys.items():
            here = f"{path}.{key}" if path else key
            if key in raw or any(_within(each, here) for each in self.variables):
                values[key] = self._read(kind, raw, key, here)
        try:
            return table.build(values)
        except ValueError as error:
            raise SettingsError(f"{self._origin(path)}: {error}") from error
        except SettingsError as error:
            raise SettingsError(f"{self._origin(path)}: {error.reason}") from error

    def _read(
        self, kind: Kind | Table | Tables, raw: Mapping[str, Any], key: str, path: str
    ) -> Any:
        match kind:
            case Table():
                return self.build(kind, raw.get(key, {}), path)
            case Tables():
                return self._list(kind, raw[key], path)
            case Kind():
                return self._value(kind, raw.get(key), path)

    def _list(self, kind: Tables, raw: object, path: str) -> tuple[Any, ...]:
        if not isinstance(raw, list):
            raise SettingsError(
                f"{self.file}: {path}: expected a list of tables, for example [[{path}]]"
            )
        return tuple(
            self.build(kind.each, each, f"{path}[{number}]") for number, each in enumerate(raw)
        )

    def _value(self, kind: Kind, raw: object, path: str) -> object:
        origin, value = self.origin(path), raw
        if path in self.variables:
            text = self.variables[path][1]
            value = _from_text(text) if kind.toml else text
        try:
            return kind.read(value)
        except TooLong as error:
            raise SettingsError(f"{origin}: {error}") from None
        except ValueError:
            if isinstance(value, str) and not value.strip():
                got = "an empty text"
            elif kind.secret:
                got = f"a value of type {type(value).__name__}"
            else:
                got = redacted(repr(value))
            key = path.rpartition(".")[2]
            raise SettingsError(
                f"{origin}: expected {kind.wanted}, not {got}; for example {key} = {kind.example}"
            ) from None

    def origin(self, path: str) -> str:
        """Return where the value of this key is from."""
        return self.variables[path][0] if path in self.variables else f"{self.file}: {path}"

    def _origin(self, path: str) -> str:
        names = [name for key, (name, _) in self.variables.items() if _within(key, path)]
        return ", ".join([": ".join(filter(None, [self.file, path])), *names])


def parse(text: str, file: str) -> Mapping[str, Any]:
    """Return the document that this TOML text is, or raise SettingsError."""
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(f"{file}: not valid TOML: {error}") from error


def dotted_keys(table: Table, path: str = "") -> Iterator[str]:
    """Go through the keys of single values, as an environment variable can give them."""
    for key, kind in table.keys.items():
        here = f"{path}.{key}" if path else key
        match kind:
            case Table():
                yield from dotted_keys(kind, here)
            case Kind():
                yield here
            case Tables():
                continue


def unknown(key: str, table: Table, path: str, root: Table) -> str:
    """Say that the table has no such key, and where it belongs or which one was meant."""
    place = f"in [{path}]" if path else "at the top level"
    homes = list(_homes(key, root))
    hint = f"it belongs to {' or '.join(homes)}" if homes else suggestion(key, table.keys)
    return f"unknown key {key!r} {place}; {hint}"


def _homes(key: str, table: Table, heading: str = "the top, before all tables") -> Iterator[str]:
    """Go through the headings under which this key is a single value."""
    if isinstance(table.keys.get(key), Kind):
        yield heading
    path = heading.strip("[]") + "." if heading.startswith("[") else ""
    for name, kind in table.keys.items():
        if isinstance(kind, Table):
            yield from _homes(key, kind, f"[{path}{name}]")
        elif isinstance(kind, Tables):
            yield from _homes(key, kind.each, f"[[{path}{name}]]")


def suggestion(name: str, known: Iterable[str]) -> str:
    """Return `did you mean ...?`, or all that is known where nothing is close."""
    known = list(known)
    close = difflib.get_close_matches(name, known, n=1)
    return f"did you mean {close[0]!r}?" if close else f"known here: {', '.join(known)}"


def _within(key: str, path: str) -> bool:
    return not path or key == path or key.startswith(f"{path}.")


def _from_text(text: str) -> object:
    try:
        return tomllib.loads(f"value = {text.strip()}")["value"]
    except tomllib.TOMLDecodeError:
        return text
