"""Every flow of one or more statements, written once: plain SQLAlchemy on the caller's session.

Both facades call these functions; the asynchronous one through ``run_sync``.
"""

from __future__ import annotations

from .claiming import claim, claim_task, reclaim
from .enqueueing import IfExists, MaxAttempts, enqueue
from .reading import States, find, get, history, stats
from .settling import (
    OnLost,
    Outcome,
    cancel,
    complete,
    fail,
    heartbeat,
    release,
    retry,
    snooze,
)

__all__ = [
    "IfExists",
    "MaxAttempts",
    "OnLost",
    "Outcome",
    "States",
    "cancel",
    "claim",
    "claim_task",
    "complete",
    "enqueue",
    "fail",
    "find",
    "get",
    "heartbeat",
    "history",
    "reclaim",
    "release",
    "retry",
    "snooze",
    "stats",
]
