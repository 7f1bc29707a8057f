"""The same rules over PostgreSQL, on every server that is there."""

from functools import partial

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.properties.ground import PostgresqlGround
from tests.properties.test_machine import LONG, STEPS, OutboxMachine
from tests.servers import Server, needed, postgresql_servers


def machine_on(server: Server) -> type[OutboxMachine]:
    """Return the machine over that server."""

    class PostgresqlMachine(OutboxMachine):
        ground = staticmethod(partial(PostgresqlGround, server.url))

    return PostgresqlMachine


@pytest.mark.timeout(3600 if LONG else 900)
@pytest.mark.parametrize("server", needed(postgresql_servers(), "PostgreSQL"))
def test_the_rules_hold_on_postgresql(server: Server) -> None:
    run_state_machine_as_test(
        machine_on(server),
        settings=settings(
            max_examples=300 if LONG else 12,
            stateful_step_count=STEPS,
            suppress_health_check=list(HealthCheck),
        ),
    )
