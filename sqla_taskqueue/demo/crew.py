"""The worker processes from without: start, begin together, kill one, end."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Self

from . import process
from .job import Orders
from .settings import CannotRun
from .signals import kept_from_children

if TYPE_CHECKING:
    from multiprocessing.connection import Connection
    from multiprocessing.context import SpawnProcess
    from pathlib import Path

    from .database import Database
    from .settings import Settings
    from .signals import Signals

_TO_START = 60.0
_TO_STOP = 10.0
_GLANCE = 0.05


class Member:
    """One worker process."""

    def __init__(self, orders: Orders) -> None:
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        self.orders = orders
        self.pipe: Connection[Any, Any] = ours
        self.killed = False
        self.missed = False  # its unasked end was reported
        self.process: SpawnProcess = context.Process(
            target=process.main, args=(orders, theirs), name=f"process {orders.number}"
        )
        self.process.start()
        theirs.close()  # or the child's death would not be seen at this end

    def says(self, seconds: float) -> str | None:
        """Return what the process says within a time; "" when it is gone."""
        try:
            return str(self.pipe.recv()) if self.pipe.poll(seconds) else None
        except (EOFError, OSError):
            return ""

    def signal(self, name: str) -> None:
        """Send a signal, where there is such a one."""
        if self.process.pid is not None and hasattr(signal, name):
            os.kill(self.process.pid, getattr(signal, name))

    def kill(self) -> None:
        """End the process without giving it any chance (SIGKILL)."""
        self.killed = True
        self.process.kill()
        self.process.join()


class Crew:
    """All worker processes. Whatever happens, none outlives the ``with`` block."""

    def __init__(self, settings: Settings, database: Database, folder: Path) -> None:
        self._orders = [
            Orders(
                number=number,
                concurrency=settings.concurrency,
                url=database.url.render_as_string(hide_password=False),
                schema=database.schema,
                is_async=settings.is_async,
                pool=settings.pool,
                log=folder / f"claims-{number}.jsonl",
            )
            for number in range(1, settings.workers + 1)
        ]
        self.members: dict[int, Member] = {}

    def __enter__(self) -> Self:
        try:
            with kept_from_children():
                for orders in self._orders:
                    self.members[orders.number] = Member(orders)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        for member in self.members.values():
            if member.process.is_alive():
                member.kill()
            member.pipe.close()

    @property
    def logs(self) -> list[Path]:
        """The files with the claims that workers got."""
        return [orders.log for orders in self._orders if orders.log.exists()]

    def begin(self, signals: Signals) -> None:
        """Wait until every process is ready, then let all of them begin.

        Raises:
            CannotRun: One could not start.
        """
        deadline = time.monotonic() + _TO_START
        for number, member in self.members.items():
            word = None
            while word is None and time.monotonic() < deadline:
                word = member.says(_GLANCE)
                signals.check()
            if word != process.READY:
                raise CannotRun(f"Process {number} did not start: {word or 'it says nothing'}")
        for member in self.members.values():
            with suppress(OSError):  # it died since; the race will notice
                member.pipe.send(process.GO)

    @property
    def somebody_works(self) -> bool:
        """Whether any process is left."""
        return any(member.process.is_alive() for member in self.members.values())

    def casualties(self) -> list[str]:
        """Return a sentence for each process that ended unasked since the last call."""
        found: list[str] = []
        for number, member in self.members.items():
            if member.killed or member.missed or member.process.is_alive():
                continue
            member.missed = True
            word = member.says(0) or f"exit status {member.process.exitcode}"
            found.append(f"Process {number} ended by itself: {word}")
        return found

    def stop(self, signals: Signals) -> list[str]:
        """Let every process finish what it holds, and end.

        Returns:
            A sentence for each that did not end well.
        """
        wrong = self.casualties()
        alive = {n: m for n, m in self.members.items() if m.process.is_alive()}
        for member in alive.values():
            member.pipe.close()
        deadline = time.monotonic() + _TO_STOP
        while any(m.process.is_alive() for m in alive.values()):
            if time.monotonic() > deadline:
                break
            signals.wait(_GLANCE)
        for number, member in alive.items():
            if member.process.is_alive():
                wrong.append(f"Process {number} did not stop within {_TO_STOP:.0f} s.")
                member.kill()
            elif member.process.exitcode:
                wrong.append(f"Process {number} stopped with status {member.process.exitcode}.")
        return wrong
