"""Run the measurements: `python -m bench [--json FILE] [--only NAME] [--quick]`."""

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from bench import backlog, held, latency, memory, put, rate, report
from bench.report import Result
from bench.scale import FULL, QUICK, Scale

MEASUREMENTS: Mapping[str, Callable[[Path, Scale], Iterator[Result]]] = {
    "put": put.measure,
    "rate": rate.measure,
    "latency": latency.measure,
    "backlog": backlog.measure,
    "held": held.measure,
    "memory": memory.measure,
}


def main() -> None:
    """Measure, print the table, and write the files that were asked for."""
    arguments = _arguments()
    names = arguments.only or list(MEASUREMENTS)
    scale = QUICK if arguments.quick else FULL
    with tempfile.TemporaryDirectory(prefix="postroom-bench-", dir=arguments.directory) as place:
        directory = Path(place)
        facts = list(report.facts(directory, quick=arguments.quick))
        print(*facts, sep="\n")
        results = [result for name in names for result in _measured(name, directory, scale)]
    facts.append(f"load after the run: {report.load()}")
    print("", report.as_table(results), "", facts[-1], sep="\n")
    if arguments.json:
        arguments.json.write_text(report.as_json(results), "utf-8")
    if arguments.markdown:
        arguments.markdown.write_text(report.as_markdown(results, facts), "utf-8")


def _measured(name: str, directory: Path, scale: Scale) -> list[Result]:
    place = directory / name
    place.mkdir()
    began = time.monotonic()
    results = list(MEASUREMENTS[name](place, scale))
    print(f"{name}: {time.monotonic() - began:.0f} s", file=sys.stderr)
    return results


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench",
        description="Measure what Postroom costs. A goal that is missed is shown as missed.",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results as a list")
    parser.add_argument(
        "--markdown", type=Path, metavar="FILE", help="write them as a page, with the machine"
    )
    parser.add_argument(
        "--only",
        action="append",
        choices=MEASUREMENTS,
        metavar="NAME",
        help=f"only this measurement; may be repeated ({', '.join(MEASUREMENTS)})",
    )
    parser.add_argument(
        "--quick", action="store_true", help="small sizes, under a minute; the names say so"
    )
    parser.add_argument(
        "--directory", type=Path, metavar="DIR", help="where files go (default: temporary)"
    )
    return parser.parse_args()


if __name__ == "__main__":
    main()
