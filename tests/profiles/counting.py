"""Counting what one call of an operation does: calls of functions, and statements."""

from __future__ import annotations

import gc
import sys
from contextlib import asynccontextmanager
from functools import partial
from inspect import isawaitable
from typing import TYPE_CHECKING, Any

from sqlalchemy import event
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool

from tests.profiles.hosts import QUEUES, Base
from tests.servers import DRIVERS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from tests.profiles.operations import Operation
    from tests.twin import Twin

CALLERS = ("session", "connection")
WARM = 8
"""Calls before the one that counts: psycopg prepares what runs for the sixth time."""


class Counter:
    """Counts calls of Python's functions and of built-in ones, as cProfile does.

    A generator or coroutine that goes on is called again. The garbage collector rests, for what
    it finalizes may call functions too.
    """

    def __init__(self) -> None:
        self.calls = 0

    def _count(self, _: Any, what: str, function: Any) -> None:
        if what in {"call", "c_call"} and function is not sys.setprofile:
            self.calls += 1

    def run(self, function: Callable[[], Any]) -> Any:
        """Call a function; count it, and what it calls."""
        collecting = gc.isenabled()
        gc.disable()
        sys.setprofile(self._count)
        try:
            return function()
        finally:
            sys.setprofile(None)
            if collecting:
                gc.enable()


class Counted:
    """A coroutine whose own steps are counted, and not what the event loop does in between."""

    def __init__(self, coroutine: Any, counter: Counter) -> None:
        self._step = partial(coroutine.send, None)
        self._counter = counter

    def __await__(self) -> Any:
        while True:
            try:
                awaited = self._counter.run(self._step)
            except StopIteration as end:
                return end.value
            yield awaited


async def count(call: Callable[[], Any]) -> int:
    """Call a method of either facade and return how many functions it called, itself included."""
    counter = Counter()
    answer = counter.run(call)
    if isawaitable(answer):
        await Counted(answer, counter)
    return counter.calls


@asynccontextmanager
async def made_ready(
    twin: Twin, operation: Operation, kind: str, caller: str, calls: int
) -> AsyncIterator[tuple[Any, list[partial]]]:
    """Make an operation ready; yield the connection that its calls go through, and the calls."""
    sync_queue, async_queue = QUEUES[kind]
    twin.create(Base.metadata)
    engine = twin.database.new_engine(DRIVERS[0], poolclass=NullPool)
    with Session(engine, expire_on_commit=False) as session, session.begin():
        subjects = operation.ready(sync_queue, session, calls)
    queue = async_queue if twin.is_async else sync_queue
    async with twin.session() if caller == "session" else twin.connect() as opened:
        connection = await opened.connection() if caller == "session" else opened
        session = twin.raw(opened)
        yield (
            connection.sync_connection,
            [operation.call(queue, session, subject) for subject in subjects],
        )


async def calls_of(
    twin: Twin, operation: Operation, kind: str, caller: str, times: int = 1
) -> list[int]:
    """Return how many functions a warm operation calls, counted several *times*."""
    async with made_ready(twin, operation, kind, caller, WARM + times) as (_, calls):
        return [await count(call) for call in calls][WARM:]


async def statements_of(twin: Twin, operation: Operation, kind: str, caller: str) -> int:
    """Return how many statements an operation sends."""
    sent: list[str] = []
    async with made_ready(twin, operation, kind, caller, 1) as (connection, [call]):
        event.listen(connection, "before_cursor_execute", lambda *what: sent.append(what[2]))
        await count(call)
    return len(sent)
