"""The worker: claims tasks, runs their handlers, keeps their leases, and stops in order."""

from __future__ import annotations

from ._jobs import TimeLimitExceeded, UnknownTask, should_stop
from ._service import WorkerFailed
from ._worker import Worker

__all__ = ["TimeLimitExceeded", "UnknownTask", "Worker", "WorkerFailed", "should_stop"]
