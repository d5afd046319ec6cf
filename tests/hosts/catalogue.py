"""What the database's own catalogue says about a task table: indexes, checks and other objects."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from sqla_taskqueue import TaskState

if TYPE_CHECKING:
    from sqlalchemy import Table

    from tests.database import Database

_INDEXES = """
SELECT i.relname AS name, x.indisunique AS is_unique, pg_get_expr(x.indpred, x.indrelid) AS predicate,
       ARRAY(SELECT a.attname::text FROM unnest(x.indkey) WITH ORDINALITY AS k (attnum, n)
               JOIN pg_attribute AS a ON a.attrelid = x.indrelid AND a.attnum = k.attnum
              ORDER BY k.n) AS columns
  FROM pg_index AS x
  JOIN pg_class AS i ON i.oid = x.indexrelid
  JOIN pg_class AS t ON t.oid = x.indrelid
  JOIN pg_namespace AS n ON n.oid = t.relnamespace
 WHERE n.nspname = %(schema)s AND t.relname = %(table)s AND NOT x.indisprimary
"""

_CONSTRAINTS = """
SELECT c.conname AS name, c.contype::text AS kind, pg_get_constraintdef(c.oid) AS definition
  FROM pg_constraint AS c
  JOIN pg_class AS t ON t.oid = c.conrelid
  JOIN pg_namespace AS n ON n.oid = t.relnamespace
 WHERE n.nspname = %(schema)s AND t.relname = %(table)s AND c.contype <> 'n'
"""

_OBJECTS = """
SELECT c.relkind::text AS kind, c.relname AS name FROM pg_class AS c
  JOIN pg_namespace AS n ON n.oid = c.relnamespace
 WHERE n.nspname <> 'information_schema' AND n.nspname NOT LIKE 'pg\\_%'
 UNION ALL
SELECT 'type', t.typname FROM pg_type AS t
  JOIN pg_namespace AS n ON n.oid = t.typnamespace
 WHERE n.nspname <> 'information_schema' AND n.nspname NOT LIKE 'pg\\_%'
"""


class Found(NamedTuple):
    """An index, as the catalogue has it."""

    is_unique: bool
    columns: tuple[str, ...]
    predicate: str | None


def _states(*states: TaskState) -> str:
    return "(state = ANY (ARRAY[{}]))".format(", ".join(f"'{state}'::text" for state in states))


def indexes(database: Database, table: str, schema: str = "public") -> dict[str, Found]:
    """Return the indexes of a table by name, without its primary key."""
    rows = database.sql(_INDEXES, table=table, schema=schema)
    return {row.name: Found(row.is_unique, tuple(row.columns), row.predicate) for row in rows}


def constraints(
    database: Database, table: str, schema: str = "public", kind: str = "c"
) -> dict[str, str]:
    """Return the definitions of a table's constraints of one kind (CHECKs) by name."""
    rows = database.sql(_CONSTRAINTS, table=table, schema=schema)
    return {row.name: " ".join(row.definition.split()) for row in rows if row.kind == kind}


def objects(database: Database) -> list[tuple[str, str]]:
    """Return every relation and type that users made: tables, indexes, sequences, enums."""
    return [tuple(row) for row in database.sql(_OBJECTS)]


def expected_indexes(
    scope: tuple[str, ...] = (),
    key_scope: tuple[str, ...] | None = None,
    key: tuple[str, ...] = ("id",),
) -> dict[str, Found]:
    """Return the four indexes of a task table, by the end of their names."""
    free_key = tuple(name for name in key if name not in scope)
    within = scope if key_scope is None else key_scope
    live = _states(TaskState.BLOCKED, TaskState.QUEUED, TaskState.CLAIMED)
    return {
        "claim": Found(
            is_unique=False,
            columns=(*scope, "queue", "priority", "run_at", *free_key),
            predicate="(state = 'queued'::text)",
        ),
        "key": Found(is_unique=True, columns=(*within, "key"), predicate="(key IS NOT NULL)"),
        "unique_key": Found(
            is_unique=True,
            columns=(*scope, "queue", "unique_key"),
            predicate=f"((unique_key IS NOT NULL) AND {live})",
        ),
        "lease": Found(
            is_unique=False, columns=("claimed_at",), predicate="(lease_token IS NOT NULL)"
        ),
    }


EXPECTED_CHECKS = {
    f"CHECK ({_states(*TaskState)})",
    (
        "CHECK ( CASE WHEN (state = 'claimed'::text) THEN ((lease_token IS NOT NULL) AND"
        " (lease_expires_at IS NOT NULL) AND (heartbeat_at IS NOT NULL) AND (claimed_at IS NOT NULL))"
        " ELSE (lease_token IS NULL) END)"
    ),
}


def assert_furnished(
    database: Database,
    model: type,
    schema: str = "public",
    *,
    besides: tuple[str, ...] = (),
    **expected: Any,
) -> None:
    """Assert that a class's table has our four indexes and both checks, and no index but those.

    Args:
        database: Where the table was created.
        model: The task class.
        schema: Where the table is.
        besides: Names of the host's own indexes.
        expected: Scope, key scope and key, as for ``expected_indexes``.
    """
    table: Table = model.__table__
    found = indexes(database, table.name, schema)
    own = {name: index for name, index in found.items() if name not in besides}
    assert len(found) - len(own) == len(besides), f"the host's own indexes are gone: {found}"
    wanted = {"key": tuple(column.name for column in table.primary_key)} | expected
    assert sorted(own.values(), key=str) == sorted(expected_indexes(**wanted).values(), key=str)
    assert max(len(name.encode()) for name in found) <= 63
    assert set(constraints(database, table.name, schema).values()) >= EXPECTED_CHECKS
    # What was created is what the metadata says: Alembic will find nothing to do.
    ours = [i.name for i in table.indexes if i.dialect_options["postgresql"]["where"] is not None]
    assert sorted(ours) == sorted(own)
