"""Postroom: a transactional outbox and inbox. What you commit gets sent, once in effect."""

from postroom.inbox import Inbox
from postroom.limits import Limits
from postroom.message import Entry, Message, State, message
from postroom.outbox import Outbox, SyncOutbox
from postroom.retry import Backoff, RetryPolicy
from postroom.route import Route, Routes

__all__ = [
    "Backoff",
    "Entry",
    "Inbox",
    "Limits",
    "Message",
    "Outbox",
    "RetryPolicy",
    "Route",
    "Routes",
    "State",
    "SyncOutbox",
    "message",
]
