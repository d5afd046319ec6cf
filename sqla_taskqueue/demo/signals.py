"""Ctrl-C and friends: noted at once, acted upon where nothing is half done."""

from __future__ import annotations

import signal
import time
from contextlib import contextmanager
from multiprocessing import resource_tracker
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Generator
    from types import FrameType

_WATCHED = [
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
]
_SLICE = 0.05


class Interrupted(Exception):
    """Somebody asked the demo to end.

    Attributes:
        status: The exit status that says so: 130 after Ctrl-C.
    """

    def __init__(self, signum: int) -> None:
        super().__init__(signal.Signals(signum).name)
        self.status = 128 + signum


class Signals:
    """Notes signals while entered; :meth:`check` turns the first into :class:`Interrupted`.

    An exception raised out of a signal handler could strike between a server's start and the
    line that remembers to stop it.
    """

    def __init__(self) -> None:
        self._seen: int | None = None

    def __enter__(self) -> Self:
        self._before = {signum: signal.signal(signum, self._note) for signum in _WATCHED}
        return self

    def __exit__(self, *error: object) -> None:
        for signum, handler in self._before.items():
            signal.signal(signum, handler)

    def _note(self, signum: int, frame: FrameType | None) -> None:  # noqa: ARG002
        if self._seen is None:
            self._seen = signum

    def check(self) -> None:
        """Raise Interrupted if a signal came."""
        if self._seen is not None:
            raise Interrupted(self._seen)

    def wait(self, seconds: float) -> None:
        """Sleep, but not through a signal."""
        end = time.monotonic() + seconds
        self.check()
        while (left := end - time.monotonic()) > 0:
            time.sleep(min(left, _SLICE))
            self.check()


@contextmanager
def kept_from_children() -> Generator[None]:
    """Let processes that are started inside never see Ctrl-C.

    A terminal sends it to every process in the foreground. The demo itself ends its children, in
    order, so they inherit a mask that blocks it; one that comes meanwhile is delivered after.
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    # The first child of multiprocessing starts this helper, which ends by unblocking SIGINT.
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
