"""The surroundings: each says how an application that lives there opens its units of work."""

from __future__ import annotations

import uuid
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import pytest
from sqlalchemy import Delete, Insert, Update, select
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from sqla_taskqueue._drivers import sqlstate
from tests.surroundings.application import application

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from sqlalchemy.engine import URL

    from tests.servers import Driver
    from tests.twin import Twin

TENANT, OTHER = 7, 8

_QUEUES: dict[Any, Any] = {}


class Surrounding:
    """READ COMMITTED, a session and a transaction for each unit of work: the measure of all."""

    name: ClassVar[str] = "plain"
    parallel: ClassVar[bool] = True
    """Whether units of work can be open beside each other."""
    undone: ClassVar[Literal["the unit", "nothing", "everything"]] = "the unit"
    """What is gone after a unit of work has failed."""
    heard: ClassVar[int] = 1
    """How many wake-ups a unit of work sends that enqueues three tasks."""

    def __init__(self, twin: Twin) -> None:
        self.twin = twin
        self.base = self.mapped()
        self.queue = self.queue_of(TENANT)

    def __repr__(self) -> str:
        return f"<{self.name}, {self.twin.driver}>"

    # --- What kinds differ in -------------------------------------------------------------------

    @staticmethod
    def mapped() -> Any:
        """Return the application as it is mapped here."""
        return application()

    def set_up(self) -> None:
        """Make the tables, empty but for two tenants."""
        self.twin.create(self.base.metadata)
        self.twin.sql(f"INSERT INTO tenants (id, paid) VALUES ({TENANT}, 0), ({OTHER}, 0)")

    @asynccontextmanager
    async def around(self) -> AsyncIterator[None]:
        """Surround the whole test."""
        self.set_up()
        yield

    @asynccontextmanager
    async def begin(self) -> AsyncIterator[Any]:
        """Open a session for one unit of work, committed at the end, rolled back on an error."""
        async with self.twin.begin() as session:
            yield session

    async def do(self, work: Callable[..., Awaitable[Any]], *args: Any, **options: Any) -> Any:
        """Run ``work(session, …)``, a method of the queue or a function, as one unit of work."""
        async with self.begin() as session:
            return await work(session, *args, **options)

    # --- What tests need ------------------------------------------------------------------------

    def queue_of(self, tenant: int) -> Any:
        """Return the queue ``work`` of one tenant."""
        return self.unscoped.scope(tenant_id=tenant)

    @property
    def unscoped(self) -> Any:
        """The queue ``work`` of all tenants; made once, as applications do."""
        which = (self.base, self.twin.is_async)
        if which not in _QUEUES:
            _QUEUES[which] = self.twin.queue(self.base.Task, "work")
        return _QUEUES[which]

    @property
    def channel(self) -> str:
        """Where wake-ups are sent."""
        channel: str = self.queue._core.channel
        return channel

    async def run(self, statement: Any) -> None:
        """Run a statement as a unit of work of its own."""
        await self.do(lambda session: session.execute(statement))

    async def fetch(self, *columns: Any) -> list[Any]:
        """Return columns of one table as a unit of work sees them, oldest row first."""
        query = select(*columns).order_by(columns[0].table.c.id)

        async def read(session: Any) -> list[Any]:
            return (await session.execute(query)).all()

        return await self.do(read)

    async def paid(self) -> int:
        """Return what the tenant has paid: the effect of a task, in the host's own table."""
        tenants = self.base.Tenant.__table__
        return next(row.paid for row in await self.fetch(tenants.c.id, tenants.c.paid))


# --- Tables -------------------------------------------------------------------------------------


class Partitioned(Surrounding):
    """Tasks and their events are partitioned by the hash of their tenant."""

    name = "partitioned"

    @staticmethod
    def mapped() -> Any:
        return application(partitioned=True)


class Translated(Surrounding):
    """The classes name a schema that does not exist; ``schema_translate_map`` names the real one.

    The schema of another customer stays as it is.
    """

    name = "translated"

    @staticmethod
    def mapped() -> Any:
        return application(schema="customer")

    def set_up(self) -> None:
        self.twin.create(*(application(schema=name).metadata for name in ("ours", "theirs")))
        self.twin.sql(f"INSERT INTO ours.tenants (id, paid) VALUES ({TENANT}, 0), ({OTHER}, 0)")

    @asynccontextmanager
    async def around(self) -> AsyncIterator[None]:
        async with super().around():
            yield
        assert self.twin.scalar("SELECT count(*) FROM theirs.tasks") == 0

    @asynccontextmanager
    async def begin(self) -> AsyncIterator[Any]:
        engine = self.twin.engine.execution_options(schema_translate_map={"customer": "ours"})
        async with self.twin.begin(engine) as session:
            yield session


# --- Isolation ----------------------------------------------------------------------------------


class RepeatableRead(Surrounding):
    """A transaction sees the database as it was at its first statement.

    A row that has changed since cannot be written (SQLSTATE 40001): the unit of work is run again,
    as the documentation tells.
    """

    name = "repeatable read"
    level: ClassVar[str] = "REPEATABLE READ"

    @asynccontextmanager
    async def begin(self) -> AsyncIterator[Any]:
        engine = self.twin.engine.execution_options(isolation_level=self.level)
        async with self.twin.begin(engine) as session:
            yield session

    async def do(self, work: Callable[..., Awaitable[Any]], *args: Any, **options: Any) -> Any:
        """Run one unit of work, again as long as the database asks for it."""
        while True:
            try:
                return await super().do(work, *args, **options)
            except DBAPIError as error:
                if sqlstate(error) not in ("40001", "40P01"):
                    raise


class Serializable(RepeatableRead):
    """As if there were no other transaction; the commit, too, may ask for another try."""

    name = "serializable"
    level = "SERIALIZABLE"


class Autocommit(RepeatableRead):
    """Each statement is a transaction, atomic by itself: a rollback undoes nothing."""

    name = "autocommit"
    level = "AUTOCOMMIT"
    undone = "nothing"
    heard = 3


# --- Sessions -----------------------------------------------------------------------------------


class Savepoints(Surrounding):
    """Each unit of work is a savepoint of a transaction; a unit that fails undoes its own part."""

    name = "savepoints"

    @asynccontextmanager
    async def begin(self) -> AsyncIterator[Any]:
        async with self.twin.begin() as session:
            try:
                async with session.begin_nested():
                    yield session
            except Exception as error:  # noqa: BLE001 - raised again
                failed = error
            else:
                return
        # What encloses the savepoint has committed.
        raise failed


class Joined(Surrounding):
    """Each unit of work joins one outer transaction, which a test suite rolls back at its end.

    Commits release savepoints: nobody else sees anything or is woken.
    """

    name = "joined"
    parallel = False
    mode: ClassVar[str] = "create_savepoint"
    heard = 0

    @asynccontextmanager
    async def around(self) -> AsyncIterator[None]:
        self.set_up()
        async with self.twin.connect() as connection:
            self.connection = connection
            await self._begin_outer()
            yield
            await connection.rollback()
        if self.heard == 0:
            assert self.twin.scalar("SELECT count(*) FROM tasks") == 0

    async def _begin_outer(self) -> None:
        if not self.connection.in_transaction():
            await self.connection.begin()

    @asynccontextmanager
    async def begin(self) -> AsyncIterator[Any]:
        async with self.twin.begin(self.connection, join_transaction_mode=self.mode) as session:
            yield session


class JoinedForRollback(Joined):
    """Commits do nothing, and a unit of work that fails takes the outer transaction with it."""

    name = "joined, rollback only"
    mode = "rollback_only"
    undone = "everything"

    @asynccontextmanager
    async def begin(self) -> AsyncIterator[Any]:
        await self._begin_outer()
        async with super().begin() as session:
            yield session


class JoinedForControl(JoinedForRollback):
    """A session takes the outer transaction over: its commit is the real one."""

    name = "joined, control fully"
    mode = "control_fully"
    undone = "the unit"
    heard = 1


class TwoPhase(Surrounding):
    """Transactions are prepared before they are committed, and therefore wake nobody."""

    name = "two-phase"
    heard = 0

    @asynccontextmanager
    async def begin(self) -> AsyncIterator[Any]:
        async with self.twin.begin(twophase=True) as session:
            yield session


class _RoutingSession(Session):
    """As in SQLAlchemy's documentation: writes to the primary, the rest to a replica."""

    def get_bind(self, mapper: Any = None, *, clause: Any = None, **options: Any) -> Any:
        if self._flushing or isinstance(clause, Insert | Update | Delete):
            return self.info["primary"]
        return self.info["replica"]


class Routed(Surrounding):
    """Reads go to a replica, on which whatever writes or locks fails."""

    name = "routed"

    @asynccontextmanager
    async def around(self) -> AsyncIterator[None]:
        read_only = connect_args(self.twin.driver, default_transaction_read_only="on")
        engines = {
            "primary": self.twin.engine,
            "replica": self.twin.new_engine(connect_args=read_only),
        }
        self.engines = {name: getattr(e, "sync_engine", e) for name, e in engines.items()}
        async with super().around():
            yield

    @asynccontextmanager
    async def begin(self) -> AsyncIterator[Any]:
        options = {"session_class": _RoutingSession, "info": self.engines}
        async with self.twin.begin(**options) as session:
            yield session


# --- Servers ------------------------------------------------------------------------------------


def connect_args(driver: Driver, **settings: str) -> dict[str, Any]:
    """Return how *driver* is told of settings that its connections begin with."""
    if driver.name == "asyncpg":
        return {"server_settings": settings}
    return {"options": " ".join(f"-c {name}={value}" for name, value in settings.items())}


class Timeouts(Surrounding):
    """The host limits how long a statement may run, and how long it may wait for a lock."""

    name = "timeouts"

    @asynccontextmanager
    async def around(self) -> AsyncIterator[None]:
        limits = connect_args(self.twin.driver, statement_timeout="5s", lock_timeout="500ms")
        self.engine = self.twin.new_engine(connect_args=limits)
        async with super().around():
            yield

    @asynccontextmanager
    async def begin(self) -> AsyncIterator[Any]:
        async with self.twin.begin(self.engine) as session:
            yield session


class Switching(Surrounding):
    """The connection to the server is another one in each transaction: a pooler, emulated."""

    name = "switching"

    def pooled(self) -> Any:
        """Return an engine with two connections that take turns."""
        return self.twin.new_engine(pool_size=2, max_overflow=0, pool_use_lifo=False)

    @asynccontextmanager
    async def around(self) -> AsyncIterator[None]:
        self.engine = self.pooled()
        async with super().around():
            # Both connections are there from the first unit of work on.
            async with self.begin() as one, self.begin() as other:
                for session in (one, other):
                    await session.execute(select(1))
            yield

    @asynccontextmanager
    async def begin(self) -> AsyncIterator[Any]:
        async with self.twin.begin(self.engine) as session:
            yield session


class Pooled(Switching):
    """PgBouncer in transaction mode stands before the server; drivers are set up for it."""

    name = "pgbouncer"

    def __init__(self, twin: Twin, url: URL) -> None:
        super().__init__(twin)
        self.url = url

    def pooled(self) -> Any:
        return self.twin.new_engine(url=self.url, **pooler_options(self.twin.driver))


def pooler_options(driver: Driver) -> dict[str, Any]:
    """Return what an engine needs behind a pooler, as SQLAlchemy's documentation says."""
    match driver.name:
        case "psycopg" | "psycopg-async":
            return {"connect_args": {"prepare_threshold": None}}
        case "asyncpg":
            return {
                "connect_args": {
                    "statement_cache_size": 0,
                    "prepared_statement_cache_size": 0,
                    "prepared_statement_name_func": lambda: f"__asyncpg_{uuid.uuid4()}__",
                },
            }
        case _:
            return {}  # psycopg2 prepares nothing


KINDS: tuple[type[Surrounding], ...] = (
    Surrounding,
    Partitioned,
    Translated,
    RepeatableRead,
    Serializable,
    Autocommit,
    Savepoints,
    Joined,
    JoinedForRollback,
    JoinedForControl,
    TwoPhase,
    Routed,
    Timeouts,
    Switching,
    Pooled,
)


def kinds(*wanted: type[Surrounding]) -> Any:
    """Run a test in some surroundings only."""
    return pytest.mark.parametrize("kind", wanted, indirect=True, ids=lambda kind: kind.name)
