"""One behaviour suite for both facades: tests are written once, as ``async def``.

A test asks for the fixture ``twin`` and runs once for each driver::

    async def test_a_claim_counts_the_attempt(twin):
        \"\"\"The first claim is attempt 1.\"\"\"
        twin.create(Base.metadata)
        queue = twin.queue(Task)
        async with twin.begin() as session:
            await queue.enqueue(session, "work")
        async with twin.begin() as session:
            [claim] = await queue.claim(session, holder="w1")
        assert claim.attempt == 1

With an async driver, ``queue`` is an ``AsyncQueue`` and ``session`` an ``AsyncSession``: the real
things. With a sync driver, both are thin adapters over ``Queue`` and ``Session`` whose methods may
be awaited and run at once, in the same thread. What must run *at the same time* goes through
``twin.spawn``: a task of the same loop for async drivers, a thread with a loop of its own for the
others. Threads and tasks meet at ``twin.event()`` and ``twin.barrier(n)``.
"""

from __future__ import annotations

import asyncio
import select
import threading
import time
import uuid
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import psycopg
from psycopg import sql
from sqlalchemy.ext.asyncio import (
    AsyncConnection,
    AsyncSession,
    async_scoped_session,
    async_sessionmaker,
)
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from tests.servers import conninfo

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from sqlalchemy import Connection, Engine, MetaData
    from sqlalchemy.ext.asyncio import AsyncEngine

    from tests.database import Database
    from tests.servers import Driver

PATIENCE = 15.0
"""Seconds to wait for what must happen; a test that waits so long has failed."""


# --- Awaitable faces of synchronous objects ----------------------------------------------------


class Adapter:
    """A synchronous object whose methods may be awaited; ``.raw`` is the object itself.

    Plain attributes, and the methods not named in ``AWAITED``, pass through as they are.
    """

    AWAITED: frozenset[str] = frozenset()

    def __init__(self, raw: Any) -> None:
        self.raw = raw

    def __getattr__(self, name: str) -> Any:
        value = getattr(self.raw, name)
        if name not in self.AWAITED:
            return value

        async def call(*args: Any, **kwargs: Any) -> Any:
            return adapt_connection(value(*map(unwrap, args), **kwargs))

        return call

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.raw!r}>"


class QueueAdapter(Adapter):
    """``Queue`` with the calling convention of ``AsyncQueue``."""

    AT_ONCE = frozenset({"scope"})
    """Methods that are synchronous in both facades; a queue they return is adapted again."""

    def __getattr__(self, name: str) -> Any:
        """Return a method's awaitable face, or the plain attribute."""
        value = getattr(self.raw, name)
        if not callable(value) or isinstance(value, type):
            return value
        if name in self.AT_ONCE:
            return lambda *args, **kwargs: QueueAdapter(value(*args, **kwargs))

        async def call(*args: Any, **kwargs: Any) -> Any:
            return value(*map(unwrap, args), **kwargs)

        return call


class TransactionAdapter(Adapter):
    """What ``begin()`` and ``begin_nested()`` return: to be awaited, or entered."""

    AWAITED = frozenset({"commit", "rollback", "close"})

    async def __aenter__(self) -> Self:
        self.raw.__enter__()
        return self

    async def __aexit__(self, *error: object) -> None:
        self.raw.__exit__(*error)

    def __await__(self) -> Any:
        return self
        yield  # makes this a generator, as `await` wants


class _Transactional(Adapter):
    def begin(self, *args: Any, **kwargs: Any) -> TransactionAdapter:
        return TransactionAdapter(self.raw.begin(*args, **kwargs))

    def begin_nested(self) -> TransactionAdapter:
        return TransactionAdapter(self.raw.begin_nested())

    async def run_sync(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        return function(self.raw, *args, **kwargs)

    async def __aenter__(self) -> Self:
        self.raw.__enter__()
        return self

    async def __aexit__(self, *error: object) -> None:
        self.raw.__exit__(*error)


class ConnectionAdapter(_Transactional):
    """``Connection`` with the calling convention of ``AsyncConnection``."""

    AWAITED = frozenset(
        {
            "close",
            "commit",
            "exec_driver_sql",
            "execute",
            "execution_options",
            "invalidate",
            "rollback",
            "scalar",
            "scalars",
        }
    )

    @property
    def sync_connection(self) -> Connection:
        return self.raw


class SessionAdapter(_Transactional):
    """``Session`` or ``scoped_session`` with the calling convention of ``AsyncSession``."""

    AWAITED = frozenset(
        {
            "close",
            "commit",
            "connection",
            "delete",
            "execute",
            "flush",
            "get",
            "get_one",
            "invalidate",
            "merge",
            "refresh",
            "remove",
            "reset",
            "rollback",
            "scalar",
            "scalars",
        }
    )

    @property
    def sync_session(self) -> Session:
        return self.raw

    def __contains__(self, entity: object) -> bool:
        return entity in self.raw

    def __iter__(self) -> Any:
        return iter(self.raw)


class TwinAsyncSession(AsyncSession):
    """A real ``AsyncSession`` that answers to ``.raw`` like an adapter."""

    @property
    def raw(self) -> AsyncSession:
        return self


class TwinAsyncConnection(AsyncConnection):
    """A real ``AsyncConnection`` that answers to ``.raw`` like an adapter."""

    @property
    def raw(self) -> AsyncConnection:
        return self


def unwrap(value: Any) -> Any:
    """Return the object behind an adapter; anything else as it is."""
    return value.raw if isinstance(value, Adapter) else value


def adapt_connection(value: Any) -> Any:
    """Adapt what is a synchronous connection; leave anything else as it is."""
    from sqlalchemy import Connection

    return ConnectionAdapter(value) if isinstance(value, Connection) else value


# --- Meeting points ----------------------------------------------------------------------------


class Event:
    """A flag that spawned functions wait for, whichever world they run in."""

    def __init__(self, *, is_async: bool) -> None:
        self._event: Any = asyncio.Event() if is_async else threading.Event()

    def set(self) -> None:
        """Let everybody go who waits, now or later."""
        self._event.set()

    def is_set(self) -> bool:
        """Tell whether ``set`` was called."""
        return self._event.is_set()

    async def wait(self, timeout: float = PATIENCE) -> None:
        """Wait for ``set``; a sync twin's caller blocks its thread.

        Raises:
            TimeoutError: nobody called ``set``.
        """
        if isinstance(self._event, asyncio.Event):
            async with asyncio.timeout(timeout):
                await self._event.wait()
        elif not self._event.wait(timeout):
            raise TimeoutError


class Barrier:
    """A point that *parties* functions reach together, or none."""

    def __init__(self, parties: int, *, is_async: bool) -> None:
        self._barrier: Any = asyncio.Barrier(parties) if is_async else threading.Barrier(parties)

    async def wait(self, timeout: float = PATIENCE) -> None:
        """Wait for the others; a sync twin's caller blocks its thread."""
        if isinstance(self._barrier, asyncio.Barrier):
            async with asyncio.timeout(timeout):
                await self._barrier.wait()
        else:
            self._barrier.wait(timeout)


# --- Notifications -----------------------------------------------------------------------------


class Notification(NamedTuple):
    """One NOTIFY as it arrived."""

    channel: str
    payload: str
    pid: int


class Listener:
    """A connection of its own that collects what is sent on a channel."""

    def __init__(self, database: Database, channel: str) -> None:
        self.channel = channel
        self._database = database
        self._heard: deque[Notification] = deque()
        self._connection = psycopg.connect(
            conninfo(database.url), autocommit=True, application_name="listener"
        )
        self._connection.execute(sql.SQL("LISTEN {}").format(sql.Identifier(channel)))

    async def notifies(self, timeout: float = PATIENCE, count: int = 1) -> list[Notification]:
        """Wait until *count* notifications are there, or *timeout* is over; return all there are."""
        await asyncio.to_thread(self._collect, timeout, lambda: len(self._heard) >= count)
        return self._take()

    async def so_far(self) -> list[Notification]:
        """Return what was sent by transactions that have committed by now, without any wait.

        PostgreSQL delivers in the order of commits: what is not there when a notification of our
        own arrives was not sent before it.
        """
        mark = f"mark {uuid.uuid4()}"
        self._database.sql("SELECT pg_notify(%(c)s, %(m)s)", c=self.channel, m=mark)
        arrived = lambda: bool(self._heard) and self._heard[-1].payload == mark  # noqa: E731
        if not await asyncio.to_thread(self._collect, PATIENCE, arrived):
            raise TimeoutError
        return self._take()

    def _take(self) -> list[Notification]:
        heard = [n for n in self._heard if not n.payload.startswith("mark ")]
        self._heard.clear()
        return heard

    def _collect(self, timeout: float, enough: Callable[[], bool]) -> bool:
        deadline = time.monotonic() + timeout
        pq = self._connection.pgconn
        while True:
            pq.consume_input()
            while not enough() and (n := pq.notifies()):
                self._heard.append(Notification(n.relname.decode(), n.extra.decode(), n.be_pid))
            if enough():
                return True
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            select.select([pq.socket], [], [], left)

    def close(self) -> None:
        """Stop listening."""
        self._connection.close()


# --- The twin ----------------------------------------------------------------------------------


class Twin:
    """One driver's view of the library: engine, sessions and queues that may be awaited."""

    def __init__(self, database: Database, driver: Driver) -> None:
        self.database = database
        self.driver = driver
        self.is_async: bool = driver.is_async
        self._shared: Any = database.engine(driver)
        # A view of the shared engine: event listeners of this test end with it.
        self.engine: Engine | AsyncEngine = self._shared.execution_options()
        self._own_engines: list[Any] = []
        self._loop = asyncio.get_running_loop()
        self._spawned: list[asyncio.Future[Any]] = []
        self._threads: ThreadPoolExecutor | None = None
        # Facts about the database, from the administrator's connection.
        self.sql = database.sql
        self.scalar = database.scalar

    def __repr__(self) -> str:
        return f"<Twin {self.driver}>"

    # --- The library ---------------------------------------------------------------------------

    def queue(self, model: type, name: str = "default", **options: Any) -> Any:
        """Return an ``AsyncQueue``, or an adapter that makes a ``Queue`` look like one."""
        from sqla_taskqueue import AsyncQueue, Queue

        if self.is_async:
            return AsyncQueue(model, name, **options)
        return QueueAdapter(Queue(model, name, **options))

    def adapt(self, raw: Any) -> Any:
        """Give a host's own sync session, connection or queue its awaitable face.

        Objects of the async world need none and come back as they are.
        """
        from sqlalchemy import Connection

        if isinstance(raw, Session | scoped_session):
            return SessionAdapter(raw)
        if isinstance(raw, Connection):
            return ConnectionAdapter(raw)
        if type(raw).__name__ == "Queue":
            return QueueAdapter(raw)
        return raw

    @staticmethod
    def raw(value: Any) -> Any:
        """Return the real object behind an adapter; anything else as it is."""
        return unwrap(value)

    # --- Tables --------------------------------------------------------------------------------

    def create(self, *metadatas: MetaData, fresh: bool = False) -> None:
        """Leave the database with exactly the tables of *metadatas*, all empty.

        See ``Database.create``. Call it before the test opens a transaction of its own.
        """
        self.database.create(*metadatas, fresh=fresh)

    # --- Connections ---------------------------------------------------------------------------

    def new_engine(self, **options: Any) -> Any:
        """Make an engine of the test's own, disposed of at its end: pools, events, options."""
        engine = self.database.new_engine(self.driver, **options)
        self._own_engines.append(engine)
        return engine

    @asynccontextmanager
    async def session(self, bind: Any = None, **options: Any) -> AsyncIterator[Any]:
        """Open a session and close it at the end: nothing is committed on the way.

        *bind* is an engine or a connection; *options* are ``Session``'s, and *session_class* is a
        subclass of it. ``expire_on_commit`` is off unless asked for.
        """
        options = {"expire_on_commit": False} | options
        bind = self.engine if bind is None else unwrap(bind)
        make: Callable[..., Session] = options.pop("session_class", Session)
        if self.is_async:
            async with TwinAsyncSession(bind, sync_session_class=make, **options) as session:
                yield session
        else:
            with make(bind, **options) as session:
                yield SessionAdapter(session)

    @asynccontextmanager
    async def begin(self, bind: Any = None, **options: Any) -> AsyncIterator[Any]:
        """Open a session in a transaction that commits at the end, or rolls back on an error."""
        async with self.session(bind, **options) as session, session.begin():
            yield session

    @asynccontextmanager
    async def scoped(self, **options: Any) -> AsyncIterator[Any]:
        """Open a ``scoped_session`` or ``async_scoped_session`` and remove it at the end."""
        options = {"expire_on_commit": False} | options
        if self.is_async:
            factory = async_sessionmaker(self.engine, **options)
            registry: Any = async_scoped_session(factory, scopefunc=asyncio.current_task)
            try:
                yield registry
            finally:
                await registry.remove()
        else:
            registry = scoped_session(sessionmaker(self.engine, **options))
            try:
                yield SessionAdapter(registry)
            finally:
                registry.remove()

    @asynccontextmanager
    async def connect(self, bind: Any = None) -> AsyncIterator[Any]:
        """Open a connection and close it at the end: nothing is committed on the way."""
        bind = self.engine if bind is None else bind
        if self.is_async:
            async with TwinAsyncConnection(bind) as connection:
                yield connection
        else:
            with bind.connect() as connection:
                yield ConnectionAdapter(connection)

    @asynccontextmanager
    async def begin_connection(self, bind: Any = None) -> AsyncIterator[Any]:
        """Open a connection in a transaction that commits at the end, or rolls back on an error."""
        async with self.connect(bind) as connection, connection.begin():
            yield connection

    # --- At the same time ----------------------------------------------------------------------

    def spawn(
        self, function: Callable[..., Awaitable[Any]], *args: Any, **kwargs: Any
    ) -> asyncio.Future[Any]:
        """Start an ``async def`` beside the test and return what may be awaited for its result.

        Async drivers run it as a task, sync drivers in a thread with a loop of its own, so that
        what blocks there does not block here. It opens its own sessions and connections.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any]
        if self.is_async:
            future = loop.create_task(_coroutine(function, args, kwargs))
        else:
            if self._threads is None:
                self._threads = ThreadPoolExecutor(max_workers=100, thread_name_prefix="spawned")
            future = loop.run_in_executor(
                self._threads, lambda: asyncio.run(_coroutine(function, args, kwargs))
            )
        if loop is self._loop:
            self._spawned.append(future)
        return future

    def event(self) -> Event:
        """Return a flag: ``set()``, ``await wait()``."""
        return Event(is_async=self.is_async)

    def barrier(self, parties: int) -> Barrier:
        """Return a meeting point: ``await wait()`` lets *parties* functions go together."""
        return Barrier(parties, is_async=self.is_async)

    async def until(self, condition: Callable[[], Any], timeout: float = PATIENCE) -> Any:
        """Ask again and again until *condition* (sync or async) is true; return what it said.

        Raises:
            TimeoutError: it never became true.
        """
        deadline = time.monotonic() + timeout
        while True:
            answer = condition()
            if asyncio.iscoroutine(answer) or asyncio.isfuture(answer):
                answer = await answer
            if answer:
                return answer
            if time.monotonic() > deadline:
                raise TimeoutError
            await asyncio.sleep(0.005)

    async def until_waiting(self, count: int = 1, timeout: float = PATIENCE) -> None:
        """Wait until *count* connections of this database wait for a lock."""
        await self.until(
            lambda: sum(o.wait_event_type == "Lock" for o in self.database.others()) >= count,
            timeout,
        )

    # --- Notifications -------------------------------------------------------------------------

    @asynccontextmanager
    async def listening(self, channel: str) -> AsyncIterator[Listener]:
        """Collect the notifications of *channel*, on an independent connection."""
        listener = Listener(self.database, channel)
        try:
            yield listener
        finally:
            listener.close()

    # --- The end -------------------------------------------------------------------------------

    async def close(self) -> None:
        """End what the test left behind, and complain about it.

        Raises:
            AssertionError: a spawned function is still running, or a transaction still open.
        """
        running = [future for future in self._spawned if not future.done()]
        if running and self.is_async:
            for task in running:
                task.cancel()
        elif running:
            # A thread cannot be cancelled, but what it waits for can.
            self.database.terminate(*(other.pid for other in self.database.others()))
        if running:
            await asyncio.wait(running, timeout=PATIENCE)
        if self._threads is not None:
            self._threads.shutdown(wait=all(future.done() for future in running))
        for engine in (self._shared, *self._own_engines):
            if self.is_async:
                await engine.dispose()
            else:
                engine.dispose()
        self.database.see_off_workers()
        strays = self.database.strays()
        assert not running, f"spawned and never awaited: {running}"
        assert not strays, f"left in a transaction: {strays}"


async def _coroutine(function: Callable[..., Awaitable[Any]], args: Any, kwargs: Any) -> Any:
    return await function(*args, **kwargs)
