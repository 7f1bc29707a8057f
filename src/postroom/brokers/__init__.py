"""The brokers: each module implements the contract of `postroom.broker` on one kind of server."""
