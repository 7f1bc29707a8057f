"""SQLAlchemy's sessions: messages are written at the commit, after the business data."""

from postroom.integrations.sqlalchemy.outbox import SessionOutbox

__all__ = ["SessionOutbox"]
