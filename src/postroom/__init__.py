"""Postroom: a transactional outbox and inbox. What you commit gets sent, once in effect."""

from importlib.metadata import version as _version

from postroom.app import Postroom
from postroom.consumer import AsyncContext, Consumer, Context
from postroom.desk import Desk
from postroom.errors import PostroomError
from postroom.inbox import Inbox
from postroom.limits import Limits
from postroom.message import Entry, Message, State, message
from postroom.outbox import Outbox, SyncOutbox
from postroom.relay import Relay, RelayOptions
from postroom.retry import Backoff, RetryPolicy
from postroom.route import Route, Routes
from postroom.settings import Settings
from postroom.store import Query

__version__ = _version("postroom")

__all__ = [
    "AsyncContext",
    "Backoff",
    "Consumer",
    "Context",
    "Desk",
    "Entry",
    "Inbox",
    "Limits",
    "Message",
    "Outbox",
    "Postroom",
    "PostroomError",
    "Query",
    "Relay",
    "RelayOptions",
    "RetryPolicy",
    "Route",
    "Routes",
    "Settings",
    "State",
    "SyncOutbox",
    "message",
]
