"""Handlers at work: coroutines as tasks of the event loop, plain functions in threads."""

from __future__ import annotations

import asyncio
import inspect
import random
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from sqlalchemy.orm import Session

from ..directives import Cancel, Retry, Snooze
from ..values import Holder
from ._crew import Crew
from ._effects import (
    CommitUnclear,
    EffectsLost,
    NotBegun,
    beginning,
    work_in,
    work_in_async,
)
from ._jobs import Job, TimeLimitExceeded, Told, UnknownTask, log, running
from ._outcomes import Outcome, directed, failed, hosts_part, outcome_of, released

if TYPE_CHECKING:
    from ..handlers import AnyHandler

FindHandler = Callable[[type[Any], str, str], "AnyHandler | None"]
_WORDS: dict[Told, str] = {
    "lost": "it was told that its lease is lost",
    "late": "it was told that its time is over",
    "stopping": "it was told that the worker stops",
}
_PUT_OFF = timedelta(seconds=2)
"""How long a task waits at most whose handler the database kept from being called."""
EndJob = Callable[[Job, Outcome | None], None]


class Executor:
    """Runs the handlers of claimed jobs.

    Args:
        find: Returns the handler of a class, a queue's name and a task's name.
        sessions: Makes a session for a handler that takes one.
        threads: How many threads there may be.
        holder: Who works.
        ended: Called in the event loop with each job whose handler has ended, and its outcome;
            None where the handler's own transaction has written it, or somebody else's claim.
    """

    def __init__(
        self,
        find: FindHandler,
        sessions: Callable[[], Any],
        *,
        threads: int,
        holder: Holder,
        ended: EndJob,
    ) -> None:
        self._find = find
        self._sessions = sessions
        self._holder = holder
        self._actor = holder.worker
        self._ended = ended
        self._crew = Crew(threads, self._run, self._end)
        self.jobs: dict[Job, None] = {}
        """The jobs whose handlers are at work, in the order of their start."""

    def start(self, jobs: Sequence[Job]) -> None:
        """Begin to work on claimed jobs."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        plain: list[Job] = []
        for job in jobs:
            handler = job.handler = self._find(job.core.model.cls, job.core.name, job.name)
            self.jobs[job] = None
            if handler is None:
                error = UnknownTask(f"this worker has no handler named {job.name!r}")
                log.warning("%s: %s", job, error)
                self._end(job, failed(job, error))
                continue
            if handler.lease is not None:
                job.lease = handler.lease
            if handler.time_limit is not None:
                job.deadline = now + handler.time_limit.total_seconds()
            if handler.is_async:
                job.task = loop.create_task(self._await(job))
            else:
                plain.append(job)
        if plain:
            self._crew.put(plain)

    def tell(self, job: Job, why: Told) -> None:
        """Ask a handler to end; a coroutine is cancelled."""
        if job not in self.jobs or job.told is not None:
            return
        job.told = why
        if job.task is not None:
            # One that has not begun is not cancelled: its coroutine would never say that it ended.
            if job.begun:
                job.task.cancel()
        else:
            log.warning("%s runs in a thread, which cannot be ended: %s", job, _WORDS[why])

    def tell_late(self, now: float) -> None:
        """Ask those to end whose time is over."""
        for job in [job for job in self.jobs if 0 < job.deadline <= now]:
            self.tell(job, "late")

    def close(self) -> None:
        """Let the threads end once they are idle."""
        self._crew.close()

    # --- Coroutines -----------------------------------------------------------------------------

    async def _await(self, job: Job) -> None:
        handler = job.handler
        assert handler is not None
        outcome: Outcome | None
        job.begun = True
        try:
            running.set(job)
            if job.told is not None:
                raise asyncio.CancelledError  # noqa: TRY301 - as if it were cancelled now
            arguments = handler.arguments(job.payload)
            if handler.session_type is None:
                task = await self._fetched(job) if handler.takes_task else None
                outcome = outcome_of(job, await self._called(job, arguments, task))
            else:
                session = self._sessions()

                async def call() -> Any:
                    task = None
                    if handler.takes_task:
                        with beginning():
                            task = session.get(job.core.model.cls, job.id)
                            task = await task if inspect.isawaitable(task) else task
                    return await self._called(job, arguments, task, session)

                done = await work_in_async(session, job, self._actor, call)
                outcome = self._written(job, done)
        except BaseException as error:  # noqa: BLE001 - whatever a handler raises is its own
            outcome = self._of_error(job, error)
        self._end(job, outcome)

    async def _fetched(self, job: Job) -> Any:
        """Return the host's entity, detached; no transaction stays open while the handler runs."""
        session = self._sessions()
        if isinstance(session, Session):
            return await asyncio.to_thread(_fetched, session, job)
        with beginning():
            async with session:
                return await session.get(job.core.model.cls, job.id)

    # --- Plain functions, in threads --------------------------------------------------------------

    def _run(self, job: Job) -> Outcome | None:
        handler = job.handler
        assert handler is not None
        try:
            running.set(job)
            if job.told is not None:
                # It waited for a thread.
                raise asyncio.CancelledError  # noqa: TRY301 - as if it were cancelled now
            arguments = handler.arguments(job.payload)
            if handler.session_type is None:
                task = _fetched(self._sessions(), job) if handler.takes_task else None
                return outcome_of(job, self._called(job, arguments, task))
            session = self._sessions()

            def call() -> Any:
                task = None
                if handler.takes_task:
                    with beginning():
                        task = session.get(job.core.model.cls, job.id)
                return self._called(job, arguments, task, session)

            return self._written(job, work_in(session, job, self._actor, call))
        except BaseException as error:  # noqa: BLE001 - whatever a handler raises is its own
            return self._of_error(job, error)

    # --- Both -----------------------------------------------------------------------------------

    def _called(
        self, job: Job, arguments: dict[str, Any], task: Any = None, session: Any = None
    ) -> Any:
        handler = job.handler
        assert handler is not None
        claim = job.claim(self._holder, task) if handler.takes_claim else None
        return handler.call(arguments, task=task, claim=claim, session=session)

    @staticmethod
    def _written(job: Job, outcome: Outcome) -> None:
        """Take note that the handler's own transaction has ended its task."""
        job.settled = True
        log.debug("%s is %s with its effects", job, outcome.state)

    def _of_error(self, job: Job, error: BaseException) -> Outcome | None:
        """Return the outcome of a handler that raised."""
        match error:
            case Retry() | Snooze() | Cancel():
                return directed(job, error)
            case NotBegun():
                log.warning("%s is put off: %s", job, error.__cause__)
                return directed(job, Snooze(_PUT_OFF * random.uniform(0.5, 1)))  # noqa: S311
            case EffectsLost():
                # Not written: the turn looks who has it.
                return failed(job, error)
            case CommitUnclear():
                log.warning("%s: the answer to its commit was lost; looking", job)
                return failed(job, error.__cause__ or error)
            case _:
                pass
        if job.told == "lost":
            return None
        if job.told == "stopping":
            return released(job)
        if job.told == "late" and isinstance(error, asyncio.CancelledError):
            assert job.handler is not None
            limit = job.handler.time_limit
            error = TimeLimitExceeded(f"it took longer than its time limit of {limit}")
        info = (type(error), error, hosts_part(error.__traceback__))
        log.warning("%s failed: %s", job, type(error).__name__, exc_info=info)
        return failed(job, error)

    def _end(self, job: Job, outcome: Outcome | None) -> None:
        self.jobs.pop(job, None)
        self._ended(job, outcome)


def _fetched(session: Session, job: Job) -> Any:
    with beginning(), session:
        return session.get(job.core.model.cls, job.id)
