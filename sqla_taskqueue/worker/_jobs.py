"""A claimed task on its way through the worker, and what became of it."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextvars import ContextVar
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal

from ..values import Claim, Holder, Lease

if TYPE_CHECKING:
    import asyncio
    from uuid import UUID

    from .._core import QueueCore
    from ..handlers import Handler
    from ._sources import Source

log = logging.getLogger("sqla_taskqueue.worker")

Told = Literal["lost", "late", "stopping"]
"""Why a handler was asked to end: its lease is lost, its time is over, or the worker stops."""


class TimeLimitExceeded(Exception):
    """A handler took longer than its ``time_limit``."""


class UnknownTask(Exception):
    """A worker has no handler of a task's name."""


class Job:
    """One claimed task. Made for each, so it holds the row's values and computes the rest late."""

    __slots__ = (
        "attempt",
        "begun",
        "deadline",
        "expires_at",
        "handler",
        "key",
        "lease",
        "max_attempts",
        "name",
        "payload",
        "position",
        "priority",
        "renew_at",
        "settled",
        "source",
        "task",
        "task_key",
        "token",
        "told",
    )

    def __init__(self, source: Source, row: Sequence[Any], token: UUID) -> None:
        self.source = source
        self.token = token
        size = source.key_size
        self.key: tuple[Any, ...] = tuple(row[:size])
        (
            self.name,
            self.payload,
            self.attempt,
            self.max_attempts,
            self.task_key,
            self.expires_at,
            self.priority,
            run_at,
        ) = row[size:]
        self.position = (run_at, *source.free_part(self.key))
        self.handler: Handler[..., Any, Any] | None = None
        self.lease: timedelta = source.lease
        self.renew_at = 0.0
        self.deadline = 0.0
        self.task: asyncio.Task[None] | None = None
        self.begun = False
        self.told: Told | None = None
        self.settled = False
        """Whether its end is written, or is somebody else's."""

    @property
    def core(self) -> QueueCore[Any]:
        """The queue and scope."""
        return self.source.core

    @property
    def id(self) -> Any:
        """The primary key as ``Session.get`` takes it."""
        return self.core.model.identity(self.key)

    def __str__(self) -> str:
        return f"task {self.id} ({self.name!r}, queue {self.core.name!r}, attempt {self.attempt})"

    def claim(self, holder: Holder, task: Any = None) -> Claim[Any]:
        """Return the claim as the queue's methods take it."""
        return Claim(
            id=self.id,
            queue=self.core.name,
            scope=dict(self.core.scope),
            name=self.name,
            payload=self.payload,
            attempt=self.attempt,
            max_attempts=self.max_attempts,
            key=self.task_key,
            lease=Lease(self.token, holder, self.expires_at, self.lease),
            task=task,
        )


running: ContextVar[Job | None] = ContextVar("running", default=None)
"""The job of the handler that runs here."""


def should_stop() -> bool:
    """Tell a handler whether it should end: its result is no longer wanted, or soon will not be.

    True once its lease is lost, its time limit is over, or the worker's grace period is. A handler
    that is a coroutine is cancelled besides; one that runs in a thread cannot be, and asks.
    False outside of a worker.
    """
    job = running.get()
    return job is not None and job.told is not None


def sent_keys(jobs: Sequence[Job]) -> dict[str, Any]:
    """Return the arrays that name jobs."""
    columns = zip(*(job.key for job in jobs), strict=True)
    return {f"tq_sent_pk_{n}": list(values) for n, values in enumerate(columns)}
