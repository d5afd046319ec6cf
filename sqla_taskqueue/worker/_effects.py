"""Exactly-once effects: a handler's own writes and the end of its task in one commit.

The handler is given a session. When it returns, its task is ended under the claim's token as the
last statement of the same transaction. A worker that lost the lease meanwhile finds no row then,
and everything is rolled back, together with what the handler wrote.

The transaction is READ COMMITTED whatever the engine's default: at a higher level, the heartbeat
that was written meanwhile would make the last statement fail.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from sqlalchemy.orm import Session

from ..statements import turn as statements
from ._jobs import Job
from ._outcomes import Outcome, ended_params, outcome_of
from ._service import is_database, is_hopeless

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncSession

LEVEL = {"isolation_level": "READ COMMITTED"}


class EffectsLost(Exception):
    """The lease was lost before the commit: nothing of the handler's is written."""


class CommitUnclear(Exception):
    """The commit's answer was lost: the effects are there, with the end of the task, or neither."""


class NotBegun(Exception):
    """The database could not be reached before the handler was called; its cause says why."""


@contextmanager
def beginning() -> Generator[None]:
    """Tell what keeps a handler from being called from what it raises.

    Raises:
        NotBegun: The database or its pool has no connection to give, for now.
    """
    try:
        yield
    except Exception as error:
        if is_database(error) and not is_hopeless(error):
            raise NotBegun from error
        raise


def work_in(session: Session, job: Job, actor: str, call: Callable[[], Any]) -> Outcome:
    """Call a plain function and commit what it did together with the end of its task.

    Raises:
        NotBegun: There is no connection for now.
        EffectsLost: The claim no longer holds the task; nothing is written.
        CommitUnclear: The commit's answer was lost.
    """
    with session:
        _begin(session, job)
        outcome = outcome_of(job, call())
        _end(session, outcome, actor)
        _commit(session)
    return outcome


async def work_in_async(
    session: AsyncSession | Session, job: Job, actor: str, call: Callable[[], Any]
) -> Outcome:
    """Await a coroutine function and commit what it did together with the end of its task.

    A synchronous session blocks the event loop while it works; its handler wanted it so.

    Raises:
        NotBegun: There is no connection for now.
        EffectsLost: The claim no longer holds the task; nothing is written.
        CommitUnclear: The commit's answer was lost.
    """
    if isinstance(session, Session):
        with session:
            _begin(session, job)
            outcome = outcome_of(job, await call())
            _end(session, outcome, actor)
            _commit(session)
        return outcome
    async with session:
        await session.run_sync(_begin, job)
        outcome = outcome_of(job, await call())
        await session.run_sync(_end, outcome, actor)
        await session.run_sync(_commit)
    return outcome


def _begin(session: Session, job: Job) -> None:
    bind = {"mapper": job.core.model.mapper}
    with beginning():
        session.connection(bind_arguments=bind, execution_options=LEVEL)


def _commit(session: Session) -> None:
    try:
        session.commit()
    except Exception as error:
        raise CommitUnclear from error


def _end(session: Session, outcome: Outcome, actor: str) -> None:
    """Write what became of the task, as the last statement of the handler's transaction.

    Raises:
        EffectsLost: The claim no longer holds the task.
    """
    session.flush()
    core = outcome.job.core
    statement = core.statements(statements.turn, "direct", "none")
    params = {**ended_params(core.model, [outcome]), **core.event(actor, rows=1)}
    bind = {"mapper": core.model.mapper, "clause": statement}
    ended = session.execute(statement, params, bind_arguments=bind).scalar_one()
    if not ended:
        raise EffectsLost
