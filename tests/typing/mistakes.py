# pyright: strict, reportUnnecessaryTypeIgnoreComment=true
"""Mistakes that both type checkers must find; an unused "ignore" is an error. Never run."""

from __future__ import annotations

from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session, sessionmaker

from sqla_taskqueue import AsyncQueue, Claim, Queue
from tests.typing.hosts import Board, DataTask, Task, User

queue = Queue(Task)
awaited = AsyncQueue(Task)

Queue(User)  # type: ignore[type-var]
AsyncQueue(User)  # type: ignore[type-var]
Queue(Task())  # type: ignore[arg-type]
Queue(Task, notify="always")  # type: ignore[arg-type]
DataTask(title="t", queue="q")  # type: ignore[call-arg]
DataTask()  # type: ignore[call-arg]


def sessions(session: Session, other: AsyncSession, maker: sessionmaker[Session]) -> None:
    """Each facade takes the sessions of its own world, opened."""
    queue.stats(other)  # type: ignore[arg-type]
    queue.stats(maker)  # type: ignore[arg-type]


async def asynchronous_sessions(session: Session) -> None:
    """As above."""
    await awaited.stats(session)  # type: ignore[arg-type]


def arguments(session: Session, claim: Claim[Board]) -> None:
    """Options go by keyword, durations are timedeltas, and a claim is of the queue's class."""
    queue.claim(session, "w1")  # type: ignore[call-arg]
    queue.claim(session)  # type: ignore[call-arg]
    queue.claim(session, holder="w1", lease=30)  # type: ignore[arg-type]
    queue.complete(session, claim)  # type: ignore[arg-type]
    queue.complete(session, on_lost="ignore")  # type: ignore[arg-type]
    queue.enqueue(session, if_exists="skip")  # type: ignore[arg-type]
    queue.enqueue(session, max_attempts="all")  # type: ignore[arg-type]


def answers(session: Session) -> None:
    """What may be missing or refused must be looked at first."""
    queue.get(session, id=1).state  # type: ignore[union-attr]  # noqa: B018
    queue.claim_task(session, id=1, holder="w1").lease  # type: ignore[union-attr]  # noqa: B018
