"""The contract of `postroom.store` as tests.

Example:
    class TestMyStore(StoreSuite):
        def make_store(self, clock, directory): ...
        def transaction(self, store): ...
"""

from postroom.testing.conformance.store_desk import ChangingTests, FindingTests
from postroom.testing.conformance.store_leasing import LeasingTests
from postroom.testing.conformance.store_life import LifeTests, WaitingTests
from postroom.testing.conformance.store_ordering import OrderTests
from postroom.testing.conformance.store_reading import ReadingTests
from postroom.testing.conformance.store_settling import FenceTests, SettlingTests
from postroom.testing.conformance.store_sweeping import SweepingTests
from postroom.testing.conformance.store_writing import WritingTests


class StoreSuite(
    WritingTests,
    ReadingTests,
    LeasingTests,
    SettlingTests,
    FenceTests,
    OrderTests,
    SweepingTests,
    FindingTests,
    ChangingTests,
    LifeTests,
    WaitingTests,
):
    """Every test that a store must pass; subclass it once and define its two hooks.

    Tests are skipped by the store's `features` and by nothing else.
    """
