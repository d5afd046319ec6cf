"""One worker in this process."""

from __future__ import annotations

import asyncio
import logging
import sys
from typing import TYPE_CHECKING

from ..worker import WorkerFailed
from .errors import FAILED, STOPPED
from .signals import end_soon

if TYPE_CHECKING:
    from ..worker import Worker
    from .signals import Stopper

_LEFT = 0.5
"""Seconds that the process has to end after its worker: threads of handlers may keep it."""


def serve(worker: Worker, stopper: Stopper) -> int:
    """Run a worker until it is asked to stop, or cannot go on; return the exit status."""
    if stopper.asked:
        return STOPPED
    return asyncio.run(_serve(worker, stopper))


async def _serve(worker: Worker, stopper: Stopper) -> int:
    run = asyncio.ensure_future(worker.run())
    await asyncio.sleep(0)  # a worker that does not run yet cannot be stopped
    stopper.attach(worker.stop)
    try:
        await run
    except WorkerFailed as failed:
        cause = failed.__cause__
        logging.getLogger("sqla_taskqueue.worker").debug("the worker failed", exc_info=cause)
        sys.stderr.write(f"{failed}\n")
        status = FAILED
    else:
        status = STOPPED
    end_soon(status, _LEFT)
    return status
