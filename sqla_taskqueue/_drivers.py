"""What differs between database drivers, read off whatever exception or connection comes.

Exceptions may be SQLAlchemy's, the driver's own (some hosts unwrap them), or asyncpg's beneath
the adapter: the facts are looked for along the whole chain.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

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


def sqlstate(error: BaseException) -> str | None:
    """Return the SQLSTATE of a database error, or None if there is none."""
    for one in _chain(error):
        # psycopg and asyncpg say sqlstate, psycopg2 says pgcode.
        state = getattr(one, "sqlstate", None) or getattr(one, "pgcode", None)
        if isinstance(state, str):
            return state
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
