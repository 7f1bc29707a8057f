"""The picture: one page with a timeline for each scenario, in plain HTML and SVG."""

from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path

from postroom.lab.marks import Mark, Marks
from postroom.lab.report import FIGURES, Report, Result

_LEFT, _WIDTH, _LANE, _CURVE = 150, 820, 18, 70

_STYLE = """
:root { color-scheme: light dark; --ink: #1d2430; --soft: #667085; --paper: #ffffff;
  --rule: #d5dae3; --alive: #7fb59a; --frozen: #6ea8e0; --killed: #c8362b; --fault: #e3a13b;
  --curve: #7a5bc0; --undone: #b9a6e3; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e9ef; --soft: #98a2b3; --paper: #14181f;
  --rule: #343b47; --alive: #3f7d60; --frozen: #3e78b5; --killed: #ff6f61; --fault: #c98a24;
  --curve: #b49bf0; --undone: #5d4a91; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper);
  max-width: 1020px; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.4rem; } h2 { font-size: 1.05rem; margin: 2rem 0 .2rem; }
p { margin: .2rem 0 .6rem; } small, .soft { color: var(--soft); }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; width: 100%; }
th, td { text-align: right; padding: .2rem .5rem; border-bottom: 1px solid var(--rule); }
th:first-child, td:first-child { text-align: left; }
.bad { color: var(--killed); font-weight: 600; }
.scroll { overflow-x: auto; } svg { display: block; min-width: 900px; width: 100%; height: auto; }
svg text { font: 11px system-ui, sans-serif; fill: var(--ink); } svg .soft { fill: var(--soft); }
.alive { fill: var(--alive); } .frozen { fill: var(--frozen); } .fault { fill: var(--fault); }
.killed { stroke: var(--killed); stroke-width: 2; } .axis { stroke: var(--rule); }
.curve { fill: none; stroke: var(--curve); stroke-width: 1.5; } .undone { fill: var(--undone); }
.key { display: inline-block; width: .8em; height: .8em; margin: 0 .3em 0 1em; }
"""

_LEGEND = (
    ("alive", "running"),
    ("frozen", "frozen (SIGSTOP)"),
    ("killed", "killed (SIGKILL)"),
    ("fault", "broker or database cannot be used"),
    ("curve", "messages not sent"),
    ("undone", "orders without all effects"),
)


def write(report: Report, path: Path) -> None:
    """Write the page; it needs no other file and no network."""
    path.write_text("\n".join(_page(report)) + "\n", encoding="utf-8")


def _page(report: Report) -> Iterator[str]:
    outcome = "passed" if report.passed else "FAILED"
    yield "<!doctype html><html lang='en'><head><meta charset='utf-8'>"
    yield "<meta name='viewport' content='width=device-width, initial-scale=1'>"
    yield f"<title>Postroom: failure lab, seed {report.seed}</title>"
    yield f"<style>{_STYLE}</style></head><body>"
    yield f"<h1>Failure lab: {outcome}</h1>"
    plant = f", with the wrong variant <b>{escape(report.plant)}</b>" if report.plant else ""
    yield f"<p class='soft'>seed {report.seed}, store {report.store}, broker {report.broker}"
    yield f"{plant}</p><div class='scroll'>"
    yield from _table(report)
    yield "</div><p>"
    for kind, text in _LEGEND:
        yield f"<span class='key' style='background:var(--{kind})'></span><small>{text}</small>"
    yield "</p>"
    results = [*report.scenarios, *([report.naive] if report.naive else [])]
    # The longest is the most telling picture.
    for result in sorted(results, key=lambda one: one.kills, reverse=True):
        yield from _picture(result)
    yield "</body></html>"


def _table(report: Report) -> Iterator[str]:
    heads = ("scenario", "messages", *FIGURES, "resent", "kills", "recovery")
    yield "<table><tr>" + "".join(f"<th>{escape(h.replace('_', ' '))}</th>" for h in heads)
    yield "</tr>"
    for result in report.scenarios:
        yield from _row(result, result.name)
    if report.naive is not None:
        yield from _row(report.naive, report.naive.name)
    yield "</table>"


def _row(result: Result, name: str) -> Iterator[str]:
    yield f"<tr><td>{escape(name)}</td><td>{result.verdict.messages}</td>"
    for count in result.figures().values():
        yield f"<td class='bad'>{count}</td>" if count else "<td>0</td>"
    yield f"<td>{result.verdict.resent}</td><td>{result.kills}</td>"
    yield f"<td>{result.recovery_seconds:.1f} s</td></tr>"


def _picture(result: Result) -> Iterator[str]:
    verdict = "passed" if result.passed else "<span class='bad'>failed</span>"
    yield f"<h2>{escape(result.name)} <small>{verdict}, {result.kills} kills</small></h2>"
    yield f"<p class='soft'>{escape(result.summary)}</p>"
    for what in result.failed:
        yield f"<p class='bad'>did not hold: {escape(what)}</p>"
    yield "<div class='scroll'>"
    yield from _svg(result.marks, f"Timeline of {result.name}")
    yield "</div>"


def _svg(marks: Marks, title: str) -> Iterator[str]:
    lanes = marks.lanes()
    ends = [mark.end or mark.start for mark in marks.marks]
    span = max([1.0, *ends, *(level.at for level in marks.levels)])
    base = len(lanes) * _LANE + _CURVE + 14
    yield f"<svg viewBox='0 0 {_LEFT + _WIDTH + 10} {base + 22}' role='img'>"
    yield f"<title>{escape(title)}</title>"
    for number, lane in enumerate(lanes):
        top = number * _LANE
        yield f"<text x='{_LEFT - 8}' y='{top + 13}' text-anchor='end'>{escape(lane)}</text>"
        for mark in marks.marks:
            if mark.lane == lane:
                yield _mark(mark, top, span)
    yield from _levels(marks, base, span)
    yield from _axis(base, span)
    yield "</svg>"


def _mark(mark: Mark, top: int, span: float) -> str:
    x = _x(mark.start, span)
    tip = f"<title>{escape(mark.text or mark.kind)} at {mark.start:.2f} s</title>"
    if mark.end is None:
        return (
            f"<line class='{mark.kind}' x1='{x:.1f}' x2='{x:.1f}' y1='{top + 1}' "
            f"y2='{top + _LANE - 1}'>{tip}</line>"
        )
    width = max(_x(mark.end, span) - x, 1.0)
    return (
        f"<rect class='{mark.kind}' x='{x:.1f}' y='{top + 4}' width='{width:.1f}' "
        f"height='{_LANE - 8}' rx='2'>{tip}</rect>"
    )


def _levels(marks: Marks, base: int, span: float) -> Iterator[str]:
    highest = max([1, *(max(level.undone, level.unsent) for level in marks.levels)])
    undone = _points([(level.at, level.undone) for level in marks.levels], base, span, highest)
    unsent = _points([(level.at, level.unsent) for level in marks.levels], base, span, highest)
    if undone:
        first, last = undone[0].split(",")[0], undone[-1].split(",")[0]
        area = " ".join((f"{first},{base}", *undone, f"{last},{base}"))
        yield f"<polygon class='undone' points='{area}'/>"
        yield f"<polyline class='curve' points='{' '.join(unsent)}'/>"
    yield f"<text class='soft' x='{_LEFT - 8}' y='{base - _CURVE + 12}' text-anchor='end'>"
    yield f"backlog, up to {highest}</text>"


def _points(
    values: Sequence[tuple[float, int]], base: int, span: float, highest: int
) -> Sequence[str]:
    return [f"{_x(at, span):.1f},{base - value / highest * _CURVE:.1f}" for at, value in values]


def _axis(base: int, span: float) -> Iterator[str]:
    yield f"<line class='axis' x1='{_LEFT}' x2='{_LEFT + _WIDTH}' y1='{base}' y2='{base}'/>"
    step = next(step for step in (1, 2, 5, 10, 30, 60, 300, 3600) if span / step <= 14)
    for number in range(int(span / step) + 1):
        x = _x(number * step, span)
        yield f"<line class='axis' x1='{x:.1f}' x2='{x:.1f}' y1='{base}' y2='{base + 4}'/>"
        yield f"<text class='soft' x='{x:.1f}' y='{base + 16}' text-anchor='middle'>"
        yield f"{number * step} s</text>"


def _x(at: float, span: float) -> float:
    return _LEFT + at / span * _WIDTH
