"""A worker in the test's own event loop, and what is seen of it from without."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from sqla_taskqueue import Handlers, Queue, Worker
from tests.twin import PATIENCE
from tests.workers.hosts import Base, Task

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

MS = timedelta(milliseconds=1)
SECOND = timedelta(seconds=1)
NEVER = timedelta(days=1)

QUEUE = Queue(Task, "work")


class Works:
    """A registry, its tasks, and workers for them.

    Attributes:
        handlers: The registry; a test adds its functions.
        started: The argument ``n`` of each handler that was started, if handlers note it.
    """

    def __init__(self, twin: Any, queue: Any = QUEUE) -> None:
        self.twin = twin
        self.queue = queue
        self.handlers = Handlers(queue)
        self.started: list[Any] = []
        twin.create(Base.metadata)

    @property
    def table(self) -> str:
        """The task table."""
        name: str = self.queue.model.__tablename__
        return name

    async def send(self, name: str, *payloads: Any, **options: Any) -> list[Any]:
        """Enqueue a task with each payload, in one transaction; return the ids."""
        queue = self.twin.queue(self.queue.model, self.queue.name)
        if scope := options.pop("scope", None):
            queue = queue.scope(**scope)
        async with self.twin.begin() as session:
            sent = [await queue.enqueue(session, name, one, **options) for one in payloads]
        return [one.id for one in sent]

    def new_engine(self, **options: Any) -> Any:
        """Make an engine whose connections are known as a worker's."""
        name = {"application_name": "worker"}
        connect = {"server_settings": name} if self.twin.driver.name == "asyncpg" else name
        connect = connect | options.pop("connect_args", {})
        return self.twin.new_engine(connect_args=connect, **options)

    def new_worker(self, **options: Any) -> Worker:
        """Make a worker with an engine of its own, one that a lost wake-up would keep waiting."""
        engine = options.pop("engine", None) or self.new_engine()
        options = {"poll": NEVER, "sweep": NEVER, "concurrency": 10} | options
        return Worker(engine, self.handlers, **options)

    @asynccontextmanager
    async def worker(self, **options: Any) -> AsyncIterator[Worker]:
        """Run a worker; stop it at the end and see that it ends well."""
        worker = self.new_worker(**options)
        async with running(worker):
            yield worker

    def states(self) -> dict[str, int]:
        """Return how many tasks are in each state."""
        return dict(self.twin.sql(f"SELECT state, count(*) FROM {self.table} GROUP BY 1"))

    async def until(self, **states: int) -> None:
        """Wait until exactly so many tasks are in each state, and no others are there."""

        def reached() -> bool:
            return self.states() == states

        try:
            await self.twin.until(reached)
        except TimeoutError:
            rows = self.twin.sql(f"SELECT name, state, attempt, error FROM {self.table} LIMIT 5")
            raise AssertionError(f"{self.states()}, not {states}: {rows}") from None

    def backends(self, like: str = "%") -> list[int]:
        """Return the connections of workers by what they did last."""
        return [
            row.pid
            for row in self.twin.sql(
                "SELECT pid FROM pg_stat_activity WHERE datname = current_database()"
                " AND application_name = 'worker' AND query LIKE %(like)s",
                like=like,
            )
        ]


@asynccontextmanager
async def running(worker: Worker) -> AsyncIterator[asyncio.Task[None]]:
    """Run a worker beside the test."""
    run = asyncio.create_task(worker.run())
    try:
        yield run
    finally:
        worker.stop()
        async with asyncio.timeout(PATIENCE + worker.grace.total_seconds()):
            await run
