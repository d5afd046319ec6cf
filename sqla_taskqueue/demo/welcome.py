"""The host's handlers: what is done about a task, as a plain function and as a coroutine.

An application has one of the two. Everything that a handler writes in its session is committed
together with the end of its task, or rolled back with it.
"""

from __future__ import annotations

import asyncio
import random
import time

from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from .. import Claim, Handlers
from .evidence import ClaimLog
from .host import Delivery, Task, async_welcomes, welcomes
from .settings import FAILING, RETRY, WORK

tasks = Handlers(welcomes)
async_tasks = Handlers(async_welcomes)

log = ClaimLog()
"""Where this process writes down what its handlers are given."""


class MailServerBusy(Exception):
    """The simulated work failed."""


@tasks.handler(retry=RETRY)
def welcome(session: Session, task: Task, claim: Claim[Task], email: str) -> None:
    """Welcome a user who signed up."""
    log.write(claim)
    time.sleep(how_long())
    session.add(Delivery(task_id=task.id, email=email, worker=claim.lease.holder.worker))
    check_mail_server(claim.attempt, email)


@async_tasks.handler(name="welcome", retry=RETRY)
async def welcome_async(session: AsyncSession, task: Task, claim: Claim[Task], email: str) -> None:
    """Welcome a user who signed up."""
    log.write(claim)
    await asyncio.sleep(how_long())
    session.add(Delivery(task_id=task.id, email=email, worker=claim.lease.holder.worker))
    check_mail_server(claim.attempt, email)


def how_long() -> float:
    """Return how many seconds the work on a task takes."""
    return random.uniform(*WORK)


def check_mail_server(attempt: int, email: str) -> None:
    """Fail the first attempt of some tasks.

    Raises:
        MailServerBusy: This is one of them.
    """
    number = int("".join(filter(str.isdigit, email)))
    if attempt == 1 and number % FAILING == FAILING - 1:
        raise MailServerBusy(f"the mail server has no time for {email}")
