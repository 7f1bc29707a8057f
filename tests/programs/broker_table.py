"""The table of what differs between brokers, as the drivers declare it.

`python -m tests.programs.broker_table` writes it into the page.
"""

import ast
import inspect
import textwrap
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path

from postroom.broker import BrokerFeatures
from postroom.drivers import open_broker

PAGE = Path(__file__).parents[2] / "docs/drivers/index.md"
BEGIN, END = "<!-- table of features: begin -->\n", "<!-- table of features: end -->\n"
BROKERS: Mapping[str, str] = {
    "memory": "memory:",
    "embedded": "sqlite:///broker.db",
    "RabbitMQ": "amqp://127.0.0.1/",
    "Kafka": "kafka://127.0.0.1",
    "NATS": "nats://127.0.0.1",
    "Redis": "redis://127.0.0.1/",
}


def table() -> str:
    """Return the table, one row for each feature."""
    features = {name: open_broker(url).features for name, url in BROKERS.items()}
    lines = ["| | " + " | ".join(features) + " |", "|---" * (len(features) + 1) + "|"]
    for field, meaning in _meanings().items():
        cells = " | ".join(_cell(getattr(one, field)) for one in features.values())
        lines.append(f"| `{field}`: {meaning} | {cells} |")
    return "\n".join(lines) + "\n"


def written() -> str:
    """Return the page with the table in it."""
    before, _, rest = PAGE.read_text().partition(BEGIN)
    return before + BEGIN + "\n" + table() + "\n" + END + rest.partition(END)[2]


def _meanings() -> dict[str, str]:
    """Return each feature's own description."""
    source = ast.parse(textwrap.dedent(inspect.getsource(BrokerFeatures)))
    body = source.body[0].body if isinstance(source.body[0], ast.ClassDef) else []
    found: dict[str, str] = {}
    for field, text in pairwise(body):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
            assert isinstance(text, ast.Expr)
            said = ast.literal_eval(text.value).rstrip(".")
            found[field.target.id] = said[0].lower() + said[1:]
    return found


def _cell(value: object) -> str:
    match value:
        case True:
            return "yes"
        case False:
            return "no"
        case None:
            return "no limit, or the server's own"
        case int():
            return f"{value:,}"
    return str(value)


if __name__ == "__main__":
    PAGE.write_text(written())
