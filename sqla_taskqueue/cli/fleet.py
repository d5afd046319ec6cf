"""Several processes with a worker each, and a parent that looks after them.

Each is a command of its own, started anew: no engine, connection or lock is shared. Its stdin is a
pipe whose other end only the parent has, so it notices when the parent is gone, however that ended.
"""

from __future__ import annotations

import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from .errors import FAILED, STOPPED, UNUSABLE

if TYPE_CHECKING:
    from .signals import Stopper

CHILD = "SQLA_TASKQUEUE_CHILD"
"""The environment variable that tells a process that its stdin is its parent's."""

_YOUNG = 5.0
"""Seconds that a process should have lived before it is replaced at once."""
_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 30.0
_MARGIN = 4.0
"""Seconds beyond the grace period after which a process that does not end is killed."""


class Fleet:
    """Keeps a number of processes running.

    Args:
        arguments: The command of each, without the interpreter.
        number: How many.
        grace: Seconds that each has to stop.
    """

    def __init__(self, arguments: Sequence[str], number: int, grace: float) -> None:
        self._arguments = arguments
        self._number = number
        self._grace = grace
        # Signal handlers put into it, too: this queue may be entered again in the middle.
        self._news: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._children: dict[subprocess.Popen[Any], float] = {}

    def run(self, stopper: Stopper) -> int:
        """Start the processes and replace those that end; return the exit status."""
        stopper.attach(lambda: self._news.put(None), at_once=self._kill)
        pause = _FIRST_PAUSE
        due: list[float] = [0.0] * self._number
        status: int | None = None
        while status is None:
            now = time.monotonic()
            for then in [then for then in due if then <= now]:
                due.remove(then)
                self._start()
            ended = self._next(min(due) - now if due else None)
            if ended is None:
                if stopper.asked:
                    status = STOPPED
                continue
            born = self._children.pop(ended)
            if ended.returncode in (FAILED, UNUSABLE):
                status = ended.returncode  # the others would fail as well
                continue
            _say(f"worker process {ended.pid} {_how(ended.returncode)}; another takes its place")
            if (now := time.monotonic()) - born >= _YOUNG:
                pause = _FIRST_PAUSE
                due.append(now)
            else:
                due.append(now + pause)
                pause = min(pause * 2, _LONGEST_PAUSE)
        self._stop()
        return status

    def _start(self) -> None:
        options: dict[str, Any] = {}
        if os.name == "posix":
            # The terminal's Ctrl-C is for the parent, which passes it on once.
            options["process_group"] = 0
        child: subprocess.Popen[Any] = subprocess.Popen(  # noqa: S603 - this very command
            [sys.executable, *self._arguments],
            stdin=subprocess.PIPE,
            env={**os.environ, CHILD: "1"},
            **options,
        )
        self._children[child] = time.monotonic()

        def wait() -> None:
            child.wait()
            self._news.put(child)

        threading.Thread(target=wait, name="taskqueue child", daemon=True).start()

    def _next(self, seconds: float | None) -> Any:
        """Return the next process that has ended; None after a signal, or after so many seconds."""
        try:
            return self._news.get(timeout=None if seconds is None else max(seconds, 0.0))
        except queue.Empty:
            return None

    def _stop(self) -> None:
        """Ask all to end, wait, and kill those that do not.

        Not by a signal: a process manager may have sent them one, and a second one means more.
        """
        for child in self._children:
            assert child.stdin is not None
            with suppress(OSError):
                child.stdin.close()
        until = time.monotonic() + self._grace + _MARGIN
        for child in self._children:
            try:
                child.wait(max(until - time.monotonic(), 0.0))
            except subprocess.TimeoutExpired:
                _say(f"worker process {child.pid} does not end and is killed")
                child.kill()
                child.wait()

    def _kill(self) -> None:
        for child in list(self._children):
            with suppress(OSError):
                child.kill()


def _how(code: int | None) -> str:
    return f"was ended by signal {-code}" if code is not None and code < 0 else "has ended"


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()
