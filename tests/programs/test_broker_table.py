"""The page that compares brokers says what the drivers declare."""

from tests.programs.broker_table import PAGE, written


def test_the_table_of_features_is_that_of_the_drivers() -> None:
    assert PAGE.read_text() == written(), "run: python -m tests.programs.broker_table"
