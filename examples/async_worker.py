"""An asynchronous service: AsyncSession, a relay inside, and a clean stop on SIGTERM."""

import asyncio
import signal
from dataclasses import dataclass
from uuid import UUID, uuid4

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine

from postroom import AsyncContext, Consumer, Postroom, Settings, message
from postroom.connections.sqlalchemy import begin_immediately
from postroom.events import Acknowledged, Event

COMMENTS = 3


@message("blog.comment-written", key="post")
@dataclass
class CommentWritten:
    """Somebody wrote a comment on a post."""

    post: str
    comment: UUID


engine = begin_immediately(create_async_engine("sqlite+aiosqlite:///blog.db"))
transaction = async_sessionmaker(engine).begin
postroom = Postroom(Settings(store="sqlite:///blog.db", broker="sqlite:///broker.db"))
handled = asyncio.Semaphore(0)


def notice(event: Event) -> None:
    """Take note that the broker knows of one more handled message."""
    if isinstance(event, Acknowledged):
        handled.release()


counting = Consumer("counting", begin=transaction, store=postroom.store, observers=[notice])


@counting.on(CommentWritten)
async def count(written: CommentWritten, context: AsyncContext[AsyncSession]) -> None:
    """Count a comment, once."""
    await context.connection.execute(
        text("UPDATE posts SET comments = comments + 1 WHERE name = :post"), {"post": written.post}
    )


async def comment(post: str) -> None:
    """Save a comment and say so."""
    number = uuid4()
    async with transaction() as session:
        await session.execute(
            text("INSERT INTO comments VALUES (:id, :post)"), {"id": str(number), "post": post}
        )
        await postroom.outbox.put(session, CommentWritten(post=post, comment=number))


async def counted(post: str) -> int:
    """Return how many comments were counted."""
    async with transaction() as session:
        query = text("SELECT comments FROM posts WHERE name = :post")
        return int(await session.scalar(query, {"post": post}) or 0)


async def main() -> None:
    """Serve until SIGTERM, which this program sends itself when its work is done."""
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    async with postroom:
        await postroom.store.migrate()
        async with transaction() as session:
            await session.execute(text("CREATE TABLE comments (id TEXT, post TEXT)"))
            await session.execute(text("CREATE TABLE posts (name TEXT, comments INTEGER)"))
            await session.execute(text("INSERT INTO posts VALUES ('first', 0)"))

        async with postroom.running_relay() as relay, asyncio.TaskGroup() as group:
            group.create_task(postroom.run_consumer(counting, stop))
            for _ in range(COMMENTS):
                await comment("first")
            relay.wake()
            for _ in range(COMMENTS):
                await handled.acquire()
            signal.raise_signal(signal.SIGTERM)

        print(f"comments counted: {await counted('first')}; stopped cleanly: {stop.is_set()}")
    await engine.dispose()


if __name__ == "__main__":
    asyncio.run(main())
