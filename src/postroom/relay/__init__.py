"""The relay: own lanes, read, publish, settle."""

from postroom.relay.dispatch import Step
from postroom.relay.flight import RelayBroker
from postroom.relay.options import RelayOptions
from postroom.relay.relay import Relay

__all__ = ["Relay", "RelayBroker", "RelayOptions", "Step"]
