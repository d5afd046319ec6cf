"""The host signs users up: each transaction inserts some, and enqueues a welcome for each."""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import UUID

from .host import User
from .settings import PER_TRANSACTION
from .welcome import welcome, welcome_async

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy.ext.asyncio import AsyncSession
    from sqlalchemy.orm import Session

    from .database import Database


class ChangedItsMind(Exception):
    """The host's transaction ends badly, for a reason that has nothing to do with the queue."""


def sign_up(session: Session, emails: list[str], *, doomed: bool = False) -> list[UUID]:
    """Insert users and enqueue their tasks, in the caller's transaction."""
    users = [User(email=email) for email in emails]
    session.add_all(users)
    session.flush()  # gives them their ids
    sent = [
        welcome.options(key=f"welcome {user.email}", values={"user_id": user.id}).enqueue(
            session, email=user.email
        )
        for user in users
    ]
    if doomed:
        raise ChangedItsMind
    return [one.id for one in sent]


async def sign_up_async(
    session: AsyncSession, emails: list[str], *, doomed: bool = False
) -> list[UUID]:
    """Insert users and enqueue their tasks, in the caller's transaction."""
    users = [User(email=email) for email in emails]
    session.add_all(users)
    await session.flush()  # gives them their ids
    sent = [
        await welcome_async.options(
            key=f"welcome {user.email}", values={"user_id": user.id}
        ).enqueue(session, email=user.email)
        for user in users
    ]
    if doomed:
        raise ChangedItsMind
    return [one.id for one in sent]


def enqueue_all(database: Database, tasks: int, *, is_async: bool) -> Iterator[list[UUID]]:
    """Yield the ids of each transaction that was committed."""
    for start in range(0, tasks, PER_TRANSACTION):
        emails = [
            f"user{n}@example.org" for n in range(start, min(start + PER_TRANSACTION, tasks))
        ]
        yield _transaction(database, emails, is_async=is_async, doomed=False)


def enqueue_in_vain(database: Database, users: int, *, is_async: bool) -> None:
    """Do the same in a transaction that is rolled back at its end."""
    emails = [f"nobody{n}@example.org" for n in range(users)]
    try:
        _transaction(database, emails, is_async=is_async, doomed=True)
    except ChangedItsMind:
        return
    raise AssertionError("a doomed transaction was committed")


def _transaction(
    database: Database, emails: list[str], *, is_async: bool, doomed: bool
) -> list[UUID]:
    if is_async:
        return database.run_async(lambda session: sign_up_async(session, emails, doomed=doomed))
    return database.run(lambda session: sign_up(session, emails, doomed=doomed))
