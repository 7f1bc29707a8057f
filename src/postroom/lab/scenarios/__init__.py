"""All scenarios, in the order in which a message meets their faults."""

from collections.abc import Sequence

from postroom.lab.scenario import Scenario
from postroom.lab.scenarios import (
    brokers,
    consumers,
    contention,
    failover,
    keys,
    outages,
    relays,
    servers,
    writers,
)

SCENARIOS: Sequence[Scenario] = (
    *writers.SCENARIOS,
    *relays.SCENARIOS,
    *brokers.SCENARIOS,
    *outages.SCENARIOS,
    *keys.SCENARIOS,
    *contention.SCENARIOS,
    *consumers.SCENARIOS,
    *servers.SCENARIOS,
    *failover.SCENARIOS,
)
