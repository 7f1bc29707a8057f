"""`topology`: what has to exist in the broker, shown or made."""

from collections.abc import Mapping, Sequence
from typing import Annotated

import typer

from postroom._redact import redacted
from postroom.broker import Builder, TopologyPart
from postroom.cli.exits import CommandFailed, Exit
from postroom.cli.loading import consumer_at
from postroom.cli.screen import document, show, table
from postroom.cli.start import Json, common, examples, run
from postroom.drivers import broker_of
from postroom.route import Routes
from postroom.settings import Settings

app = typer.Typer()

Groups = Mapping[str, Sequence[str]]


@app.command(
    epilog=examples(
        "postroom topology shop.billing:consumer shop.shipping:consumer",
        "postroom topology --group billing=shop.order-placed,shop.order-paid --apply",
        "postroom topology shop.billing:consumer --json",
    )
)
def topology(
    context: typer.Context,
    *,
    consumers: Annotated[
        list[str] | None,
        typer.Argument(metavar="[MODULE:APP]...", help="Consumers whose queues are wanted."),
    ] = None,
    group: Annotated[
        list[str] | None,
        typer.Option(
            "--group",
            metavar="NAME=TOPIC,...",
            help="A group whose consumer cannot be imported here; may be given several times.",
        ),
    ] = None,
    apply: Annotated[
        bool, typer.Option("--apply", help="Make what is missing; change nothing that is there.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Show what has to exist in the broker: exchanges, queues, bindings, streams, consumers.

    Nothing else makes any of it, unless the broker's address says so.
    """
    settings = common(context).settings()
    broker = broker_of(settings)
    if not isinstance(broker, Builder):
        raise CommandFailed(
            Exit.USAGE,
            f"the broker {redacted(settings.broker)} needs nothing made beforehand",
            cure="`postroom init` gets it ready",
        )
    groups = _groups(settings, consumers or (), group or ())
    try:
        parts = broker.topology(groups)
    except ValueError as error:
        raise CommandFailed(Exit.USAGE, str(error)) from error

    async def work() -> None:
        await broker.open()
        try:
            await broker.apply_topology(groups)
        finally:
            await broker.close()

    if apply:
        run(work())
    _tell(parts, redacted(settings.broker), applied=apply, as_json=as_json)


def _groups(settings: Settings, paths: Sequence[str], given: Sequence[str]) -> Groups:
    found: dict[str, tuple[str, ...]] = {}
    for path in paths:
        consumer = consumer_at(path)
        consumer.follow(Routes(settings.routes))
        found[consumer.name] = (*found.get(consumer.name, ()), *consumer.topics)
    for text in given:
        name, _, topics = text.partition("=")
        wanted = tuple(filter(None, topics.split(",")))
        if not name or not wanted:
            raise CommandFailed(
                Exit.USAGE,
                f"{text!r} is not NAME=TOPIC,...",
                cure="for example --group billing=shop.order-placed,shop.order-paid",
            )
        found[name] = (*found.get(name, ()), *wanted)
    return {name: tuple(dict.fromkeys(topics)) for name, topics in found.items()}


def _tell(parts: Sequence[TopologyPart], broker: str, *, applied: bool, as_json: bool) -> None:
    if as_json:
        listed = [{"kind": one.kind, "name": one.name, "detail": one.detail} for one in parts]
        document({"broker": broker, "applied": applied, "parts": listed})
        return
    table(("kind", "name", "how"), [(one.kind, one.name, one.detail) for one in parts])
    show("")
    show(f"{broker}: all of it is there" if applied else "nothing was changed; --apply makes it")
