"""For the tests of those who use Postroom: a clock to turn by hand, doubles, conformance suites."""
