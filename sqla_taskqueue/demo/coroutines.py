"""Workers as asyncio tasks, with an asynchronous driver: ``threads.py``, awaited."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

from sqlalchemy.engine import make_url
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine

from .. import LeaseLost
from . import job
from .database import engine_options
from .evidence import ClaimLog, entries
from .host import async_welcomes
from .settings import LEASE, RETRY

if TYPE_CHECKING:
    from .. import Claim
    from .host import Task
    from .process import Line


class AsyncWorker:
    """Claims a few tasks, does them one by one, and begins again until told to stop."""

    def __init__(
        self,
        name: str,
        sessions: async_sessionmaker[AsyncSession],
        log: ClaimLog,
        stop: asyncio.Event,
    ) -> None:
        self.name = name
        self.sessions = sessions
        self.log = log
        self.stop = stop

    async def run(self) -> None:
        """Work."""
        pause, pace = job.Pause(), job.Pace()
        while not self.stop.is_set():
            pace.begin()
            claims = await self.claim(pace.how_many())
            if not claims:
                with suppress(TimeoutError):
                    await asyncio.wait_for(self.stop.wait(), pause.longer())
                continue
            pause.reset()
            for claim in claims:
                if pace.is_late() and not await self.renew(claim):
                    continue  # it ran out and somebody else has the task
                await self.work(claim)
            pace.end()

    async def claim(self, limit: int) -> list[Claim[Task]]:
        """Take a few tasks, and write down which before doing anything about them."""
        async with self.sessions.begin() as session:
            claims = await async_welcomes.claim(
                session, holder=self.name, limit=limit, lease=LEASE
            )
            noted = entries(claims)
        if noted:
            self.log.write(noted)
        return claims

    async def renew(self, claim: Claim[Task]) -> bool:
        """Extend the lease; tell whether the task is still this worker's."""
        async with self.sessions.begin() as session:
            return bool(await async_welcomes.heartbeat(session, claim))

    async def work(self, claim: Claim[Task]) -> None:
        """Do one task: its effect and its completion are one transaction, or nothing is."""
        await asyncio.sleep(job.how_long())
        try:
            async with self.sessions.begin() as session:
                session.add(job.deliver(claim, self.name))
                job.check_mail_server(claim)
                await async_welcomes.complete(session, claim)
        except job.MailServerBusy as error:
            async with self.sessions.begin() as session:
                await async_welcomes.fail(
                    session, claim, error=error, retry=RETRY, on_lost="return"
                )
        except LeaseLost:
            pass  # the delivery was rolled back with it; whoever has the task now delivers


async def work_in_coroutines(orders: job.Orders, line: Line) -> None:
    """Run the workers of one process until the parent says stop."""
    url = make_url(orders.url)
    options = engine_options(url, orders.schema, pool=orders.pool, name=orders.application)
    engine = create_async_engine(url, **options)
    # The claims are used after the session that made them.
    sessions = async_sessionmaker(engine, expire_on_commit=False)
    async with engine.connect():
        pass  # ready means that the database can be reached
    if not line.ready():
        return
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    line.call_at_end(lambda: loop.call_soon_threadsafe(stop.set))
    with ClaimLog(orders.log) as log:
        async with asyncio.TaskGroup() as group:
            for name in orders.workers:
                group.create_task(AsyncWorker(name, sessions, log, stop).run())
    await engine.dispose()
