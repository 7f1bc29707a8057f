"""Where the hooks of a session are hung up."""

from typing import Any
from weakref import WeakSet

from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session, async_sessionmaker
from sqlalchemy.orm import Session, scoped_session, sessionmaker

Sessions = (
    Session
    | type[Session]
    | sessionmaker[Any]
    | scoped_session[Any]
    | AsyncSession
    | async_sessionmaker[Any]
    | async_scoped_session[Any]
)
"""What can be bound: factories of sessions, and single sessions."""

AnySession = Session | scoped_session[Any] | AsyncSession | async_scoped_session[Any]
"""What a message can be put into."""

_made: WeakSet[type[Session]] = WeakSet()


def sync_session(session: AnySession) -> Session:
    """Return the session that does the work: an asynchronous one is a shell around it."""
    if isinstance(session, scoped_session | async_scoped_session):
        return sync_session(session())
    return session.sync_session if isinstance(session, AsyncSession) else session


def target_of(sessions: Sessions) -> Any:
    """Return what SQLAlchemy listens on for these sessions, and no others."""
    if isinstance(sessions, async_scoped_session):
        sessions = sessions.session_factory
    if isinstance(sessions, AsyncSession):
        return sessions.sync_session
    if not isinstance(sessions, async_sessionmaker):
        return sessions
    inner: Any = sessions.kw.get("sync_session_class") or sessions.class_.sync_session_class
    if isinstance(inner, sessionmaker) or inner in _made:
        return inner
    # The class is shared with other factories: these sessions get one of their own.
    own = type(inner.__name__, (inner,), {})
    _made.add(own)
    sessions.configure(sync_session_class=own)
    return own
