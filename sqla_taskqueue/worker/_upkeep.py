"""Upkeep on the side: leases that ran out are taken back, tasks that ended long ago are deleted."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from .._operations import prune, reclaim
from .._sessions import caller
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
                    partial(self._reclaim, core) for core in self._cores
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

    async def _reclaim(self, core: QueueCore[Any]) -> None:
        done = Reclaimed()
        while not self._stopping.is_set():
            some = await self._line.run(partial(_reclaim, core))
            done = Reclaimed(done.requeued + some.requeued, done.failed + some.failed)
            if some.total < _BATCH:
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


def _reclaim(core: QueueCore[Any], connection: Connection) -> Reclaimed:
    return reclaim(caller(connection, core.model), core, stale_after=None, limit=_BATCH)


def _prune(core: QueueCore[Any], state: TaskState, age: timedelta, connection: Connection) -> int:
    return prune(caller(connection, core.model), core, older_than=age, state=state, limit=_BATCH)
