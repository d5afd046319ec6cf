"""Signals: the first asks for an orderly end, the second ends the process at once."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from types import FrameType

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_SAME = 0.05
"""Seconds within which two signals are one: some tools signal a process and its group."""
_MESSAGE = b"Stopping; a second signal ends at once.\n"


class Stopper:
    """Turns signals into a call.

    The handlers are Python's, not the event loop's: they are there before there is a loop, and
    they run although a handler of the host's blocks it.

    Args:
        say: Whether to announce the first signal on stderr.
    """

    def __init__(self, *, say: bool = True) -> None:
        self._say = say
        self._stop: Callable[[], object] | None = None
        self._at_once: Callable[[], object] = lambda: None
        self._first: float | None = None
        self.asked = False
        """Whether the end was asked for."""

    def install(self) -> None:
        """Begin to handle signals."""
        for number in _SIGNALS:
            signal.signal(number, self._on_signal)

    def attach(
        self, stop: Callable[[], object], at_once: Callable[[], object] = lambda: None
    ) -> None:
        """Have *stop* called at the first signal, which may have come already.

        Args:
            stop: Asks for an orderly end.
            at_once: Called before the process ends at the second signal.
        """
        self._stop, self._at_once = stop, at_once
        if self.asked:
            stop()

    def ask(self) -> None:
        """Ask for an orderly end, as the first signal does; from any thread.

        A signal that comes afterwards is still the first: a process manager may signal parent and
        children, when the parent asks the children, too.
        """
        self.asked = True
        if self._stop is not None:
            self._stop()

    def _on_signal(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002
        now = time.monotonic()
        if self._first is not None:
            if now - self._first >= _SAME:
                self._at_once()
                end_now(128 + number)
            return
        self._first = now
        if self._say:
            # The stream itself may be in the middle of a write.
            with suppress(OSError):
                os.write(2, _MESSAGE)
        self.ask()


def end_now(status: int) -> None:
    """End the process, whatever its threads are doing; what was logged is written first."""
    with suppress(Exception):
        logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()
    os._exit(status)


def end_soon(status: int, seconds: float) -> None:
    """End the process in some time, if it has not ended by itself: threads may keep it."""
    timer = threading.Timer(seconds, end_now, (status,))
    timer.daemon = True
    timer.start()


def call_at_end_of_stdin(ask: Callable[[], object]) -> None:
    """Have *ask* called once nobody can write to stdin any more: the parent is gone."""

    def watch() -> None:
        with suppress(OSError, ValueError):
            while os.read(0, 1024):
                pass
        ask()

    threading.Thread(target=watch, name="taskqueue parent", daemon=True).start()
