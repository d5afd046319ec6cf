"""A task queue and task board in the tables of a SQLAlchemy application, on PostgreSQL.

The application mixes :class:`TaskMixin` into its own class, enqueues in its own transactions, and
gets its own class back from a claim that exactly one holder wins::

    class Task(UuidId, TaskMixin, Base):
        __tablename__ = "tasks"


    emails = Queue(Task, "emails")

    with Session.begin() as session:
        emails.enqueue(session, "welcome", {"user_id": 7})
"""

from __future__ import annotations

from .async_queue import AsyncQueue
from .directives import Cancel, Retry, Snooze
from .errors import (
    EnqueueConflict,
    InvalidArgument,
    InvalidPayload,
    LeaseLost,
    ScopeMissing,
    TaskExists,
    TaskQueueError,
    UnfitArguments,
    UnsupportedDialect,
    UnsupportedHandler,
    UnsupportedModel,
)
from .handlers import Handler, Handlers
from .ids import uuid7
from .limits import Limits
from .mixins import BigIntId, BoardMixin, TaskEventMixin, TaskMixin, UuidId
from .queue import Queue
from .retry import Exponential, Fixed, Linear, RetryPolicy
from .states import EventType, TaskState
from .values import (
    Claim,
    Enqueued,
    Holder,
    Lease,
    Page,
    QueueStats,
    Reclaimed,
    RefusalReason,
    Refused,
    TaskSpec,
    Written,
)
from .worker import TimeLimitExceeded, UnknownTask, Worker, WorkerFailed, should_stop

__version__ = "0.1.0"

__all__ = [
    "AsyncQueue",
    "BigIntId",
    "BoardMixin",
    "Cancel",
    "Claim",
    "EnqueueConflict",
    "Enqueued",
    "EventType",
    "Exponential",
    "Fixed",
    "Handler",
    "Handlers",
    "Holder",
    "InvalidArgument",
    "InvalidPayload",
    "Lease",
    "LeaseLost",
    "Limits",
    "Linear",
    "Page",
    "Queue",
    "QueueStats",
    "Reclaimed",
    "RefusalReason",
    "Refused",
    "Retry",
    "RetryPolicy",
    "ScopeMissing",
    "Snooze",
    "TaskEventMixin",
    "TaskExists",
    "TaskMixin",
    "TaskQueueError",
    "TaskSpec",
    "TaskState",
    "TimeLimitExceeded",
    "UnfitArguments",
    "UnknownTask",
    "UnsupportedDialect",
    "UnsupportedHandler",
    "UnsupportedModel",
    "UuidId",
    "Worker",
    "WorkerFailed",
    "Written",
    "should_stop",
    "uuid7",
]
