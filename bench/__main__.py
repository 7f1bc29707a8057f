"""Run the measurements: `python -m bench [--store STORE | --broker BROKER] [--only NAME]`."""

import argparse
import sqlite3
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from bench import backlog, held, latency, memory, put, rate, report
from bench.brokers import suite as brokers
from bench.postgresql import suite
from bench.report import Result
from bench.scale import FULL, QUICK

SQLITE = {
    "put": put.measure,
    "rate": rate.measure,
    "latency": latency.measure,
    "backlog": backlog.measure,
    "held": held.measure,
    "memory": memory.measure,
}
POSTGRESQL = ("postgresql", "postgres")

Measurements = Mapping[str, Callable[[Path], Iterator[Result]]]


def main() -> None:
    """Measure, print the table, and write the files that were asked for."""
    arguments = _arguments()
    with (
        tempfile.TemporaryDirectory(prefix="postroom-bench-", dir=arguments.directory) as place,
        _opened(arguments) as (database, measurements),
    ):
        directory = Path(place)
        facts = list(report.facts(directory, database, quick=arguments.quick))
        print(*facts, sep="\n")
        names = arguments.only or list(measurements)
        results = [each for name in names for each in _measured(name, directory, measurements)]
    facts.append(f"load after the run: {report.load()}")
    print("", report.as_table(results), "", facts[-1], sep="\n")
    if arguments.json:
        arguments.json.write_text(report.as_json(results), "utf-8")
    if arguments.markdown:
        arguments.markdown.write_text(report.as_markdown(results, facts), "utf-8")


@contextmanager
def _opened(arguments: argparse.Namespace) -> Iterator[tuple[str, Measurements]]:
    """Give what the database is, and the measurements on it."""
    quick = arguments.quick
    if arguments.broker:
        store = "postgresql" if arguments.store == "sqlite" else arguments.store
        with brokers.opened(arguments.broker, store, arguments.directory, quick=quick) as opened:
            yield opened
        return
    if arguments.store != "sqlite":
        with suite.opened(arguments.store, arguments.directory, quick=quick) as opened:
            yield opened
        return
    scale = QUICK if quick else FULL
    measurements = {name: partial(measure, scale=scale) for name, measure in SQLITE.items()}
    yield f"SQLite {sqlite3.sqlite_version}", measurements


def _measured(name: str, directory: Path, measurements: Measurements) -> list[Result]:
    place = directory / name
    place.mkdir()
    began = time.monotonic()
    results = []
    for result in measurements[name](place):
        results.append(result)
        print(*filter(None, result.cells()), sep="  ", file=sys.stderr, flush=True)
    print(f"{name}: {time.monotonic() - began:.0f} s", file=sys.stderr)
    return results


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench",
        description="Measure what Postroom costs. A goal that is missed is shown as missed.",
    )
    parser.add_argument(
        "--store",
        default="sqlite",
        metavar="STORE",
        help="sqlite (the default), postgresql (a server is started), or postgresql://...",
    )
    parser.add_argument(
        "--broker",
        default="",
        metavar="BROKER",
        help=(
            f"measure a broker, with a relay from PostgreSQL: {', '.join(brokers.COURSES)} (a "
            "server is started), or an address such as amqp://..."
        ),
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results as a list")
    parser.add_argument(
        "--markdown", type=Path, metavar="FILE", help="write them as a page, with the machine"
    )
    parser.add_argument(
        "--only",
        action="append",
        metavar="NAME",
        help=(
            f"only this measurement; may be repeated ({', '.join(SQLITE)}; "
            f"on PostgreSQL {', '.join(suite.MEASUREMENTS)}; "
            f"of a broker {', '.join(brokers.NAMES)})"
        ),
    )
    parser.add_argument(
        "--quick", action="store_true", help="small sizes, a minute or two; the names say so"
    )
    parser.add_argument(
        "--directory", type=Path, metavar="DIR", help="where files go (default: temporary)"
    )
    arguments = parser.parse_args()
    scheme = arguments.store.partition(":")[0]
    if scheme != "sqlite" and scheme not in POSTGRESQL:
        parser.error(f"--store: {scheme!r} is none of sqlite, postgresql")
    names: Collection[str] = SQLITE if scheme == "sqlite" else suite.MEASUREMENTS
    if arguments.broker:
        course = brokers.course_of(arguments.broker)
        if course is None:
            parser.error(
                f"--broker: {arguments.broker!r} is none of {', '.join(brokers.COURSES)}, and no "
                "address of one"
            )
        names = brokers.names(course)
    if unknown := set(arguments.only or ()) - set(names):
        parser.error(f"--only: {', '.join(unknown)}: there are {', '.join(names)}")
    return arguments


if __name__ == "__main__":
    main()
