"""What differs between database drivers, read off whatever exception or connection comes.

Exceptions may be SQLAlchemy's, the driver's own (some hosts unwrap them), or asyncpg's beneath
the adapter: the facts are looked for along the whole chain.
"""

from __future__ import annotations

import asyncio
import os
import re
import socket
from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from sqlalchemy import Connection

UNIQUE_VIOLATION = "23505"


def _chain(error: BaseException) -> Iterator[Any]:
    seen: set[int] = set()
    pending: list[BaseException | None] = [error]
    while pending:
        current = pending.pop()
        if current is None or id(current) in seen:
            continue
        seen.add(id(current))
        yield current
        # The context too: a host that raises an error from itself overwrites its cause.
        pending += [current.__context__, getattr(current, "orig", None), current.__cause__]


_REFUSALS = (
    (re.compile('database ".*" does not exist'), "3D000"),
    (re.compile('role ".*" does not exist|no pg_hba.conf entry'), "28000"),
    (re.compile("password authentication failed|no password supplied"), "28P01"),
    (re.compile("permission denied for database"), "42501"),
)
"""libpq keeps the SQLSTATE of a connection that was refused to itself: its text has to do, where
the server speaks English."""


def sqlstate(error: BaseException) -> str | None:
    """Return the SQLSTATE of a database error, or None if there is none."""
    for one in _chain(error):
        # psycopg and asyncpg say sqlstate, psycopg2 says pgcode.
        state = getattr(one, "sqlstate", None) or getattr(one, "pgcode", None)
        if isinstance(state, str):
            return state
    words = str(error)
    if "connection" in words:
        return next((state for pattern, state in _REFUSALS if pattern.search(words)), None)
    return None


def constraint_name(error: BaseException) -> str | None:
    """Return the name of the constraint or unique index that a database error reports."""
    return _reported(error, "constraint_name")


def schema_name(error: BaseException) -> str | None:
    """Return the name of the schema that a database error reports."""
    return _reported(error, "schema_name")


def _reported(error: BaseException, what: str) -> str | None:
    for one in _chain(error):
        # psycopg and psycopg2 keep it in diag, asyncpg on the exception.
        name = getattr(getattr(one, "diag", one), what, None)
        if isinstance(name, str):
            return name
    return None


def in_autocommit(connection: Connection) -> bool:
    """Tell whether each statement on *connection* commits by itself."""
    # All supported drivers, and SQLAlchemy's adapters of the async ones, have this attribute.
    return bool(getattr(connection.connection.dbapi_connection, "autocommit", False))


# --- Connections that the worker holds ----------------------------------------------------------


def driver_connection(connection: Connection) -> Any:
    """Return the driver's own connection beneath SQLAlchemy's."""
    return connection.connection.driver_connection


def named_pid(driver: Any) -> int:
    """Return the pid of the server process as it was named when the connection was made.

    A pooler makes one up, for cancel requests have to come to itself. So a connection whose
    ``pg_backend_pid()`` is another one goes through a pooler.
    """
    if hasattr(driver, "get_server_pid"):  # asyncpg
        return int(driver.get_server_pid())
    return int(driver.info.backend_pid)


def sever(driver: Any) -> None:
    """Break a connection off without a word to the server: whatever waits for it fails at once.

    From any thread for libpq's drivers, from the connection's loop for asyncpg.
    """
    if hasattr(driver, "terminate"):  # asyncpg
        driver.terminate()
        return
    with suppress(Exception), socket.socket(fileno=os.dup(driver.fileno())) as line:
        # The descriptor stays open: its owner finds the end of the stream and closes it.
        line.shutdown(socket.SHUT_RDWR)


class Hearing:
    """Notifications as they arrive on a connection that nothing else uses meanwhile.

    Args:
        driver: The driver's connection.
        heard: Called in the event loop with each payload.
        lost: Called in the event loop once the connection is gone.
    """

    def __init__(
        self, driver: Any, heard: Callable[[str], object], lost: Callable[[], object]
    ) -> None:
        self._driver = driver
        self._heard = heard
        self._lost = lost
        self._by_itself = hasattr(driver, "add_listener")  # asyncpg
        self._reading: int | None = None

    async def start(self, channels: Iterable[str]) -> None:
        """Begin. On libpq's drivers, LISTEN has been run."""
        if self._by_itself:
            self._driver.add_termination_listener(self._on_termination)
            for channel in channels:
                await self._driver.add_listener(channel, self._on_notification)
            return
        if hasattr(self._driver, "add_notify_handler"):  # psycopg, for what comes with an answer
            self._driver.add_notify_handler(self._on_notify)
        self.resume()

    def resume(self) -> None:
        """Hear again, after the connection was used for something else."""
        if not self._by_itself:
            self._reading = reading = int(self._driver.fileno())
            asyncio.get_running_loop().add_reader(reading, self._read)
            self._read()

    def pause(self) -> None:
        """Stop hearing: the connection is wanted for something else, or will be closed."""
        if self._reading is not None:
            asyncio.get_running_loop().remove_reader(self._reading)
            self._reading = None

    def _on_termination(self, _: Any) -> None:
        self._lost()

    def _on_notification(self, _: Any, pid: int, channel: str, payload: str) -> None:  # noqa: ARG002
        self._heard(payload)

    def _on_notify(self, notice: Any) -> None:
        self._heard(notice.payload)

    def _read(self) -> None:
        try:
            payloads = _arrived(self._driver)
        except Exception:  # noqa: BLE001 - whatever a driver raises when its connection is gone
            self.pause()
            self._lost()
            return
        for payload in payloads:
            self._heard(payload)


def _arrived(driver: Any) -> list[str]:
    """Return the payloads that have arrived on a connection of a libpq driver."""
    if hasattr(driver, "pgconn"):  # psycopg
        driver.pgconn.consume_input()
        return [notice.extra.decode() for notice in iter(driver.pgconn.notifies, None)]
    driver.poll()
    payloads = [notice.payload for notice in driver.notifies]
    driver.notifies.clear()
    return payloads
