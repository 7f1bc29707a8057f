"""What the lab shows: progress while it runs, then the table."""

import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from postroom.cli.screen import err
from postroom.lab.plants import PLANTS
from postroom.lab.report import FIGURES, Report, Result
from postroom.lab.runner import Plan, Skipped, Started

_HEADS = {
    "duplicate_effects": "duplicate\neffects",
    "out_of_order": "out of\norder",
}
"""Names of figures that are too long for one line at the head of a column."""
_NAIVE = "naive (save, then\npublish): to compare,\nnot judged"


class Screen:
    """Shows a run: live on a terminal, else one line for each scenario that ends."""

    def __init__(self, plan: Plan) -> None:
        """Name the seed, by which the storm can be repeated."""
        self._console = err()
        self._running: dict[str, float] = {}
        self._live: Live | None = None
        self._done = 0
        self._failed = 0
        text = f"failure lab, seed {plan.seed}, storm of {plan.seconds:g} s"
        if plan.plant:
            text += f", planted: {plan.plant} ({PLANTS[plan.plant]})"
        self._console.print(Text(text, style="bold"), soft_wrap=True)

    def __enter__(self) -> Self:
        """Begin to draw."""
        if self._console.is_terminal:
            self._live = Live(
                get_renderable=self._now,
                console=self._console,
                transient=True,
                refresh_per_second=4,
            )
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop drawing."""
        if self._live is not None:
            self._live.stop()

    def note(self, news: Started | Skipped | Result) -> None:
        """Take note of a scenario's beginning or end."""
        if isinstance(news, Skipped):
            line = Text(f"-- {news.name}: SKIPPED, {news.why}", style="yellow")
            self._console.print(line, soft_wrap=True)
            return
        if isinstance(news, Started):
            self._running[news.name] = time.monotonic()
            return
        self._running.pop(news.name, None)
        self._done += 1
        self._failed += not news.passed
        self._console.print(_line(news), soft_wrap=True)

    def tell(self, report: Report, console: Console) -> None:
        """Write the table, and what did not hold."""
        console.print(_table(report))
        for result in report.scenarios:
            for what in result.failed:
                console.print(Text(f"{result.name}: did not hold: {what}", style="red"))
        if report.plant:
            _tell_plant(report, console)
        if report.kept:
            console.print(f"the schemas {report.kept}_* are left in the database")
        verdict = "passed" if report.passed else "FAILED"
        kills = sum(result.kills for result in report.scenarios)
        number = len(report.scenarios)
        text = f"{verdict}: {number} scenario{'s'[: number != 1]}, {kills} kills"
        if report.naive is not None and not report.scenarios:
            text = f"naive alone, which proves nothing: {report.naive.kills} kills"
        text += f", seed {report.seed}"
        if report.skipped:
            text += f"; skipped: {', '.join(report.skipped)}"
        console.print(Text(text, style="bold green" if report.passed else "bold red"))

    def _now(self) -> Table:
        table = Table.grid(padding=(0, 2))
        for name, began in self._running.items():
            table.add_row(Text(name, style="cyan"), Text(f"{time.monotonic() - began:.0f} s"))
        table.add_row(Text(f"{self._done} done", style="dim"), Text(""))
        return table


def _line(result: Result) -> Text:
    line = Text()
    naive = result.name == "naive"
    mark = ("--", "yellow") if naive else (("ok", "green") if result.passed else ("NO", "bold red"))
    line.append(f"{mark[0]} ", style=mark[1])
    line.append(f"{result.name}: {result.verdict.messages} messages, {result.kills} kills")
    if naive:
        line.append(" (to compare, not judged)", style="dim")
    bad = [f"{count} {name}" for name, count in result.figures().items() if count]
    if bad:
        line.append(f": {', '.join(bad)}", style="yellow" if naive else "red")
    line.append(f" ({result.seconds:.1f} s)", style="dim")
    return line


def _table(report: Report) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("scenario")
    for head in (
        "messages",
        *(_HEADS.get(name, name) for name in FIGURES),
        "resent",
        "kills",
        "recovery",
    ):
        table.add_column(head, justify="right")
    for result in report.scenarios:
        table.add_row(*_cells(result, result.name))
    if report.naive is not None:
        table.add_section()
        table.add_row(*_cells(report.naive, _NAIVE), style="yellow")
    return table


def _cells(result: Result, name: str) -> list[Text]:
    verdict = result.verdict
    counts = [Text(str(n), style="bold red" if n else "") for n in result.figures().values()]
    return [
        Text(name, style="" if result.passed else "bold"),
        Text(str(verdict.messages)),
        *counts,
        Text(str(verdict.resent)),
        Text(str(result.kills)),
        Text(f"{result.recovery_seconds:.1f} s"),
    ]


def _tell_plant(report: Report, console: Console) -> None:
    caught = report.caught()
    if not caught:
        console.print(Text(f"{report.plant} was NOT caught", style="bold red"))
    for scenario, figures in caught.items():
        counts = ", ".join(f"{name} = {count}" for name, count in figures.items())
        console.print(Text(f"{report.plant} was caught by {scenario}: {counts}"), soft_wrap=True)
