"""The worker's standing connections: each is held, used for one thing, and made anew when it broke.

They come from pools of the worker's own, made from the host's: with the same way to connect and
the same hooks, so that handlers, who use the host's pool, cannot starve them.

On a connection of its own a statement is a transaction (autocommit). Through a transaction pooler
it is not: there, prepared statements and settings belong to the transaction, so each piece of work
is one at READ COMMITTED.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from sqlalchemy import Connection, Engine

from .._drivers import driver_connection, named_pid, sever, sqlstate
from ..statements import connection as statements

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

T = TypeVar("T")
Work = Callable[[Connection], T]

PATIENCE = 15.0
"""Seconds that a statement may take; a connection that is silent for longer is given up."""

_HARMLESS = ("21", "22", "23", "40", "42", "44", "55", "P0")
"""Classes of errors after which a connection is as good as before."""


class Line(Protocol):
    """One connection, and whoever holds it."""

    @property
    def direct(self) -> bool:
        """Whether the server is at its other end, and not a pooler."""
        ...

    async def run(self, work: Work[T], patience: float | None = None) -> T:
        """Run *work* with the connection; connect first if need be.

        Raises:
            TimeoutError: It took longer than *patience*, in seconds, or ``PATIENCE``; the
                connection is given up.
        """
        ...

    async def driver(self) -> Any:
        """Return the driver's connection; connect first if need be."""
        ...

    async def close(self) -> None:
        """Close the connection. It may be used again, and is then a new one."""
        ...


def line_to(engine: Engine | AsyncEngine, name: str, *, lock_timeout: str | None = None) -> Line:
    """Return a standing connection to an engine's database; nothing is connected yet.

    Args:
        engine: The host's engine.
        name: What it is for; names the thread.
        lock_timeout: How long its statements wait for a lock; not through a pooler.
    """
    if isinstance(engine, Engine):
        return _SyncLine(_standing(engine), name, lock_timeout)
    from sqlalchemy.ext.asyncio import AsyncEngine  # noqa: PLC0415 - needs greenlet

    return _AsyncLine(AsyncEngine(_standing(engine.sync_engine)), lock_timeout)


def _standing(engine: Engine) -> Engine:
    """Return an engine like the host's, with a pool of its own, for one connection."""
    return Engine(
        engine.pool.recreate(),
        engine.dialect,
        engine.url,
        execution_options=engine.get_execution_options(),
        hide_parameters=engine.hide_parameters,
    )


def _prepare(connection: Connection, lock_timeout: str | None) -> bool:
    """Set up a new connection; return whether it is direct."""
    connection.execution_options(isolation_level="READ COMMITTED")
    pid: int = connection.execute(statements.backend_pid).scalar_one()
    connection.rollback()
    direct = pid == named_pid(driver_connection(connection))
    if direct:
        connection.execution_options(isolation_level="AUTOCOMMIT")
        if lock_timeout is not None:
            connection.execute(statements.set_lock_timeout, {"tq_value": lock_timeout})
    return direct


def _perform(connection: Connection, work: Work[T], *, direct: bool) -> T:
    if direct:
        return work(connection)
    with connection.begin():
        return work(connection)


def _survives(error: BaseException) -> bool:
    """Tell whether a connection can be used after an error."""
    return (sqlstate(error) or "").startswith(_HARMLESS)


class _AsyncLine:
    """A connection of an asynchronous driver, in the event loop that uses it first."""

    def __init__(self, engine: AsyncEngine, lock_timeout: str | None) -> None:
        self._engine = engine
        self._lock_timeout = lock_timeout
        self._connection: AsyncConnection | None = None
        self._driver: Any = None
        self.direct = False

    async def run(self, work: Work[T], patience: float | None = None) -> T:
        patience = patience or PATIENCE
        connection = await self._connected(patience)
        given_up = asyncio.get_running_loop().call_later(patience, sever, self._driver)
        try:
            return await connection.run_sync(_perform, work, direct=self.direct)
        except BaseException as error:
            if _survives(error):
                await connection.rollback()
            else:
                await self.close()
            raise
        finally:
            given_up.cancel()

    async def driver(self) -> Any:
        await self._connected(PATIENCE)
        return self._driver

    async def _connected(self, patience: float) -> AsyncConnection:
        if self._connection is None:
            async with asyncio.timeout(patience):
                connection = await self._engine.connect()
                try:
                    self.direct = await connection.run_sync(_prepare, self._lock_timeout)
                except BaseException:
                    await asyncio.shield(_discard(connection))
                    raise
                self._driver = await connection.run_sync(driver_connection)
                self._connection = connection
        return self._connection

    async def close(self) -> None:
        connection, self._connection = self._connection, None
        driver, self._driver = self._driver, None
        if connection is not None:
            sever(driver)
            await asyncio.shield(_discard(connection))


async def _discard(connection: AsyncConnection) -> None:
    try:
        await connection.invalidate()
    finally:
        await connection.close()


class _SyncLine:
    """A connection of a synchronous driver, in a thread of its own."""

    def __init__(self, engine: Engine, name: str, lock_timeout: str | None) -> None:
        self._engine = engine
        self._name = name
        self._lock_timeout = lock_timeout
        self._seat: _Seat | None = None

    @property
    def direct(self) -> bool:
        return self._seat is not None and self._seat.direct

    def _taken(self) -> _Seat:
        if self._seat is None:
            self._seat = _Seat(self._engine, self._name, self._lock_timeout)
        return self._seat

    async def run(self, work: Work[T], patience: float | None = None) -> T:
        patience = patience or PATIENCE
        seat = self._taken()
        future = seat.call(work)
        given_up = asyncio.get_running_loop().call_later(patience, self._give_up, seat, future)
        try:
            return await future
        except BaseException as error:
            if not _survives(error):
                self._leave(seat)
            raise
        finally:
            given_up.cancel()

    def _give_up(self, seat: _Seat, future: asyncio.Future[Any]) -> None:
        self._leave(seat)
        if not future.done():
            future.set_exception(TimeoutError("the database does not answer"))

    def _leave(self, seat: _Seat) -> None:
        """Let a thread end by itself, whenever its driver lets it."""
        if self._seat is seat:
            self._seat = None
        seat.leave()

    async def driver(self) -> Any:
        return await self.run(driver_connection)

    async def close(self) -> None:
        if self._seat is not None:
            self._leave(self._seat)


class _Seat:
    """A thread with one connection. Daemonic: a driver that hangs keeps no process from its end."""

    def __init__(self, engine: Engine, name: str, lock_timeout: str | None) -> None:
        self._engine = engine
        self._lock_timeout = lock_timeout
        self._calls: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._connection: Connection | None = None
        self._driver: Any = None
        self._left = False
        self.direct = False
        threading.Thread(target=self._work, name=f"taskqueue {name}", daemon=True).start()

    def call(self, work: Work[T]) -> asyncio.Future[T]:
        """Have *work* run with the connection."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        self._calls.put((work, future, loop))
        return future

    def leave(self) -> None:
        """End the thread and the connection, which may be in the middle of something."""
        if not self._left:
            self._left = True
            if self._driver is not None:
                sever(self._driver)
            self._calls.put(None)

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            work, future, loop = call
            try:
                if self._connection is None:
                    self._connect()
                assert self._connection is not None
                result, error = _perform(self._connection, work, direct=self.direct), None
            except BaseException as caught:  # noqa: BLE001 - the caller's
                result, error = None, caught
                if self._connection is not None and _survives(caught):
                    self._connection.rollback()
            _answer(loop, future, result, error)
            # A local variable would keep the caller's work alive while the thread is idle.
            del call, work, future, loop, result, error
        if self._connection is not None:
            self._connection.invalidate()
            self._connection.close()
        self._engine.dispose()

    def _connect(self) -> None:
        connection = self._engine.connect()
        try:
            self._driver = driver_connection(connection)
            if self._left:
                # Too late: it was given up while it connected.
                sever(self._driver)
            self.direct = _prepare(connection, self._lock_timeout)
        except BaseException:
            connection.invalidate()
            connection.close()
            raise
        self._connection = connection


def _answer(
    loop: asyncio.AbstractEventLoop,
    future: asyncio.Future[Any],
    result: Any,
    error: BaseException | None,
) -> None:
    def settle() -> None:
        if future.done():
            return  # given up, or cancelled
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)

    with suppress(RuntimeError):  # the loop is closed: nobody waits any more
        loop.call_soon_threadsafe(settle)
