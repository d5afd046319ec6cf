"""One contract for whatever runs beside the handlers: served, and served again after anything."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable

from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from .._drivers import sqlstate
from ..errors import TaskQueueError

log = logging.getLogger("sqla_taskqueue.worker")

_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 2.0
_HEALTHY = 5.0
"""Seconds after which an interruption is a new one."""
_HOPELESS = ("28", "3D", "3F", "42")
"""Classes of errors that no waiting cures: no such table, role, database; no permission."""
_REFUSALS = ("21", "22", "23", "2F", "38", "39", "44", "54", "P0")
"""Classes of errors of the data, and of what the host's triggers do with them. Not 0A: a plan that
a change of the table has made invalid is made anew on another connection."""
_NEVERTHELESS = "42P05"
"""A prepared statement that exists already: another connection will do."""
_MOST_FAULTS = 5
"""How many errors in a row, none of them the database's, are a fault of ours."""


class WorkerFailed(TaskQueueError):
    """The worker cannot go on; its cause says why."""


def is_hopeless(error: BaseException) -> bool:
    """Tell whether a database's error will be the same however often one tries."""
    state = sqlstate(error)
    return state is not None and state.startswith(_HOPELESS) and state != _NEVERTHELESS


def is_refusal(error: BaseException) -> bool:
    """Tell whether the server refused a statement for what it says, and would refuse it again."""
    state = sqlstate(error)
    return state is not None and state.startswith(_REFUSALS) and not is_hopeless(error)


def is_database(error: BaseException) -> bool:
    """Tell whether an error comes from the database or the way to it."""
    return sqlstate(error) is not None or isinstance(
        error, DBAPIError | PoolTimeout | OSError | EOFError | TimeoutError
    )


async def supervise(
    name: str,
    serve: Callable[[], Awaitable[None]],
    stopping: asyncio.Event,
    *,
    disconnected: Callable[[BaseException], object] = lambda _: None,
) -> None:
    """Run *serve* until it returns, again and again after errors, with growing pauses.

    Args:
        name: What it is, for the log.
        serve: The service; it returns once it is to stop.
        stopping: Ends a pause.
        disconnected: Called with each error.

    Raises:
        WorkerFailed: It cannot go on.
    """
    loop = asyncio.get_running_loop()
    pause, faults = _FIRST_PAUSE, 0
    while True:
        began = loop.time()
        try:
            await serve()
        except Exception as error:
            if loop.time() - began > _HEALTHY:
                pause, faults = _FIRST_PAUSE, 0
            faults = 0 if is_database(error) else faults + 1
            if is_hopeless(error) or faults >= _MOST_FAULTS:
                raise WorkerFailed(f"the worker's {name} cannot go on: {_line(error)}") from error
            disconnected(error)
            log.warning(
                "the worker's %s was interrupted and begins again: %s",
                name,
                _line(error),
                exc_info=error if faults else None,
            )
        else:
            return
        if stopping.is_set():
            return
        await wait_for(stopping, pause * random.uniform(0.5, 1.0))  # noqa: S311 - no secret
        pause = min(pause * 2, _LONGEST_PAUSE)


async def wait_for(event: asyncio.Event, seconds: float | None) -> bool:
    """Wait until an event is set, or some time is over; return whether it is set."""
    if seconds is not None and seconds <= 0:
        return event.is_set()
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return event.is_set()
    return True


def _line(error: BaseException) -> str:
    """Return the first line of an error, with its class."""
    origin = getattr(error, "orig", None) or error
    words = str(origin).strip().splitlines() or [""]
    return f"{type(origin).__name__}: {words[0]}"
