"""A worker process from within: its line to the parent, and its main function."""

from __future__ import annotations

import asyncio
import signal
import sys
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from .coroutines import work_in_coroutines
from .threads import work_in_threads

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


def main(orders: Orders, pipe: Connection[Any, Any]) -> None:
    """Do what a worker process does; the parent starts it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's affair
    line = Line(pipe)
    try:
        if orders.is_async:
            asyncio.run(work_in_coroutines(orders, line))
        else:
            work_in_threads(orders, line)
    except Exception as error:  # noqa: BLE001 - the parent says what happened
        line.complain(error)
        sys.exit(1)
