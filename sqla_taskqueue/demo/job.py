"""What one task is about, the same for threads and for asyncio: pure Python, no database."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from .host import Delivery
from .settings import FAILING, LEASE, MOST_CLAIMED, WORK

if TYPE_CHECKING:
    from .. import Claim
    from .host import Task

SHORTEST_PAUSE, LONGEST_PAUSE = 0.02, 0.5
"""How long an idle worker waits before it asks again: doubled each time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Orders:
    """What a worker process is told.

    Attributes:
        number: Which process it is, from 1.
        workers: Names of its workers.
        url: The database, password included.
        schema: Where the host's tables are.
        is_async: Whether the workers are asyncio tasks.
        pool: How many connections they share.
        log: Where they write down their claims.
    """

    number: int
    workers: tuple[str, ...]
    url: str
    schema: str
    is_async: bool
    pool: int
    log: Path

    @property
    def application(self) -> str:
        """What its connections are called in ``pg_stat_activity``."""
        return application(self.schema, self.number)


def application(schema: str, number: int) -> str:
    """Return the name of a process's connections: of this very run and process."""
    return f"{schema} process {number}"


class MailServerBusy(Exception):
    """The simulated work failed."""


def how_long() -> float:
    """Return how many seconds the work on a task takes."""
    return random.uniform(*WORK)


def deliver(claim: Claim[Task], worker: str) -> Delivery:
    """Return the effect of the task."""
    assert isinstance(claim.payload, dict)
    return Delivery(task_id=claim.id, email=str(claim.payload["email"]), worker=worker)


def check_mail_server(claim: Claim[Task]) -> None:
    """Fail the first attempt of some tasks.

    Raises:
        MailServerBusy: This is one of them.
    """
    assert isinstance(claim.payload, dict)
    number = int("".join(filter(str.isdigit, str(claim.payload["email"]))))
    if claim.attempt == 1 and number % FAILING == FAILING - 1:
        raise MailServerBusy(f"the mail server has no time for {claim.payload['email']}")


class Pace:
    """How a worker keeps within its leases, by its own stopwatch."""

    def __init__(self) -> None:
        self._most = 1  # the first statements of a process are slow
        self._since = time.monotonic()

    def how_many(self) -> int:
        """Return how many tasks to claim now: one, where the last few took long."""
        return random.randint(1, self._most)

    def begin(self) -> None:
        """Start the stopwatch: a batch is about to be claimed."""
        self._since = time.monotonic()

    def end(self) -> None:
        """Learn from the batch that was done."""
        self._most = 1 if self.is_late() else MOST_CLAIMED

    def is_late(self) -> bool:
        """Tell whether a third of the lease has gone; then it is time to renew."""
        return time.monotonic() - self._since > LEASE.total_seconds() / 3


class Pause:
    """How long to wait while there is nothing to claim."""

    def __init__(self) -> None:
        self._next = SHORTEST_PAUSE

    def reset(self) -> None:
        """Be quick again."""
        self._next = SHORTEST_PAUSE

    def longer(self) -> float:
        """Return the next wait."""
        wait = self._next * random.uniform(0.5, 1)
        self._next = min(self._next * 2, LONGEST_PAUSE)
        return wait
