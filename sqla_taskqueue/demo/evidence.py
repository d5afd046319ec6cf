"""What workers wrote down, what the tables say, and whether the two agree."""

from __future__ import annotations

import json
import os
import time
from collections import Counter, defaultdict
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

from sqlalchemy import func, select

from .. import EventType, TaskState
from .host import Delivery, Task, TaskEvent

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable
    from pathlib import Path

    from sqlalchemy.orm import Session

    from .. import Claim

_ENDS = frozenset(
    {
        EventType.COMPLETED,
        EventType.FAILED,
        EventType.RETRIED,
        EventType.RECLAIMED,
        EventType.RELEASED,
        EventType.SNOOZED,
    }
)
"""Events that end a claim."""


class Logged(NamedTuple):
    """A claim as the handler that got it wrote it down."""

    task: UUID
    round: int
    attempt: int
    token: UUID
    holder: str
    at: float


class Event(NamedTuple):
    """One row of the host's event table."""

    task: UUID
    type: str
    round: int
    attempt: int
    actor: str | None


class ClaimLog:
    """A file to which one process appends the claims its handlers get, before they do anything.

    Each call is one write to the operating system: nothing is kept in the process, where a
    SIGKILL would lose it, and lines of several threads do not mix.
    """

    def __init__(self) -> None:
        self._file: int | None = None

    @contextmanager
    def to(self, path: Path) -> Generator[None]:
        """Write to a file."""
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            yield
        finally:
            os.close(self._file)
            self._file = None

    def write(self, claim: Claim[Task]) -> None:
        """Append a claim."""
        assert self._file is not None
        holder = claim.lease.holder.worker
        token = claim.lease.token
        noted = Logged(claim.id, claim.task.round, claim.attempt, token, holder, time.time())
        os.write(self._file, f"{json.dumps(noted._asdict(), default=str)}\n".encode())


def read_logs(paths: Iterable[Path]) -> list[Logged]:
    """Read what all processes wrote down; a last line that was cut off is left out."""
    logged: list[Logged] = []
    for path in paths:
        *lines, _cut = path.read_text().split("\n")
        for line in lines:
            entry: dict[str, Any] = json.loads(line)
            entry |= {"task": UUID(entry["task"]), "token": UUID(entry["token"])}
            logged.append(Logged(**entry))
    return logged


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Everything the verdict rests on.

    Attributes:
        enqueued: Ids that committed transactions of the host returned.
        logged: The workers' own logs, all processes together.
        states: State of each task in the table.
        events: The history.
        deliveries: How many effects each task has.
        killed: Names of the workers whose process was killed.
    """

    enqueued: frozenset[UUID]
    logged: list[Logged]
    states: dict[UUID, str]
    events: list[Event]
    deliveries: Counter[UUID]
    killed: frozenset[str] = frozenset()


def reclaimed(session: Session) -> int:
    """Return how many leases ran out and were taken back."""
    query = select(func.count()).where(TaskEvent.type == EventType.RECLAIMED)
    return session.execute(query).scalar_one()


def gather(
    session: Session, *, enqueued: Iterable[UUID], logs: Iterable[Path], killed: Iterable[str]
) -> Evidence:
    """Collect the evidence once no worker runs any more."""
    columns = (
        TaskEvent.__table__.c.task_id,
        TaskEvent.type,
        TaskEvent.round,
        TaskEvent.attempt,
        TaskEvent.actor,
    )
    effects = select(Delivery.task_id, func.count().label("times")).group_by(Delivery.task_id)
    return Evidence(
        enqueued=frozenset(enqueued),
        logged=read_logs(logs),
        states={row.id: row.state for row in session.execute(select(Task.id, Task.state))},
        events=[Event(*row) for row in session.execute(select(*columns))],
        deliveries=Counter({row.task_id: row.times for row in session.execute(effects)}),
        killed=frozenset(killed),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The figures, and what is wrong with them: nothing, one hopes.

    Attributes:
        enqueued: Tasks of committed transactions.
        claims: Claims handed out.
        done: Tasks done.
        retried: Attempts that failed and were tried again.
        reclaimed: Leases that ran out and were taken back.
        claimed_twice: Tasks of which one attempt was handed out more than once.
        lost: Tasks that are not done, although nobody works on them any more.
        effects: Deliveries.
        doubled: Tasks with more than one delivery.
        problems: A sentence for each thing that must not be.
    """

    enqueued: int
    claims: int
    done: int
    retried: int
    reclaimed: int
    claimed_twice: int
    lost: int
    effects: int
    doubled: int
    problems: list[str] = field(default_factory=list[str])

    @property
    def holds(self) -> bool:
        """Whether each task was done exactly once."""
        return not self.problems


def judge(evidence: Evidence) -> Verdict:
    """Compare the logs, the events, the tasks and the effects with each other."""
    by_type = Counter(event.type for event in evidence.events)
    done = {task for task, state in evidence.states.items() if state == TaskState.DONE}
    twice = _claimed_twice(evidence)
    lost = evidence.enqueued - done
    doubled = {task for task, count in evidence.deliveries.items() if count > 1}
    problems = {
        "claimed twice": twice,
        "enqueued, but not done in the end": lost,
        "delivered more than once": doubled,
        "done without a delivery": done - evidence.deliveries.keys(),
        "delivered, but not done": evidence.deliveries.keys() - done,
        "in the table, although no committed transaction enqueued them": (
            evidence.states.keys() - evidence.enqueued
        ),
        **_disagreements(evidence),
    }
    return Verdict(
        enqueued=len(evidence.enqueued),
        claims=by_type[EventType.CLAIMED],
        done=len(done),
        retried=by_type[EventType.RETRIED],
        reclaimed=by_type[EventType.RECLAIMED],
        claimed_twice=len(twice),
        lost=len(lost),
        effects=evidence.deliveries.total(),
        doubled=len(doubled),
        problems=[
            f"{len(tasks):,} tasks {what}, such as {min(tasks)}."
            for what, tasks in problems.items()
            if tasks
        ],
    )


def _claimed_twice(evidence: Evidence) -> set[UUID]:
    """Return tasks of which an attempt, or a token, was handed out more than once."""
    attempts = Counter((c.task, c.round, c.attempt) for c in evidence.logged)
    tokens = Counter((c.task, c.token) for c in evidence.logged)
    recorded = Counter(
        (e.task, e.round, e.attempt) for e in evidence.events if e.type == EventType.CLAIMED
    )
    return {
        key[0]
        for counted in (attempts, tokens, recorded)
        for key, times in counted.items()
        if times > 1
    }


def _disagreements(evidence: Evidence) -> dict[str, set[UUID]]:
    """Return tasks whose events fit neither the logs nor each other."""
    logged = {(c.task, c.round, c.attempt, c.holder) for c in evidence.logged}
    recorded = {
        (e.task, e.round, e.attempt, e.actor)
        for e in evidence.events
        if e.type == EventType.CLAIMED
    }
    # A worker may have been killed between the commit of its claim and its handler's note of it;
    # or its lease ran out and was taken back before the handler began.
    taken_back = {
        (e.task, e.round, e.attempt) for e in evidence.events if e.type == EventType.RECLAIMED
    }
    unseen = {
        claim
        for claim in recorded - logged
        if claim[3] not in evidence.killed and claim[:3] not in taken_back
    }
    claims: Counter[UUID] = Counter()
    ends: Counter[UUID] = Counter()
    completed: defaultdict[UUID, int] = defaultdict(int)
    for event in evidence.events:
        claims[event.task] += event.type == EventType.CLAIMED
        ends[event.task] += event.type in _ENDS
        completed[event.task] += event.type == EventType.COMPLETED
    return {
        "handed to a worker without a record in the history": {c[0] for c in logged - recorded},
        "claimed by the history, but by no worker's log": {claim[0] for claim in unseen},
        "claimed again while an earlier claim had not ended": {
            task
            for task, state in evidence.states.items()
            if state == TaskState.DONE and claims[task] != ends[task]
        },
        "completed more than once": {task for task, times in completed.items() if times > 1},
    }
