"""The ends of a claim, and what operators do to tasks; each is one conditional UPDATE."""

from __future__ import annotations

from typing import Any, Literal

from sqlalchemy import Interval, Text, func, not_

from ..dialects import now
from ..states import EventType, TaskState
from ._parts import NO_HOLDER, NO_LEASE, NULL, ONE, By, Fence, Parts, bind, sent_json, state
from .lease import no_attempt_left

Ending = Literal["retry", "final", "exhausted"]
"""What becomes of a task whose attempt failed."""


def complete(parts: Parts, by: By, fence: Fence) -> Any:
    """End the task well. The holder stays on the row, and so does the token that ended it."""
    return parts.write(
        {
            **NO_LEASE,
            "state": state(TaskState.DONE),
            "result": sent_json("result"),
            "error": NULL,
            # Forced, it was not the holder who ended it: its own complete() must be refused.
            "ended_token": NULL if fence == "live" else parts.c.lease_token,
            "finished_at": now(),
        },
        where=[*parts.inside(), *parts.named(by), parts.fenced(fence)],
        event=EventType.COMPLETED,
    )


def fail(parts: Parts, by: By, fence: Fence, ending: Ending) -> Any:
    """Record a failed attempt: queue the next one, or end the task.

    ``retry`` writes only while attempts are left, ``exhausted`` only when none is; ``final``
    does not ask.
    """
    c = parts.c
    where = [*parts.inside(), *parts.named(by), parts.fenced(fence)]
    if ending == "retry":
        return parts.write(
            {
                **NO_HOLDER,
                "state": state(TaskState.QUEUED),
                "run_at": now() + bind("delay", Interval),
                "error": bind("error", Text),
            },
            where=[*where, not_(no_attempt_left(parts))],
            event=EventType.RETRIED,
        )
    if ending == "exhausted":
        where.append(no_attempt_left(parts))
    return parts.write(
        {
            **NO_LEASE,
            "state": state(TaskState.FAILED),
            "error": bind("error", Text),
            "ended_token": c.lease_token,
            "finished_at": now(),
        },
        where=where,
        event=EventType.FAILED,
    )


def release(parts: Parts, by: By, fence: Fence) -> Any:
    """Give the task back unworked: the attempt is not counted, ``run_at`` stays."""
    return parts.write(
        {
            **NO_HOLDER,
            "state": state(TaskState.QUEUED),
            "attempt": func.greatest(parts.c.attempt - ONE, ONE - ONE),
        },
        where=[*parts.inside(), *parts.named(by), parts.fenced(fence)],
        event=EventType.RELEASED,
    )


def snooze(parts: Parts, by: By, fence: Fence) -> Any:
    """Put the task off: the attempt is not counted."""
    return parts.write(
        {
            **NO_HOLDER,
            "state": state(TaskState.QUEUED),
            "attempt": func.greatest(parts.c.attempt - ONE, ONE - ONE),
            "run_at": now() + bind("delay", Interval),
        },
        where=[*parts.inside(), *parts.named(by), parts.fenced(fence)],
        event=EventType.SNOOZED,
    )


def cancel(parts: Parts, by: By) -> Any:
    """End a live task that is no longer wanted, whoever holds it."""
    return parts.write(
        {
            **NO_LEASE,
            "state": state(TaskState.CANCELLED),
            "error": bind("error", Text),
            "finished_at": now(),
        },
        where=[*parts.inside(), *parts.named(by), parts.fenced("live")],
        event=EventType.CANCELLED,
    )


def retry(parts: Parts, by: By) -> Any:
    """Open a new round of a failed or cancelled task, due at once."""
    c = parts.c
    return parts.write(
        {
            **NO_HOLDER,
            "state": state(TaskState.QUEUED),
            "attempt": ONE - ONE,
            "round": c.round + ONE,
            "run_at": now(),
            "result": NULL,
            "ended_token": NULL,
            "finished_at": NULL,
            "claimed_at": NULL,
            "heartbeat_at": NULL,
        },
        where=[
            *parts.inside(),
            *parts.named(by),
            parts.in_state(TaskState.FAILED, TaskState.CANCELLED),
        ],
        event=EventType.RESTARTED,
    )
