"""The threads in which plain functions work."""

from __future__ import annotations

import asyncio
import contextvars
import queue
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress

from ._jobs import Job
from ._outcomes import Outcome

_COME, _END = "come", "end"
"""What threads are told."""


class Crew:
    """Threads that work on jobs, started when they are needed.

    Not a ``ThreadPoolExecutor``: its threads keep the process from ending, each call costs a
    future and two wake-ups of the event loop, and a batch of short jobs should cost one.

    Nor is a thread woken for each job, or the event loop for each that has ended. A thread that
    takes a job while others wait calls one more thread, which comes to work only once the first
    lets go of the interpreter's lock; it may have done all that was waiting by then. The loop is
    told by a thread that comes or that finds nothing more to do: if a job takes long, the thread
    that was called tells of those that ended before it.

    Args:
        most: How many threads there may be.
        run: What a thread does with a job.
        ended: Called in the event loop with each job and its outcome.
    """

    def __init__(
        self,
        most: int,
        run: Callable[[Job], Outcome | None],
        ended: Callable[[Job, Outcome | None], None],
    ) -> None:
        self._most = most
        self._run = run
        self._ended = ended
        self._inbox: deque[Job] = deque()
        self._calls: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._outbox: deque[tuple[Job, Outcome | None]] = deque()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._context = contextvars.copy_context()
        self._threads = 0
        self._waiting = 0
        self._called = False
        self._told = False

    def put(self, jobs: Sequence[Job]) -> None:
        """Have threads work on jobs."""
        self._loop = asyncio.get_running_loop()
        self._waiting += len(jobs)
        self._inbox.extend(jobs)
        self._call()
        while self._threads < min(self._waiting, self._most):
            self._threads += 1
            name = f"taskqueue handler {self._threads}"
            threading.Thread(target=self._work, name=name, daemon=True).start()

    def close(self) -> None:
        """Let the threads end once they are idle."""
        for _ in range(self._threads):
            self._calls.put(_END)

    def _call(self) -> None:
        """Wake a thread, unless one was called that has not come yet."""
        if not self._called:
            self._called = True
            self._calls.put(_COME)

    def _work(self) -> None:
        while self._calls.get() is _COME:
            # Before it looks: whoever puts a job into the inbox from now on calls again.
            self._called = False
            self._tell()
            while self._inbox:
                try:
                    job = self._inbox.popleft()
                except IndexError:
                    break  # another thread was faster
                if self._inbox:
                    self._call()
                outcome = self._context.copy().run(self._run, job)
                self._outbox.append((job, outcome))
                del job, outcome
            self._tell()

    def _tell(self) -> None:
        """Have the event loop take what has ended."""
        if self._outbox and not self._told:
            # Before the loop looks it takes this back: what is appended later is told again.
            self._told = True
            assert self._loop is not None
            # Closed when the worker is gone, and nobody waits any more.
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._collect)

    def _collect(self) -> None:
        """Take what the threads have done, in the event loop."""
        self._told = False
        while self._outbox:
            job, outcome = self._outbox.popleft()
            self._waiting -= 1
            self._ended(job, outcome)
