"""The course of a worker's run: services up, work, services down in order."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from ..dialects import channel_of
from ._executor import Executor
from ._jobs import Job, log
from ._leases import Leases, period
from ._lines import line_to
from ._listener import Listener
from ._outcomes import Outcome
from ._service import WorkerFailed, supervise, wait_for
from ._sources import Sources
from ._turn import Turn
from ._upkeep import Upkeep

if TYPE_CHECKING:
    from .._core import QueueCore
    from ._worker import Worker

_LOCK_TIMEOUT = "200ms"
_TICK = 0.1
"""Seconds between two looks for handlers whose time is over."""
_UNWIND = 0.7
"""Seconds that cancelled handlers have to end, and what they had is given back."""
_GC = 100_000
_collecting = threading.Lock()
_runs = 0
_threshold: tuple[int, int, int] = (0, 0, 0)


@contextmanager
def seldom_collected() -> Generator[None]:
    """Let garbage be collected seldom while any worker of the process runs.

    A batch of jobs is thousands of objects that live for milliseconds.
    """
    global _runs, _threshold  # noqa: PLW0603 - the threshold is the process's
    with _collecting:
        if _runs == 0:
            _threshold = gc.get_threshold()
            if _threshold[0]:  # not switched off
                gc.set_threshold(max(_threshold[0], _GC), *_threshold[1:])
        _runs += 1
    try:
        yield
    finally:
        with _collecting:
            _runs -= 1
            if _runs == 0:
                gc.set_threshold(*_threshold)


class Run:
    """One run of a worker."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._loop = asyncio.get_running_loop()
        self._stopping = asyncio.Event()
        self._services_stop = asyncio.Event()
        self._held: dict[Job, None] = {}
        line = partial(line_to, worker.engine)
        self._turn_line = line("turn", lock_timeout=_LOCK_TIMEOUT)
        groups: dict[Any, list[QueueCore[Any]]] = {}
        for core in worker.cores:
            groups.setdefault(core.model.table, []).append(core)
        self._turn = Turn(
            self._turn_line,
            [
                Sources(
                    cores,
                    worker.scopes if cores[0].model.scope else None,
                    {core.name: worker.lease[core] for core in cores},
                )
                for cores in groups.values()
            ],
            slots=worker.concurrency,
            holder=worker.holder,
            poll=worker.poll.total_seconds(),
            start=self._start,
            settled=self._settle,
            lost=self._tell_lost,
        )
        self._executor = Executor(
            worker.find,
            worker.sessions,
            threads=worker.concurrency,
            holder=worker.holder,
            ended=self._end,
        )
        leases = [lease.total_seconds() for lease in worker.lease.values()]
        leases += [handler.lease.total_seconds() for handler in worker.handlers if handler.lease]
        self._leases = Leases(
            partial(line, "lease connection"),
            self._held,
            holder=worker.holder,
            cores=worker.cores,
            shortest=min(leases),
            lost=self._lose,
        )
        self._services = {
            "upkeep": Upkeep(
                line("upkeep"),
                worker.cores,
                every=worker.sweep.total_seconds(),
                ages=worker.ages,
                reclaimed=self._turn.wake,
                stopping=self._services_stop,
            ).serve,
        }
        if worker.listen:
            channels = [channel_of(table) for table in groups]
            self._services["listening"] = Listener(
                line("listener"), channels, self._turn.wake, self._services_stop
            ).serve

    # --- What happens to jobs -------------------------------------------------------------------

    def _start(self, jobs: Sequence[Job]) -> None:
        now = self._loop.time()
        self._executor.start(jobs)
        for job in jobs:
            job.renew_at = now + period(job.lease.total_seconds())
            self._held[job] = None

    def _end(self, job: Job, outcome: Outcome | None) -> None:
        """Take note that a handler has ended."""
        if outcome is None:
            self._held.pop(job, None)
        else:
            self._turn.end(outcome)
        self._turn.freed()

    def _settle(self, job: Job) -> None:
        self._held.pop(job, None)

    def _lose(self, job: Job) -> None:
        """Take note that somebody else has a job whose handler is still at work."""
        if job.settled or job not in self._executor.jobs:
            return  # its end was on its way meanwhile
        log.error("%s: the lease was lost; somebody else may be working on it", job)
        job.settled = True
        self._held.pop(job, None)
        self._executor.tell(job, "lost")

    @staticmethod
    def _tell_lost(job: Job) -> None:
        log.error("%s: the lease was lost; what became of it here is not written", job)

    # --- The course -----------------------------------------------------------------------------

    def stop(self) -> None:
        """Ask for the end; from any thread."""
        with suppress(RuntimeError):  # the loop is closed: it has ended
            self._loop.call_soon_threadsafe(self._stopping.set)

    async def perform(self) -> None:
        """Run until asked to stop, or until a service cannot go on."""
        worker = self._worker
        log.info("%r begins: %d at once", worker, worker.concurrency)
        with seldom_collected():
            await self._perform()
        log.info("%r has ended", worker)

    async def _perform(self) -> None:
        self._leases.start()
        turn = asyncio.create_task(supervise("turn", self._turn.serve, self._services_stop))
        tasks = [
            turn,
            asyncio.create_task(self._watch_time()),
            *(
                asyncio.create_task(supervise(name, serve, self._services_stop))
                for name, serve in self._services.items()
            ),
        ]
        failure: BaseException | None = None
        stop = asyncio.create_task(self._stopping.wait())
        try:
            try:
                watched: list[asyncio.Future[Any]] = [stop, self._leases.ended, *tasks]
                done, _ = await asyncio.wait(watched, return_when=asyncio.FIRST_COMPLETED)
                failure = _failure(done - {stop})
            except asyncio.CancelledError as cancelled:
                failure = cancelled
                self._turn.stop_claiming()
            await asyncio.shield(self._end_in_order(turn, at_once=failure is not None))
        finally:
            self._services_stop.set()
            stop.cancel()
            self._executor.close()
            self._leases.stop()
            await asyncio.wait([self._leases.ended, *tasks], timeout=_UNWIND / 2)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self._turn_line.close()
            if self._leases.ended.done():
                self._leases.ended.exception()  # it was looked at
        if failure is not None:
            raise failure

    async def _end_in_order(self, turn: asyncio.Task[None], *, at_once: bool) -> None:
        self._turn.stop_claiming()
        jobs = self._executor.jobs
        if jobs and not at_once:
            log.info("stopping: %d tasks have %s to end", len(jobs), self._worker.grace)
            await self._until_idle(self._worker.grace.total_seconds())
        for job in list(jobs):
            self._executor.tell(job, "stopping")
        await self._until_idle(_UNWIND, but_threads=True)
        for job in list(jobs):
            if job.task is None:
                log.error("%s runs on in its thread; it is left to its lease", job)
            else:
                log.error("%s does not end though it was cancelled; it is left to its lease", job)
            self._held.pop(job, None)
        self._turn.drain()
        if not turn.done():
            await asyncio.wait([turn], timeout=_UNWIND)
        if self._turn.unwritten:
            log.error("%d ends of tasks could not be written", self._turn.unwritten)

    async def _until_idle(self, seconds: float, *, but_threads: bool = False) -> None:
        """Wait until no handler is at work any more, or the time is over."""
        until = self._loop.time() + seconds
        while any(not but_threads or job.task is not None for job in self._executor.jobs):
            left = until - self._loop.time()
            if left <= 0:
                return
            await asyncio.sleep(min(left, 0.01))

    async def _watch_time(self) -> None:
        """Look for handlers whose time is over: one timer for all of them."""
        while not await wait_for(self._services_stop, _TICK):
            self._executor.tell_late(self._loop.time())


def _failure(done: set[asyncio.Future[Any]]) -> BaseException | None:
    """Return why a worker has to end that nobody stopped."""
    for future in done:
        if (error := future.exception()) is not None:
            return error
    return WorkerFailed("a service of the worker ended by itself") if done else None
