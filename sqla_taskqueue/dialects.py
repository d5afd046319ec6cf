"""What differs between databases: small SQL elements with a form for each.

Statements are written for PostgreSQL. On any other database they refuse to compile with
:class:`~sqla_taskqueue.errors.UnsupportedDialect`, at no cost per call; only what ``create_all``
needs has a form everywhere, so that a host's test suite can create its tables on SQLite.
"""

from __future__ import annotations

import hashlib
from datetime import datetime
from typing import TYPE_CHECKING, Any

from sqlalchemy import JSON, Boolean, DateTime, Table, func
from sqlalchemy.dialects.postgresql import ARRAY, BIT, CITEXT, JSONB
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.elements import ClauseElement
from sqlalchemy.sql.functions import FunctionElement

from .errors import UnsupportedDialect

if TYPE_CHECKING:
    from sqlalchemy import ColumnElement, Insert, Select
    from sqlalchemy.sql.compiler import SQLCompiler

# Nothing selects ``json``: hosts bring codecs of their own for it, and jsonb is typed.
StoredJSON = JSON(none_as_null=True).with_variant(JSONB(none_as_null=True), "postgresql")
"""The type of payloads, results and details."""


CASELESS = CITEXT
"""Text that is equal to other text than itself."""
CUT_BY_CASTS = BIT
"""A type whose array's cast cuts in silence what a column refuses."""


class now(FunctionElement[datetime]):  # noqa: N801 - used like SQLAlchemy's func.now()
    """The time at which the statement began, by the database's clock.

    ``statement_timestamp()`` and nothing else: ``now()`` is the start of the *transaction*, which
    in an old one writes leases that are over already; ``clock_timestamp()`` is volatile and keeps
    a comparison out of the index condition.
    """

    type = DateTime(timezone=True)
    inherit_cache = True


class server_now(FunctionElement[datetime]):  # noqa: N801 - as above
    """The same as a column's server default, which other databases can create too."""

    type = DateTime(timezone=True)
    inherit_cache = True


class postgresql_only(FunctionElement[bool]):  # noqa: N801 - as above
    """Nothing, on PostgreSQL; for statements that have nothing else to refuse elsewhere."""

    type = Boolean()
    inherit_cache = True


@compiles(postgresql_only)
@compiles(now)
def _refuse(element: now | postgresql_only, compiler: SQLCompiler, **_: Any) -> str:
    if compiler.dialect.name == "default":
        return element.__class__.__name__  # str(statement), for people and for label names
    raise UnsupportedDialect(compiler.dialect.name)


@compiles(server_now)
def _current_timestamp(element: server_now, compiler: SQLCompiler, **_: Any) -> str:
    return "CURRENT_TIMESTAMP"


@compiles(postgresql_only, "postgresql")
def _true(element: postgresql_only, compiler: SQLCompiler, **_: Any) -> str:
    return "true"


@compiles(now, "postgresql")
@compiles(server_now, "postgresql")
def _statement_timestamp(element: now, compiler: SQLCompiler, **_: Any) -> str:
    return "statement_timestamp()"


class _DoNothing(ClauseElement):
    """``ON CONFLICT DO NOTHING``."""

    inherit_cache = True
    _traverse_internals = []  # noqa: RUF012 - SQLAlchemy's own form


@compiles(_DoNothing)
def _on_conflict(element: _DoNothing, compiler: SQLCompiler, **_: Any) -> str:
    return "ON CONFLICT DO NOTHING"


def or_nothing(statement: Insert) -> Insert:
    """Return an INSERT that passes over rows which exist already.

    Not the PostgreSQL dialect's own ``insert()``: SQLAlchemy 2.0 does not cache it and would
    compile every call anew.
    """
    # On a statement that nobody else has: the caller has just made it.
    statement._post_values_clause = _DoNothing()  # noqa: SLF001 # pyright: ignore[reportPrivateUsage]
    return statement


def array_of(column: Select[Any], of: Any) -> ColumnElement[Any]:
    """Return ``ARRAY(SELECT …)``: evaluated once, before the statement that compares with it."""
    return func.array(column.scalar_subquery(), type_=ARRAY(of))


_LONGEST_NAME = 63


def short_name(name: str) -> str:
    """Return *name* cut to PostgreSQL's 63 bytes; a hash keeps cut names apart."""
    encoded = name.encode()
    if len(encoded) <= _LONGEST_NAME:
        return name
    digest = hashlib.blake2s(encoded, digest_size=4).hexdigest()
    kept = encoded[: _LONGEST_NAME - len(digest) - 1].decode(errors="ignore")
    return f"{kept}_{digest}"


def channel_of(table: Table) -> str:
    """Return the notification channel of a task table."""
    return short_name(f"sqla_taskqueue:{table.fullname}")
