"""Indexes and checks of a task table, and the host's declarations about it.

All of it hangs on the mapped ``Table``, whatever its name, schema, key and naming convention.
Index names are made from the table's name and kept by every naming convention; checks are named
without the table, so that the host's convention weaves its own names around them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn, cast

from sqlalchemy import (
    CheckConstraint,
    Column,
    ColumnElement,
    Index,
    Table,
    and_,
    case,
    literal_column,
)
from sqlalchemy.sql.naming import conv

from ._declarative import misfit
from .dialects import short_name
from .errors import UnsupportedModel
from .states import LIVE, TaskState

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from sqlalchemy.orm import Mapper

EXTRA_INDEXES = ("list", "finished")
"""Indexes that a class asks for in ``__extra_indexes__``."""


def is_state(column: ColumnElement[str], *states: TaskState) -> ColumnElement[bool]:
    """Compare a state column with literal states.

    Never binds: partial indexes and ON CONFLICT cannot be matched under a generic plan.
    """
    literals: list[ColumnElement[Any]] = [literal_column(f"'{state}'") for state in states]
    return column == literals[0] if len(literals) == 1 else column.in_(literals)


def mapped_columns(
    mapper: Mapper[Any], names: Iterable[str], attribute: str
) -> dict[str, Column[Any]]:
    """Return the columns of the mapped attributes that the class names in *attribute*.

    Raises:
        UnsupportedModel: A name is not a NOT NULL column of the class's own table.
    """
    if not isinstance(names, tuple | list):
        _refuse(mapper, f"{attribute} must be a tuple of names, not {names!r}")
    found: dict[str, Column[Any]] = {}
    for name in names:
        # mapper.columns, not mapper.attrs: that would configure mappers while classes are made.
        column = mapper.columns.get(name) if isinstance(name, str) else None
        if not isinstance(column, Column) or column.table is not mapper.local_table:
            known = ", ".join(sorted(mapper.columns.keys()))
            _refuse(mapper, f"{attribute} names {name!r}, which is no column of it ({known})")
        if column.nullable:
            _refuse(mapper, f"{attribute} names {name!r}, which may be NULL; declare it NOT NULL")
        found[name] = column
    return found


def table_of(mapper: Mapper[Any]) -> Table | None:
    """Return the table a class is mapped to, or None if it is mapped to something else."""
    table: Any = mapper.local_table
    return cast("Table", table) if isinstance(table, Table) else None


def key_scope_names(cls: type[Any]) -> tuple[str, ...]:
    """Return the columns within which a key is unique: by default the scope."""
    names: tuple[str, ...] | None = getattr(cls, "__key_scope__", None)
    return tuple(cls.__scope__) if names is None else names


def furnish(
    mapper: Mapper[Any], cls: type[Any], library_columns: Mapping[str, Column[Any]]
) -> None:
    """Check a task class that was just mapped, and add its indexes and checks.

    Raises:
        UnsupportedModel: The class cannot carry a queue; the message names the feature.
    """
    if mapper.inherits is not None:
        if hasattr(mapper.inherits.class_, "__scope__"):
            # A child of a task class shares its parent's columns; Queue(child) refuses it.
            return
        _refuse(
            mapper,
            "joined-table and single-table inheritance: the task columns must be on the base "
            f"class, and {mapper.inherits.class_.__name__} has none",
        )
    table = table_of(mapper)
    if table is None:
        _refuse(mapper, f"it is mapped to a {type(mapper.selectable).__name__}, not to a table")
    missing = [
        name for name in library_columns if name not in mapper.columns or name not in table.c
    ]
    if missing:
        _refuse(mapper, f"its __table__ lacks the columns {', '.join(missing)}")
    for name, ours in library_columns.items():
        if problem := misfit(name, table.c[name], ours):
            _refuse(mapper, f"its column {name} {problem}")
    scope: dict[str, Column[Any]] = mapped_columns(mapper, cls.__scope__, "__scope__")
    if clash := scope.keys() & set(library_columns):
        _refuse(mapper, f"__scope__ names the queue's own columns {', '.join(sorted(clash))}")
    key_scope = mapped_columns(mapper, key_scope_names(cls), "__key_scope__")
    if outside := key_scope.keys() - scope.keys() - {"queue"}:
        _refuse(
            mapper,
            f"__key_scope__ names {', '.join(sorted(outside))}; only scope columns and "
            "'queue' can narrow a key",
        )
    extra = cls.__extra_indexes__
    if not isinstance(extra, tuple | list) or any(name not in EXTRA_INDEXES for name in extra):
        known = ", ".join(map(repr, EXTRA_INDEXES))
        _refuse(mapper, f"__extra_indexes__ must be a tuple with some of {known}, not {extra!r}")
    _add_indexes(table, tuple(scope.values()), tuple(key_scope.values()), extra)
    _add_checks(table)


def _refuse(mapper: Mapper[Any], problem: str) -> NoReturn:
    message = f"{mapper.class_.__name__} cannot carry a task queue: {problem}"
    raise UnsupportedModel(message)


def _add_indexes(
    table: Table,
    scope: tuple[Column[Any], ...],
    key_scope: tuple[Column[Any], ...],
    extra: Iterable[str],
) -> None:
    c = table.c
    primary_key = [column for column in table.primary_key if column not in scope]
    _index(
        table,
        "claim",
        [*scope, c.queue, c.priority, c.run_at, *primary_key],
        where=is_state(c.state, TaskState.QUEUED),
    )
    _index(table, "key", [*key_scope, c.key], where=c.key.is_not(None), unique=True)
    _index(
        table,
        "unique",
        [*scope, c.queue, c.unique_key],
        where=and_(c.unique_key.is_not(None), is_state(c.state, *LIVE)),
        unique=True,
    )
    # Not WHERE state = 'claimed': the planner, whose statistics were taken while nothing was
    # claimed, then believes the index empty and finishes tasks by walking all of it.
    _index(table, "lease", [c.claimed_at], where=c.lease_token.is_not(None))
    if "list" in extra:
        # The state leads: else a planner without statistics takes it for whatever names a queue.
        _index(table, "list", [c.state, *scope, c.queue, *primary_key])
    if "finished" in extra:
        _index(table, "finished", [c.finished_at], where=c.finished_at.is_not(None))


def _index(
    table: Table,
    suffix: str,
    columns: list[Column[Any]],
    *,
    where: ColumnElement[bool] | None = None,
    unique: bool = False,
) -> None:
    # One word after the table's name: two tables never make the same name of two words.
    name = conv(short_name(f"ix_{table.name}_{suffix}"))
    if any(index.name == name for index in table.indexes):
        return  # a table that was reflected has it already
    Index(name, *columns, unique=unique, postgresql_where=where, sqlite_where=where)


def _add_checks(table: Table) -> None:
    c = table.c
    _check(table, "taskqueue_state_known", is_state(c.state, *TaskState))
    # A claim whose lease has no end, or no beginning, would never be taken back.
    lease = (c.lease_token, c.lease_expires_at, c.heartbeat_at, c.claimed_at)
    _check(
        table,
        "taskqueue_lease_claimed",
        case(
            (is_state(c.state, TaskState.CLAIMED), and_(*(of.is_not(None) for of in lease))),
            else_=c.lease_token.is_(None),
        ),
    )


def _check(table: Table, name: str, condition: ColumnElement[bool]) -> None:
    existing = {str(constraint.name) for constraint in table.constraints}
    constraint = CheckConstraint(condition, name=name)
    table.append_constraint(constraint)
    # Now the host's convention has woven its name, and counted characters where PostgreSQL
    # counts bytes.
    woven = str(constraint.name)
    if woven in existing:
        table.constraints.remove(constraint)  # a table that was reflected has it already
    elif short_name(woven) != woven:
        constraint.name = conv(short_name(woven))
