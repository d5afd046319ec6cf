"""A worker in a process of its own, which a test may kill: ``python -m tests.workers.program``.

Its handler ``work`` writes two effects for each task. With a *point* in the payload it stays there,
on the first attempt, until somebody kills the process, and says so in a line of its output.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import threading
from contextvars import ContextVar
from datetime import timedelta
from typing import Any

from sqlalchemy import create_engine, event
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session
from sqlalchemy.util import await_only

from sqla_taskqueue import Claim, Handlers, Queue, Worker
from tests.workers.hosts import Effect, Task

POINTS = (
    "after the first write",
    "after the last write",
    "before the end",
    "after the end",
    "before the commit",
    "after the commit",
)
"""Moments of a handler's transaction; the end is the statement that ends the task."""

tasks = Handlers(Queue(Task, "work"))
wanted: ContextVar[str | None] = ContextVar("wanted", default=None)
"""At which point the handler that runs here is to be met."""


class Meeting:
    """Calls a function when a handler comes to its point."""

    def __init__(self, engine: Any, meet: Any) -> None:
        self._meet = meet
        engine = getattr(engine, "sync_engine", engine)
        event.listen(engine, "before_cursor_execute", self._before)
        event.listen(engine, "after_cursor_execute", self._after)
        event.listen(engine, "commit", lambda connection: self.at("before the commit", connection))
        event.listen(Session, "after_commit", self._committed)

    def at(self, point: str, connection: Any) -> None:
        if wanted.get() == point:
            wanted.set(None)
            self._meet(point, connection)

    def _before(self, connection, cursor, statement, parameters, context, many) -> None:
        if "tq_ended" in statement:
            self.at("before the end", connection)

    def _after(self, connection, cursor, statement, parameters, context, many) -> None:
        if "INSERT INTO effects" in statement:
            first = connection.info.pop("effects", 0) == 0
            connection.info["effects"] = int(first)
            self.at("after the first write" if first else "after the last write", connection)
        elif "tq_ended" in statement:
            self.at("after the end", connection)

    def _committed(self, session) -> None:
        self.at("after the commit", None)

    def close(self) -> None:
        """Listen no longer to what all sessions share."""
        event.remove(Session, "after_commit", self._committed)


def effects(session: Any, number: int) -> Any:
    """Return the two writes of a task, each of them a coroutine or done already."""
    for _ in range(2):
        yield session.execute(Effect.__table__.insert(), {"number": number})


def want(claim: Claim[Any], point: str | None) -> None:
    """Note that the handler is to be met at a point, on its first attempt."""
    wanted.set(point if claim.attempt == 1 else None)


async def work_async(
    session: AsyncSession, claim: Claim[Any], number: int, point: str | None = None
) -> None:
    """Write two effects."""
    want(claim, point)
    for effect in effects(session, number):
        await effect


def work_sync(session: Session, claim: Claim[Any], number: int, point: str | None = None) -> None:
    """Write two effects."""
    want(claim, point)
    for _ in effects(session, number):
        pass


def main() -> None:
    """Work until killed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("--concurrency", type=int, default=10)
    parser.add_argument("--lease", type=float, default=1)
    options = parser.parse_args()
    is_async = "asyncpg" in options.url
    engine: Any = create_async_engine(options.url) if is_async else create_engine(options.url)
    tasks.handler(name="work")(work_async if is_async else work_sync)

    def stay(point: str, connection: Any) -> None:
        os.write(1, f"{point}\n".encode())  # in one piece: other threads write, too
        if is_async:
            await_only(asyncio.Event().wait())
        else:
            threading.Event().wait()

    Meeting(engine, stay)
    worker = Worker(
        engine,
        tasks,
        concurrency=options.concurrency,
        lease=timedelta(seconds=options.lease),
        sweep=timedelta(seconds=0.5),
    )
    asyncio.run(worker.run())


if __name__ == "__main__":
    main()
