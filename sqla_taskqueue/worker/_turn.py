"""The turn: one statement after the other that ends what is done and claims what fits.

All of a worker's claims and ends go through one loop and one connection. What is done while a
statement is under way waits for the next: under load the batches grow by themselves.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any
from uuid import UUID, uuid4

from .._drivers import sqlstate
from ..statements import turn as statements
from ..statements import wakeup
from ..states import TaskState
from ..values import Holder
from ._ends import Ends
from ._facts import facts
from ._jobs import Job, log
from ._outcomes import Outcome, ended_params, released
from ._service import is_refusal, wait_for

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from .._core import QueueCore
    from ..models import TaskModel
    from ._floor import Look
    from ._lines import Line
    from ._sources import Source, Sources

_CAREFUL = 1.0
"""Seconds for which locked rows are passed over once one was met."""
_CONFLICTS = {"40001", "40P01"}
_MOST_CONFLICTS = 10
_LOCKED = "55P03"
_DUE = 0.01
"""A moment late rather than early: the database's clock decides what is due."""


class Turn:
    """Ends jobs and claims others, as long as there are slots.

    Args:
        line: Its connection.
        groups: Where tasks come from, by task class.
        slots: How many jobs there may be at once.
        holder: Who claims.
        poll: Seconds between two looks at what seems empty.
        start: Called with each claimed job.
        settled: Called with each job whose end is written, or is no longer the worker's.
        lost: Called with each job that somebody else has now, though it was worked on to its end.
    """

    def __init__(
        self,
        line: Line,
        groups: Sequence[Sources],
        *,
        slots: int,
        holder: Holder,
        poll: float,
        start: Callable[[Sequence[Job]], None],
        settled: Callable[[Job], None],
        lost: Callable[[Job], None],
    ) -> None:
        self._line = line
        self._groups = groups
        self._slots = slots
        # Half of them, where there are many: the other half is being worked on meanwhile.
        self._most = slots // 2 if slots >= 100 else slots
        self._holder = holder
        self._poll = poll
        self._start = start
        self._lost = lost
        self._ends = Ends([group.model for group in groups], settled)
        self._unsure: list[tuple[Source, UUID]] = []
        self._careful_until = 0.0
        self._conflicts = 0
        self._group = 0
        self._others_turn = False
        self._given_back: dict[str, QueueCore[Any]] = {}
        self._news = asyncio.Event()
        self._claiming = True
        self._draining = False
        self.running = 0
        """How many jobs have a handler at work."""

    # --- What others tell it -------------------------------------------------------------------

    def end(self, outcome: Outcome) -> None:
        """Have an outcome written soon."""
        self._ends.add(outcome)
        self._news.set()

    def freed(self) -> None:
        """Take note that a handler has ended: there is a slot."""
        self.running -= 1
        self._news.set()

    def wake(self, queue: str | None = None) -> None:
        """Look at once whether there is anything to claim."""
        for group in self._groups:
            group.wake(queue)
        self._news.set()

    def stop_claiming(self) -> None:
        """Claim nothing more; go on to write what becomes of what is claimed."""
        self._claiming = False
        self._news.set()

    def drain(self) -> None:
        """Return from :meth:`serve` once all outcomes are written."""
        self._claiming = False
        self._draining = True
        self._news.set()

    @property
    def unwritten(self) -> int:
        """How many outcomes are not known to be written yet."""
        return len(self._ends)

    # --- The loop ------------------------------------------------------------------------------

    async def serve(self) -> None:
        """Take turns until drained.

        Raises:
            Exception: The database's. Nothing is forgotten: serve again.
        """
        loop = asyncio.get_running_loop()
        # What was announced while nobody listened.
        self.wake()
        while True:
            while self._unsure:
                await self._adopt(*self._unsure[0])
                self._unsure.pop(0)
            now = loop.time()
            if self._ends.retry_rested(now):
                self._careful_until = now + _CAREFUL
            source = await self._choose(now)
            model = self._model_of(source)
            if source is not None and (model is not source.model or self._ends.singly):
                source = None  # first write what is waiting for another table, or alone
            if model is not None:
                await self._take(model, source)
            elif self._draining and not self.unwritten:
                await self._announce()
                return
            else:
                await self._wait(now)

    async def _choose(self, now: float) -> Source | None:
        """Return where to claim next; None when nothing is due, or no slot is free."""
        if not self._claiming or self.running >= self._slots:
            return None
        for step in range(len(self._groups)):
            index = (self._group + step) % len(self._groups)
            group = self._groups[index]
            if group.finds and group.find_at <= now:
                await self._find(group)
            if (source := group.ready(now)) is not None:
                self._group = index + 1
                return source
        return None

    async def _find(self, group: Sources) -> None:
        """Look which scopes have tasks; with very many of them, not too often."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        # Before the query: whoever wakes it meanwhile knows of what it comes too early for.
        group.begin_to_find()
        group.found(await self._line.run(group.query))
        now = loop.time()
        group.end_to_find(now, now - began, self._jittered())

    def _model_of(self, source: Source | None) -> TaskModel[Any] | None:
        """Return which table the next turn is about: a statement writes to one."""
        waiting = self._ends.models
        if source is None or self._ends.singly:
            return waiting[0] if waiting else None
        others = [model for model in waiting if model is not source.model]
        # In turns, or one table's tasks would wait for a pause in the other's.
        self._others_turn = bool(others) and not self._others_turn
        return others[0] if self._others_turn else source.model

    async def _wait(self, now: float) -> None:
        until = [group.ready_at for group in self._groups]
        if not self._claiming or self.running >= self._slots:
            until = []
        until += self._ends.rest_until
        self._news.clear()
        await wait_for(self._news, min(until) - now if until else None)

    def _jittered(self) -> float:
        return self._poll * random.uniform(0.8, 1.0)  # noqa: S311 - no secret

    async def _announce(self) -> None:
        """Wake other workers for what this one has given back."""
        while self._given_back:
            _, core = self._given_back.popitem()
            if core.notify != "off":
                params = {"tq_channel": core.channel, "tq_queue": core.name}
                work = partial(_notify, core.statements(wakeup.notify), params)
                await self._line.run(work)

    # --- One turn ------------------------------------------------------------------------------

    async def _take(self, model: TaskModel[Any], source: Source | None) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        outcomes = self._ends.take(model)
        limit = min(self._slots - self.running, self._most) if source is not None else 0
        look: Look | None = None
        if source is not None:
            look = source.floor.look(began)
            source.ready_at = inf
        token = uuid4()
        work = self._work(model, outcomes, source, look, limit, token, began)
        try:
            ended, rows, due = await self._line.run(work)
        except Exception as error:
            if source is not None:
                source.wake()
            if outcomes and is_refusal(error):
                self._ends.refused(outcomes, error, alone=source is None)
            elif self._is_conflict(error, began):
                self._ends.put_back(outcomes)
            else:
                self._ends.put_back(outcomes, uncertain=True)
                if source is not None:
                    self._unsure.append((source, token))
                raise
            return
        self._ends.answered()
        self._conflicts = 0
        now = loop.time()
        if source is not None and look is not None:
            jobs = [Job(source, row, token) for row in rows]
            # As they were claimed: the statement returns them in whatever order it wrote them.
            rank = source.rank
            jobs.sort(key=lambda job: (job.priority, rank(job.position)))
            source.learn(look, now, now - began, jobs, limit=limit)
            if source.empty:
                rest = self._jittered()
                source.rest(now + (rest if due is None else min(rest, max(due, 0.0) + _DUE)))
            self._begin(jobs)
        await self._account(model, outcomes, set(ended))

    def _work(
        self,
        model: TaskModel[Any],
        outcomes: Sequence[Outcome],
        source: Source | None,
        look: Look | None,
        limit: int,
        token: UUID,
        now: float,
    ) -> Callable[[Connection], tuple[list[int], list[Any], float | None]]:
        """Return the work of one turn: what it ended, what it claimed, and when more is due."""
        careful = now < self._careful_until or not self._line.direct
        ends: statements.Ends = "none"
        if outcomes:
            ends = "careful" if careful else "direct"
        claims: statements.Look = "none"
        if look is not None:
            claims = "full" if look == "full" else "floor"
        some = source.core if source is not None else outcomes[0].job.core
        statement = some.statements(statements.turn, ends, claims)
        params: dict[str, Any] = ended_params(model, outcomes) if outcomes else {}
        if source is not None and look is not None:
            params |= source.params(look)
            params |= {
                "tq_token": token,
                "tq_lease": source.lease,
                "tq_limit": limit,
                "tq_worker": self._holder.worker,
                "tq_session": self._holder.session,
            }
        params |= some.event(
            self._holder.worker, {"via": "next"} if source else None, len(outcomes) + limit
        )
        due = source.core.statements(statements.next_due) if look == "full" and source else None
        inside = source.core.inside if source is not None else {}
        return partial(_run, statement, params, due, inside)

    def _is_conflict(self, error: BaseException, now: float) -> bool:
        """Tell whether a turn is simply to be taken again: nothing was written."""
        state = sqlstate(error)
        if state == _LOCKED:
            self._careful_until = now + _CAREFUL
            return True
        if state in _CONFLICTS and self._conflicts < _MOST_CONFLICTS:
            self._conflicts += 1
            return True
        return False

    def _begin(self, jobs: Sequence[Job]) -> None:
        if not self._claiming:
            # The worker was stopped while the claim was under way.
            for job in jobs:
                self.end(released(job))
        elif jobs:
            self.running += len(jobs)
            self._start(jobs)

    async def _account(
        self, model: TaskModel[Any], outcomes: Sequence[Outcome], ended: set[int]
    ) -> None:
        missing: list[Outcome] = []
        for number, outcome in enumerate(outcomes, 1):
            if number in ended:
                self._done(outcome)
            else:
                missing.append(outcome)
        if missing:
            await self._explain(model, missing)

    def _done(self, outcome: Outcome) -> None:
        job = outcome.job
        if outcome.state is TaskState.QUEUED:
            [group] = [one for one in self._groups if one.model is job.core.model]
            if outcome.delay:
                # Nobody announces it, and the next poll may be long after.
                seconds = outcome.delay.total_seconds()
                group.requeued(job.source, asyncio.get_running_loop().time() + seconds + _DUE)
            else:
                job.source.floor.lower(job.priority, job.position)
                group.requeued(job.source, 0.0)
                self._given_back[job.core.name] = job.core
        self._ends.settle(job)

    async def _explain(self, model: TaskModel[Any], missing: Sequence[Outcome]) -> None:
        """See why outcomes were not written: lost, locked by somebody, or written before."""
        jobs = [outcome.job for outcome in missing]
        try:
            known = await self._line.run(partial(facts, model, jobs))
        except Exception:
            self._ends.put_back(missing, uncertain=True)
            raise
        now = asyncio.get_running_loop().time()
        for outcome in missing:
            fact = known[outcome.job]
            if fact == "held":
                self._ends.rest(outcome, now)
                continue
            if fact == "lost" and not (outcome.uncertain and outcome.state is TaskState.QUEUED):
                self._lost(outcome.job)
            self._ends.settle(outcome.job)

    # --- After a lost answer -------------------------------------------------------------------

    async def _adopt(self, source: Source, token: UUID) -> None:
        """Take over what a turn has claimed whose answer was lost."""
        statement = source.core.statements(statements.claimed_under)
        params = {**source.core.inside, "tq_token": token}
        rows = await self._line.run(lambda connection: [*connection.execute(statement, params)])
        if rows:
            log.info("%d claims are taken over whose answer was lost", len(rows))
        jobs = [Job(source, row, token) for row in rows]
        self._begin(jobs)
        for job in jobs:
            job.renew_at = 0.0  # nobody knows how much of the lease is left


def _run(
    statement: Any,
    params: dict[str, Any],
    due: Any,
    inside: dict[str, Any],
    connection: Connection,
) -> tuple[list[int], list[Any], float | None]:
    rows: list[Any] = [*connection.execute(statement, params)]
    ended: list[int] = list(rows[0][0] or ()) if rows else []
    # The first key column is NULL where nothing was claimed.
    claimed = [row[1:] for row in rows if len(row) > 1 and row[1] is not None]
    seconds = None
    if due is not None and not claimed:
        seconds = connection.scalar(due, inside)
    return ended, claimed, seconds


def _notify(statement: Any, params: dict[str, Any], connection: Connection) -> None:
    connection.execute(statement, params)
