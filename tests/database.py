"""The one database that the tests of a process share, and how it gets clean between two of them."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import sql
from psycopg.rows import namedtuple_row
from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool

from tests.servers import conninfo

if TYPE_CHECKING:
    from sqlalchemy import Engine, MetaData
    from sqlalchemy.engine import URL
    from sqlalchemy.ext.asyncio import AsyncEngine

    from tests.servers import Driver

# The tables of user schemas as they are, down to the last ALTER, CREATE INDEX, TRUNCATE (which
# give a catalogue row a new xmin) and ANALYZE (which sets reltuples).
_FINGERPRINT = """
SELECT c.oid::bigint, c.relkind::text, c.xmin::text, c.reltuples, a.newest,
       c.relkind = 'r' AND pg_relation_size(c.oid) > 1048576 AS is_large
  FROM pg_class AS c
  JOIN pg_namespace AS n ON n.oid = c.relnamespace
  LEFT JOIN LATERAL (SELECT max(xmin::text::bigint) AS newest FROM pg_attribute
                      WHERE attrelid = c.oid) AS a ON true
 WHERE n.nspname <> 'information_schema' AND n.nspname NOT LIKE 'pg\\_%'
 ORDER BY c.oid
"""

_OTHERS = """
SELECT pid, state, wait_event_type, query FROM pg_stat_activity
 WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'
"""

_WORKERS = """
SELECT pid FROM pg_stat_activity
 WHERE datname = current_database() AND application_name = 'worker'
"""

_PREPARED = "SELECT gid FROM pg_prepared_xacts WHERE database = current_database()"


class Database:
    """One database: its engines, an administrator's connection, and its tables.

    Engines live as long as the process, for making one and its first connection costs more than a
    test may; a ``Twin`` empties its engine's pool at the end of each test.
    """

    def __init__(self, url: URL) -> None:
        self.url = url
        self.patience = 2.0  # seconds that a connection may take to end its transaction
        self._engines: dict[str, Engine | AsyncEngine] = {}
        self._lock = threading.Lock()
        self._admin: Any = None
        self._ddl = create_engine(
            url.set(drivername="postgresql+psycopg"), poolclass=NullPool, future=True
        )
        self._made: tuple[Any, ...] = ()
        self._print: list[Any] = []

    # --- Plain SQL -----------------------------------------------------------------------------

    def sql(self, statement: str, /, **params: Any) -> list[Any]:
        """Run *statement* in its own transaction, on the administrator's connection.

        Parameters are psycopg's: ``%(name)s``; with none given, ``%`` means itself. Rows come
        back as named tuples, equal to plain tuples.
        """
        with self._lock:
            if self._admin is None or self._admin.closed:
                self._admin = psycopg.connect(
                    conninfo(self.url),
                    autocommit=True,
                    row_factory=namedtuple_row,
                    prepare_threshold=None,
                    application_name="admin",
                )
            cursor = self._admin.execute(statement, params or None)
            return cursor.fetchall() if cursor.description else []

    def scalar(self, statement: str, /, **params: Any) -> Any:
        """Return the first column of the only row of *statement*."""
        [row] = self.sql(statement, **params)
        return row[0]

    # --- Engines -------------------------------------------------------------------------------

    def engine(self, driver: Driver) -> Any:
        """Return the shared engine of *driver*; to listen to, take a view: ``execution_options()``.

        SQLAlchemy never forgets that an engine had a listener, and does more for each statement.
        """
        if driver.name not in self._engines:
            self._engines[driver.name] = self.new_engine(driver)
        return self._engines[driver.name]

    def new_engine(self, driver: Driver, *, url: URL | None = None, **options: Any) -> Any:
        """Make an engine of the caller's own; *url* is another way to the same database."""
        make: Any = create_async_engine if driver.is_async else create_engine
        if "poolclass" not in options:
            # Small, but no obstacle for a race of many workers.
            options = {"pool_size": 5, "max_overflow": 60, "pool_timeout": 20} | options
        return make(driver.url(url or self.url), **options)

    # --- Tables --------------------------------------------------------------------------------

    def create(self, *metadatas: MetaData, fresh: bool = False) -> None:
        """Leave the database with exactly the tables of *metadatas*, all empty.

        Tables that the last test left in place are only emptied, which takes two milliseconds.
        They are made anew when a test changed them, analysed them or filled them with megabytes,
        or with *fresh*: for tests of plans and of bloat.
        """
        wanted = tuple((m, frozenset(m.tables)) for m in metadatas)
        if wanted and wanted == self._made and not fresh:
            now = self.sql(_FINGERPRINT)
            if now == self._print and not any(row.is_large for row in now):
                self._empty(now)
                return
        self.reset()
        with self._ddl.begin() as connection:
            for schema in sorted(
                {t.schema for m in metadatas for t in m.tables.values()} - {None}
            ):
                connection.exec_driver_sql(f'CREATE SCHEMA IF NOT EXISTS "{schema}"')
            for metadata in metadatas:
                metadata.create_all(connection, checkfirst=False)
        self._made = wanted
        self._print = self.sql(_FINGERPRINT)

    def reset(self) -> None:
        """Leave the database empty: no table, type, function or schema of any test."""
        self._made = ()
        schemas = self.sql(
            "SELECT nspname FROM pg_namespace"
            " WHERE nspname <> 'information_schema' AND nspname NOT LIKE 'pg\\_%'"
        )
        commands = [
            sql.SQL("SET client_min_messages = warning"),
            *(
                sql.SQL("DROP SCHEMA {} CASCADE").format(sql.Identifier(s.nspname))
                for s in schemas
            ),
            sql.SQL("CREATE SCHEMA public"),
        ]
        self.sql(sql.SQL("; ").join(commands).as_string())

    def _empty(self, relations: list[Any]) -> None:
        """Delete all rows and start all sequences again, in one round trip and transaction."""
        tables = [r.oid for r in relations if r.relkind == "r"]
        names = self.sql("SELECT oid::regclass::text FROM unnest(%(t)s::oid[]) AS oid", t=tables)
        commands = ["SET LOCAL session_replication_role = replica"]  # foreign keys rest
        commands += [f"DELETE FROM {name}" for (name,) in names]
        commands += [
            f"SELECT setval({r.oid}::regclass, 1, false)" for r in relations if r.relkind == "S"
        ]
        self.sql("; ".join(commands))

    # --- Other connections ---------------------------------------------------------------------

    def others(self) -> list[Any]:
        """Return the other connections: pid, state, wait_event_type, query."""
        return [row for row in self.sql(_OTHERS) if row.state is not None]

    def strays(self) -> list[Any]:
        """Return, and end, the transactions that are still open after some patience.

        They are connections (see ``others``) or names of prepared transactions.
        """
        deadline = time.monotonic() + self.patience
        while busy := [row for row in self.others() if row.state != "idle"] + self.sql(_PREPARED):
            if time.monotonic() > deadline:
                self.terminate(*(row.pid for row in busy if hasattr(row, "pid")))
                for row in busy:
                    if hasattr(row, "gid"):
                        self.sql(sql.SQL("ROLLBACK PREPARED {}").format(row.gid).as_string())
                return busy
            time.sleep(0.005)
        return []

    def see_off_workers(self) -> None:
        """Wait until the server has ended the connections of workers that have stopped.

        On a busy machine one may still have to read a claim that was sent in the last moment: it
        would take a task of the next test.
        """
        deadline = time.monotonic() + self.patience
        while pids := [row.pid for row in self.sql(_WORKERS)]:
            if time.monotonic() > deadline:
                self.terminate(*pids)
                return
            time.sleep(0.005)

    def terminate(self, *pids: int) -> None:
        """End the connections with these pids."""
        self.sql("SELECT pg_terminate_backend(pid) FROM unnest(%(p)s::int[]) AS pid", p=list(pids))

    def close(self) -> None:
        """Close what is still open; the engines' pools are empty by now."""
        self._ddl.dispose()
        if self._admin is not None:
            self._admin.close()
