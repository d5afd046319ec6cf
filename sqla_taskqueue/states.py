"""The life of a task, as data: states, and every move between them.

The documentation draws this table, the tests use it as their model, and the statements are
written so that no other move can happen.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple


class TaskState(StrEnum):
    """Where a task is in its life; stored as text in the column ``state``.

    Waiting for a time, or for the next attempt, is no state of its own: it is ``QUEUED`` with a
    later ``run_at``.
    """

    BLOCKED = "blocked"
    """Waits for other tasks to end."""
    QUEUED = "queued"
    """Can be claimed once ``run_at`` has come."""
    CLAIMED = "claimed"
    """Somebody works on it under a lease."""
    DONE = "done"
    """Ended well."""
    FAILED = "failed"
    """Ended badly: its attempts are used up, or its holder said that trying again is useless."""
    CANCELLED = "cancelled"
    """Ended because a person or a program no longer wanted it."""


LIVE = (TaskState.BLOCKED, TaskState.QUEUED, TaskState.CLAIMED)
"""States in which a task still has something to do. A ``unique_key`` is taken while in one."""

ENDED = (TaskState.DONE, TaskState.FAILED, TaskState.CANCELLED)
"""States that only an operator's ``retry`` leads out of."""


class EventType(StrEnum):
    """What happened to a task; stored in the column ``type`` of the host's event class."""

    CREATED = "created"
    CLAIMED = "claimed"
    RENEWED = "renewed"
    """The lease was extended by its holder (heartbeats are recorded for board classes only)."""
    RELEASED = "released"
    """Given back unworked; the attempt was not counted."""
    SNOOZED = "snoozed"
    """Put off by its holder; the attempt was not counted."""
    RECLAIMED = "reclaimed"
    """The lease ran out and the task was taken back."""
    RETRIED = "retried"
    """An attempt failed and another one was scheduled."""
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    RESTARTED = "restarted"
    """An operator's ``retry`` opened a new round."""


class Transition(NamedTuple):
    """One possible move of a task."""

    operation: str
    source: TaskState | None
    target: TaskState
    event: EventType


def _moves(
    operation: str, sources: tuple[TaskState | None, ...], target: TaskState, event: EventType
) -> list[Transition]:
    return [Transition(operation, source, target, event) for source in sources]


TRANSITIONS: tuple[Transition, ...] = (
    *_moves("enqueue", (None,), TaskState.QUEUED, EventType.CREATED),
    *_moves("claim", (TaskState.QUEUED,), TaskState.CLAIMED, EventType.CLAIMED),
    *_moves("claim_task", (TaskState.QUEUED,), TaskState.CLAIMED, EventType.CLAIMED),
    # A lease that ran out is taken over; one's own is renewed with a new token.
    *_moves("claim_task", (TaskState.CLAIMED,), TaskState.CLAIMED, EventType.CLAIMED),
    *_moves("claim_task", (TaskState.CLAIMED,), TaskState.CLAIMED, EventType.RENEWED),
    # A lease that ran out on the last attempt: the task has failed, and cannot be claimed.
    *_moves("claim_task", (TaskState.CLAIMED,), TaskState.FAILED, EventType.FAILED),
    *_moves("heartbeat", (TaskState.CLAIMED,), TaskState.CLAIMED, EventType.RENEWED),
    *_moves("complete", (TaskState.CLAIMED,), TaskState.DONE, EventType.COMPLETED),
    *_moves("complete(force=True)", LIVE, TaskState.DONE, EventType.COMPLETED),
    *_moves("fail", (TaskState.CLAIMED,), TaskState.QUEUED, EventType.RETRIED),
    *_moves("fail", (TaskState.CLAIMED,), TaskState.FAILED, EventType.FAILED),
    *_moves("release", (TaskState.CLAIMED,), TaskState.QUEUED, EventType.RELEASED),
    *_moves("snooze", (TaskState.CLAIMED,), TaskState.QUEUED, EventType.SNOOZED),
    *_moves("reclaim", (TaskState.CLAIMED,), TaskState.QUEUED, EventType.RECLAIMED),
    *_moves("reclaim", (TaskState.CLAIMED,), TaskState.FAILED, EventType.FAILED),
    *_moves("cancel", LIVE, TaskState.CANCELLED, EventType.CANCELLED),
    *_moves(
        "retry",
        (TaskState.FAILED, TaskState.CANCELLED),
        TaskState.QUEUED,
        EventType.RESTARTED,
    ),
)
"""Every move there is. ``source`` is ``None`` for a task that does not exist yet."""


def can(operation: str, source: TaskState | None) -> bool:
    """Tell whether *operation* is a move out of *source*."""
    return any(move.operation == operation and move.source == source for move in TRANSITIONS)
