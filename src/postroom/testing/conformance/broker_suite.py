"""The contract of `postroom.broker` as tests.

Example:
    class TestMyBroker(BrokerSuite):
        def make_broker(self, directory): ...
        async def sever(self, broker): ...
"""

from postroom.testing.conformance.broker_delivering import AnswerTests, LosingTests
from postroom.testing.conformance.broker_publishing import (
    ConnectingTests,
    LimitTests,
    PublishingTests,
    RoundTripTests,
)
from postroom.testing.conformance.broker_sharing import GroupTests, PrefetchTests


class BrokerSuite(
    PublishingTests,
    LimitTests,
    RoundTripTests,
    ConnectingTests,
    AnswerTests,
    LosingTests,
    GroupTests,
    PrefetchTests,
):
    """Every test that a broker must pass; subclass it once and define its two hooks.

    Tests are skipped by the broker's `features` and by nothing else.
    """
