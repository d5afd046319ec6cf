"""Every flow of one or more statements, written once: plain SQLAlchemy on the caller's session.

Both facades call these functions; the asynchronous one through ``run_sync``.
"""

from __future__ import annotations

from .claiming import claim, claim_task, reclaim
from .enqueueing import IfExists, enqueue
from .enqueueing_many import enqueue_many
from .pruning import prune
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
from .settling_many import complete_many, fail_many, heartbeat_many

__all__ = [
    "IfExists",
    "OnLost",
    "Outcome",
    "States",
    "cancel",
    "claim",
    "claim_task",
    "complete",
    "complete_many",
    "enqueue",
    "enqueue_many",
    "fail",
    "fail_many",
    "find",
    "get",
    "heartbeat",
    "heartbeat_many",
    "history",
    "prune",
    "reclaim",
    "release",
    "retry",
    "snooze",
    "stats",
]
