"""Leases are renewed by a thread and a connection of their own: no handler can keep them from it.

A handler that blocks the event loop, or computes in Python for minutes, loses no lease. C code
that keeps the interpreter's lock for longer than a lease does; nothing in the process can help it.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from ..statements import batch as statements
from ..values import Holder
from ._facts import Fact, facts
from ._jobs import Job, log, sent_keys
from ._lines import PATIENCE
from ._service import is_refusal, supervise, wait_for

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from .._core import QueueCore
    from ._lines import Line

_LONGEST = 30.0
"""Seconds between two heartbeats, however long the lease is."""
Fate = Literal["renewed"] | Fact
"""What became of a lease."""
_TOGETHER = 0.25
"""Heartbeats that are due within this part of a period go together."""


def period(seconds: float) -> float:
    """Return how often a lease of so many seconds is renewed: twice before it could run out."""
    return min(_LONGEST, seconds / 3)


class Leases:
    """Renews the leases of a worker's jobs.

    Args:
        line: Makes its connection, in its thread.
        held: The jobs; others add to it and remove from it.
        holder: Who holds them.
        cores: The queues by name and class, without scopes.
        shortest: The shortest lease there is, in seconds.
        lost: Called in the worker's event loop with each job that somebody else has now.
    """

    def __init__(
        self,
        line: Callable[[], Line],
        held: Collection[Job],
        *,
        holder: Holder,
        cores: Sequence[QueueCore[Any]],
        shortest: float,
        lost: Callable[[Job], None],
    ) -> None:
        self._new_line = line
        self._held = held
        self._holder = holder
        self._cores = {(core.model.cls, core.name): core for core in cores}
        self._pause = period(shortest) * _TOGETHER
        self._patience = min(PATIENCE, max(1.0, period(shortest)))
        self._lost = lost
        self._main = asyncio.get_running_loop()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping: asyncio.Event | None = None
        self.ended: asyncio.Future[None] = self._main.create_future()
        """Done when the thread has ended; with an exception if it could not go on."""
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._run, name="taskqueue leases", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()
        self._started.wait()

    def stop(self) -> None:
        """Ask the thread to end."""
        assert self._loop is not None
        assert self._stopping is not None
        with suppress(RuntimeError):  # it has ended already
            self._loop.call_soon_threadsafe(self._stopping.set)

    def _run(self) -> None:
        error: BaseException | None = None
        try:
            asyncio.run(self._serve())
        except BaseException as caught:  # noqa: BLE001 - the worker's main loop is told
            error = caught
        self._started.set()

        def settle() -> None:
            if not self.ended.done():
                if error is None:
                    self.ended.set_result(None)
                else:
                    self.ended.set_exception(error)

        with suppress(RuntimeError):  # the worker is gone
            self._main.call_soon_threadsafe(settle)

    async def _serve(self) -> None:
        self._loop, self._stopping = asyncio.get_running_loop(), asyncio.Event()
        self._started.set()
        self._line = self._new_line()
        try:
            await supervise("renewal of leases", self._renew_all, self._stopping)
        finally:
            await self._line.close()

    async def _renew_all(self) -> None:
        assert self._loop is not None
        assert self._stopping is not None
        while True:
            # A copy in one step: the worker's own thread goes on meanwhile.
            held = [job for job in list(self._held) if not job.settled]
            now = self._loop.time()
            due = [job for job in held if job.renew_at <= now + self._pause]
            if due:
                await self._renew(due)
            if await wait_for(self._stopping, self._pause):
                return

    async def _renew(self, due: Sequence[Job]) -> None:
        assert self._loop is not None
        by_queue: dict[tuple[type[Any], str], list[Job]] = {}
        for job in due:
            by_queue.setdefault((job.core.model.cls, job.core.name), []).append(job)
        for place, jobs in by_queue.items():
            await self._renew_together(self._cores[place], jobs)

    async def _renew_together(self, core: QueueCore[Any], jobs: Sequence[Job]) -> None:
        assert self._loop is not None
        began = self._loop.time()
        # Sooner given up than a lease could run out on a connection that is silent.
        work = partial(_renewed, core, jobs, self._holder)
        fates: list[Fate]
        try:
            fates = await self._line.run(work, self._patience)
        except Exception as error:
            if not is_refusal(error):
                raise
            if len(jobs) > 1:
                # Perhaps only one of them cannot be written: it must not cost the others theirs.
                for half in (jobs[: len(jobs) // 2], jobs[len(jobs) // 2 :]):
                    await self._renew_together(core, half)
                return
            log.exception("%s: its lease cannot be renewed", jobs[0])
            fates = ["held"]
        for job, fate in zip(jobs, fates, strict=True):
            every = period(job.lease.total_seconds())
            match fate:
                case "renewed":
                    job.renew_at = began + every
                case "held":
                    # Whoever has locked the row, nobody can take it meanwhile.
                    job.renew_at = began + every * _TOGETHER
                case "ended":
                    pass
                case "lost":
                    self._main.call_soon_threadsafe(self._lost, job)


def _renewed(
    core: QueueCore[Any], jobs: Sequence[Job], holder: Holder, connection: Connection
) -> list[Fate]:
    """Renew the leases of jobs of one queue; return what became of each."""
    params: dict[str, Any] = {
        "tq_queue": core.name,
        **sent_keys(jobs),
        "tq_sent_token": [job.token for job in jobs],
        "tq_sent_lease": [job.lease for job in jobs],
    }
    if core.model.events is not None:
        params |= core.event(holder.worker, rows=len(jobs))
        params["tq_sent_actor"] = [holder.worker] * len(jobs)
    rows = connection.execute(core.statements(statements.heartbeats), params)
    renewed = {row.tq_n - 1 for row in rows}
    if len(renewed) == len(jobs):
        return ["renewed"] * len(jobs)
    missing = [job for index, job in enumerate(jobs) if index not in renewed]
    known = facts(core.model, missing, connection)
    return ["renewed" if index in renewed else known[job] for index, job in enumerate(jobs)]
