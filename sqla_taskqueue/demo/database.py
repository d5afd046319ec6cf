"""Engines for the demo, and the one that the parent process looks through."""

from __future__ import annotations

import asyncio
import secrets
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from sqlalchemy import create_engine, func, select, text
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, create_async_engine
from sqlalchemy.orm import Session
from sqlalchemy.schema import CreateSchema, DropSchema

from .host import Base
from .settings import CannotRun

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Generator

    from sqlalchemy import Engine
    from sqlalchemy.engine import URL

    from .settings import Settings

T = TypeVar("T")

_PATIENCE = 5
"""Seconds that connecting may take."""


def engine_options(url: URL, schema: str, *, pool: int, name: str) -> dict[str, Any]:
    """Return what every engine of the demo is made with.

    Args:
        url: The database, for what its driver calls things.
        schema: Where the host's tables are.
        pool: How many connections it may have.
        name: What the connections are called in ``pg_stat_activity``.
    """
    connect: dict[str, Any]
    if url.drivername.endswith("asyncpg"):
        connect = {"timeout": _PATIENCE, "server_settings": {"application_name": name}}
    else:
        connect = {"connect_timeout": _PATIENCE, "application_name": name}
    return {
        "pool_size": pool,
        "max_overflow": 0,
        "connect_args": connect,
        # The host's classes name no schema. This is how SQLAlchemy puts them into one.
        "execution_options": {"schema_translate_map": {None: schema}},
    }


class Database:
    """The demo's tables, seen from the parent process.

    What is only looked at or swept is written once, for a ``Session``; beneath an async engine it
    runs through ``run_sync``. What an application would write differently, like enqueueing, comes
    in both forms.
    """

    def __init__(self, url: URL, schema: str, *, is_async: bool) -> None:
        self.url = url
        self.schema = schema
        options = engine_options(url, schema, pool=2, name="sqla_taskqueue demo")
        self._runner = asyncio.Runner() if is_async else None
        self._engine: Engine | AsyncEngine = (
            create_async_engine(url, **options) if is_async else create_engine(url, **options)
        )

    def run(self, work: Callable[[Session], T]) -> T:
        """Run *work* in a transaction of its own, on a synchronous session."""
        if isinstance(self._engine, AsyncEngine):
            return self.run_async(lambda session: session.run_sync(work))
        with Session(self._engine) as session, session.begin():
            return work(session)

    def run_async(self, work: Callable[[AsyncSession], Awaitable[T]]) -> T:
        """Run *work* in a transaction of its own, on an asynchronous session."""
        engine, runner = self._engine, self._runner
        assert isinstance(engine, AsyncEngine)
        assert runner is not None

        async def run() -> T:
            async with AsyncSession(engine) as session, session.begin():
                return await work(session)

        return runner.run(run())

    def close(self) -> None:
        """Close the connections."""
        if isinstance(self._engine, AsyncEngine):
            assert self._runner is not None
            self._runner.run(self._engine.dispose())
            self._runner.close()
        else:
            self._engine.dispose()


@contextmanager
def schema_of_its_own(settings: Settings, url: URL) -> Generator[Database]:
    """Make a schema with the host's tables; drop it in the end.

    Raises:
        CannotRun: The server cannot be reached, or the schema not be made.
    """
    # A random name: two demos never meet, and nothing that was there before is dropped.
    schema = f"sqla_taskqueue_demo_{secrets.token_hex(3)}"
    try:
        database = Database(url, schema, is_async=settings.is_async)
    except (SQLAlchemyError, TypeError) as error:
        raise _unreachable(url, error) from None
    made = False
    try:
        try:
            database.run(_make)
        except Exception as error:  # noqa: BLE001 - asyncpg raises what it likes
            raise _unreachable(url, error) from None
        made = True
        yield database
    finally:
        try:
            if made:
                database.run(_drop)
        finally:
            database.close()


def server_version(session: Session) -> str:
    """Return the server's version, without what distributions add to it."""
    version = session.scalar(select(func.current_setting("server_version")))
    return str(version).partition(" ")[0]


def _schema_of(session: Session) -> str:
    options = session.connection().get_execution_options()
    return str(options["schema_translate_map"][None])


def _make(session: Session) -> None:
    session.execute(CreateSchema(_schema_of(session)))
    Base.metadata.create_all(session.connection())


def _drop(session: Session) -> None:
    # Connections of killed workers may hold locks until the server notices that they are gone.
    session.execute(text("SET LOCAL lock_timeout = '15s'"))
    session.execute(DropSchema(_schema_of(session), cascade=True, if_exists=True))


def _unreachable(url: URL, error: Exception) -> CannotRun:
    host = url.host or url.query.get("host") or "the default host"
    where = f"{host}, port {url.port or 5432}, database {url.database or 'the default one'!r}"
    return CannotRun(f"Cannot use PostgreSQL at {where}:\n{_reason(url, error)}")


def _reason(url: URL, error: Exception) -> str:
    """Return the first line of the driver's own words, without the password."""
    cause: BaseException = getattr(error, "orig", None) or error
    if isinstance(cause, TimeoutError):
        return f"no answer within {_PATIENCE} seconds"
    lines = str(cause).strip().splitlines() or [type(cause).__name__]
    words = lines[0]
    for secret in (url.password, url.render_as_string(hide_password=False)):
        if secret:
            words = words.replace(str(secret), "***")
    return words
