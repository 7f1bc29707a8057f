"""The relay: own lanes, read, publish, settle."""

from postroom.relay.flight import RelayBroker
from postroom.relay.options import RelayOptions
from postroom.relay.relay import Relay
from postroom.relay.step import Step

__all__ = ["Relay", "RelayBroker", "RelayOptions", "Step"]
