"""Upkeep on the side: leases that ran out are taken back, tasks that ended long ago are deleted."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from .._operations import prune, reclaim
from .._sessions import caller
from ..statements import lease as statements
from ..states import TaskState
from ..values import Reclaimed
from ._jobs import log
from ._service import wait_for

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from .._core import QueueCore
    from ._lines import Line

_BATCH = 1_000
_PRUNE_EVERY = 60.0
_FULL_SHARE, _FULL_AT_LEAST = 100, 600.0
"""Full sweeps take one part of the time at most, and come once in so many seconds at least."""


class Upkeep:
    """Sweeps after all workers, those that crashed among them. Several may do it at once.

    Args:
        line: Its connection.
        cores: The queues, without scopes.
        every: Seconds between two sweeps.
        ages: How old ended tasks become, by state.
        reclaimed: Called with a queue's name when tasks of it were taken back.
        stopping: When to return.
    """

    def __init__(
        self,
        line: Line,
        cores: Sequence[QueueCore[Any]],
        *,
        every: float,
        ages: Mapping[TaskState, timedelta],
        reclaimed: Callable[[str], object],
        stopping: asyncio.Event,
    ) -> None:
        self._line = line
        self._cores = cores
        self._every = every
        self._ages = ages
        self._reclaimed = reclaimed
        self._stopping = stopping
        self._sweeps = [Sweep(core) for core in cores]
        self._prune_at = 0.0

    async def serve(self) -> None:
        """Sweep until the worker stops.

        Raises:
            Exception: The database's; the other chores were done all the same.
        """
        loop = asyncio.get_running_loop()
        # Workers that were started together do not sweep together.
        pause = self._every * random.random()  # noqa: S311 - no secret
        try:
            while not await wait_for(self._stopping, pause):
                chores: list[Callable[[], Any]] = [
                    partial(self._reclaim, sweep) for sweep in self._sweeps
                ]
                if self._ages and loop.time() >= self._prune_at:
                    self._prune_at = loop.time() + _PRUNE_EVERY
                    chores += [
                        partial(self._prune, core, state, age)
                        for core in self._cores
                        for state, age in self._ages.items()
                    ]
                await self._do(chores)
                pause = self._every * random.uniform(0.8, 1.2)  # noqa: S311 - no secret
        finally:
            await self._line.close()

    async def _do(self, chores: Sequence[Callable[[], Any]]) -> None:
        """Do each chore, whatever becomes of the others."""
        failed: Exception | None = None
        for chore in chores:
            if self._stopping.is_set():
                return
            try:
                await chore()
            except Exception as error:  # noqa: BLE001 - raised below
                failed = error
        if failed is not None:
            raise failed

    async def _reclaim(self, sweep: Sweep) -> None:
        core, done = sweep.core, Reclaimed()
        now = asyncio.get_running_loop().time
        began = now()
        since = sweep.since_at(began)
        while not self._stopping.is_set():
            some = await self._line.run(partial(_reclaim, core, since))
            done = Reclaimed(done.requeued + some.requeued, done.failed + some.failed)
            if some.total < _BATCH:
                oldest = await self._line.run(partial(_oldest, core, since))
                sweep.learn(oldest, now(), now() - began, full=since is None)
                break
        if done:
            log.info(
                "queue %r: %d leases that ran out were taken back, %d of them on the last attempt",
                core.name,
                done.total,
                done.failed,
            )
            self._reclaimed(core.name)

    async def _prune(self, core: QueueCore[Any], state: TaskState, age: timedelta) -> None:
        while not self._stopping.is_set():
            if await self._line.run(partial(_prune, core, state, age)) < _BATCH:
                return


class Sweep:
    """Where to begin the next sweep of a queue: at the oldest live claim that the last one saw.

    Before it, the index may hold entries of claims that have ended, which a held snapshot keeps
    from vacuum. Claims that come in there, of transactions that took longer than a minute, are
    found by full sweeps, which take at most a hundredth of the time.
    """

    def __init__(self, core: QueueCore[Any]) -> None:
        self.core = core
        self._since: datetime | None = None
        self._full_at = 0.0

    def since_at(self, now: float) -> datetime | None:
        """Return since when claims are looked at; None for all."""
        return None if now >= self._full_at else self._since

    def learn(self, oldest: datetime, now: float, seconds: float, *, full: bool) -> None:
        """Take in where the oldest live claim is, and what it took to know."""
        self._since = oldest
        if full:
            self._full_at = now + min(seconds * _FULL_SHARE, _FULL_AT_LEAST)


def _reclaim(core: QueueCore[Any], since: datetime | None, connection: Connection) -> Reclaimed:
    session = caller(connection, core.model)
    return reclaim(session, core, stale_after=None, limit=_BATCH, since=since)


def _oldest(core: QueueCore[Any], since: datetime | None, connection: Connection) -> datetime:
    statement = core.statements(statements.oldest, core.bound, since is not None)
    params = core.inside if since is None else {**core.inside, "tq_since": since}
    oldest: datetime = connection.execute(statement, params).scalar_one()
    return oldest


def _prune(core: QueueCore[Any], state: TaskState, age: timedelta, connection: Connection) -> int:
    return prune(caller(connection, core.model), core, older_than=age, state=state, limit=_BATCH)
