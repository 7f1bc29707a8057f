"""The same rules over PostgreSQL, on every server that is there."""

from contextlib import suppress
from functools import partial

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.errors import FlakyStrategyDefinition
from hypothesis.stateful import run_state_machine_as_test

from tests.properties.ground import PostgresqlGround
from tests.properties.test_machine import LONG, STEPS, OutboxMachine
from tests.servers import Server, needed, postgresql_servers

TRIES = 3


def machine_on(server: Server) -> type[OutboxMachine]:
    """Return the machine over that server."""

    class PostgresqlMachine(OutboxMachine):
        ground = staticmethod(partial(PostgresqlGround, server.url))

    return PostgresqlMachine


def run(machine: type[OutboxMachine], given: settings) -> None:
    """Run it; begin anew where the same steps led to another choice of steps the second time.

    Marks rise only past transactions that are over, also those of other tests on the server, so
    what a read finds may differ from run to run. The rules hold all the same, and a rule that is
    broken is told as ever.
    """
    for _ in range(TRIES - 1):
        with suppress(FlakyStrategyDefinition):
            return run_state_machine_as_test(machine, settings=given)
    return run_state_machine_as_test(machine, settings=given)


@pytest.mark.timeout(3600 if LONG else 900)
@pytest.mark.parametrize("server", needed(postgresql_servers(), "PostgreSQL"))
def test_the_rules_hold_on_postgresql(server: Server) -> None:
    run(
        machine_on(server),
        settings(
            max_examples=300 if LONG else 12,
            stateful_step_count=STEPS,
            suppress_health_check=list(HealthCheck),
        ),
    )
