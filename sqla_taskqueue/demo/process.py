"""A worker process from within: its line to the parent, and its main function."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from sqlalchemy import Engine, create_engine
from sqlalchemy.engine import make_url
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from .. import Worker
from . import welcome
from .database import engine_options
from .settings import GRACE, LEASE, SWEEP

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.connection import Connection

    from .job import Orders

READY, GO = "ready", "go"


class Line:
    """The child's end of a pipe. When the parent closes its own end, or dies, work ends."""

    def __init__(self, pipe: Connection[Any, Any]) -> None:
        self._pipe = pipe

    def ready(self) -> bool:
        """Say that this process could begin, wait for the others, and tell whether to begin."""
        try:
            self._pipe.send(READY)
            return bool(self._pipe.recv() == GO)
        except (EOFError, OSError):
            return False

    def call_at_end(self, stop: Callable[[], object]) -> None:
        """Have *stop* called, in a thread of its own, when the parent wants the work to end."""

        def watch() -> None:
            with suppress(EOFError, OSError):
                self._pipe.recv()
            stop()

        threading.Thread(target=watch, daemon=True).start()

    def complain(self, error: BaseException) -> None:
        """Tell the parent, in a line, why this process ends early."""
        cause: Any = error
        while hasattr(cause, "exceptions"):  # a group's
            cause = cause.exceptions[0]
        cause = getattr(cause, "orig", None) or cause
        words = str(cause).strip().splitlines() or [""]
        with suppress(OSError):
            self._pipe.send(f"{type(cause).__name__}: {words[0]}")


async def work(orders: Orders, line: Line) -> None:
    """Run the host's worker until the parent says stop."""
    url = make_url(orders.url)
    options = engine_options(url, orders.schema, pool=orders.pool, name=orders.application)
    make = create_async_engine if orders.is_async else create_engine
    engine: Engine | AsyncEngine = make(url, **options)
    worker = Worker(
        engine,
        welcome.async_tasks if orders.is_async else welcome.tasks,
        concurrency=orders.concurrency,
        name=orders.worker,
        lease=LEASE,
        sweep=SWEEP,
        grace=GRACE,
    )
    # Ready means that the database can be reached.
    if isinstance(engine, AsyncEngine):
        async with engine.connect():
            pass
    else:
        with engine.connect():
            pass
    if line.ready():
        with welcome.log.to(orders.log):
            running = asyncio.create_task(worker.run())
            await asyncio.sleep(0)
            line.call_at_end(worker.stop)
            await running
    if isinstance(engine, AsyncEngine):
        await engine.dispose()
    else:
        engine.dispose()


def main(orders: Orders, pipe: Connection[Any, Any]) -> None:
    """Do what a worker process does; the parent starts it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's affair
    # Failed attempts belong to the demo: they are counted, not shown.
    logging.getLogger("sqla_taskqueue").addHandler(logging.NullHandler())
    line = Line(pipe)
    try:
        asyncio.run(work(orders, line))
    except Exception as error:  # noqa: BLE001 - the parent says what happened
        line.complain(error)
        sys.exit(1)
