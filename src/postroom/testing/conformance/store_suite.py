"""The contract of `postroom.store` as tests.

Example:
    class TestMyStore(StoreSuite):
        def make_store(self, clock, directory): ...
        def transaction(self, store): ...
"""

from postroom.testing.conformance.store_writing import WritingTests


class StoreSuite(WritingTests):
    """Every test that a store must pass; subclass it once and define its two hooks.

    Tests are skipped by the store's `features` and by nothing else.
    """
