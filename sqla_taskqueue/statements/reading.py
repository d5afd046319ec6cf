"""Reading: one task, pages of tasks, histories and counts. A scope may be full, partial or none."""

from __future__ import annotations

from typing import Any

from sqlalchemy import ColumnElement, DateTime, Integer, Text, func, literal_column, select, tuple_
from sqlalchemy.orm import defer

from .._schema import is_state
from ..dialects import now, postgresql_only
from ..states import ENDED, TaskState
from ._parts import By, Parts, bind

Scope = tuple[str, ...]

FILTERS = ("name", "worker", "session", "created_by")
"""What ``find`` compares by equality, beside the states and the page's beginning."""


def get(parts: Parts, scope: Scope, by: By) -> Any:
    """Read one task."""
    return select(parts.model.cls).where(postgresql_only(), *parts.inside(scope), *parts.named(by))


def find(
    parts: Parts,
    scope: Scope,
    states: tuple[TaskState, ...],
    filters: tuple[str, ...],
    content: bool,  # noqa: FBT001 - one of two variants
) -> Any:
    """Read one page of tasks, newest key first, with the key for the next page."""
    c = parts.c
    compared = {
        "name": c.name,
        "worker": c.claimed_by,
        "session": c.claimed_session,
        "created_by": c.created_by,
    }
    conditions = [postgresql_only(), *parts.inside(scope)]
    if states:
        conditions.append(is_state(c.state, *states))
    conditions += [compared[name] == bind(name, Text) for name in filters if name in compared]
    key = parts.model.primary_key
    if "after" in filters:
        after = [bind(f"pk_{index}", column.type) for index, column in enumerate(key)]
        conditions.append(tuple_(*key) < tuple_(*after))
    query = (
        select(parts.model.cls, *key)
        .where(*conditions)
        .order_by(*(column.desc() for column in key))
        .limit(bind("limit", Integer))
    )
    if content:
        return query
    large = [parts.model.mapper.attrs[name] for name in ("payload", "result")]
    return query.options(*(defer(prop.class_attribute) for prop in large))


def history(parts: Parts) -> Any:
    """Read the events of one task, in order."""
    events = parts.model.events
    assert events is not None
    where = [
        column == bind(f"pk_{index}", column.type) for index, column in enumerate(events.task_key)
    ]
    table = events.table
    return select(events.cls).where(*where).order_by(table.c.created_at, table.c.id)


def stats(parts: Parts, scope: Scope) -> Any:
    """Count tasks by state in one statement; ended ones up to ``tq_counted`` and one more."""
    c = parts.c

    def number(*conditions: ColumnElement[bool], capped: bool = False) -> ColumnElement[int]:
        if not capped:
            counted = select(func.count()).select_from(parts.table)
            return counted.where(*parts.inside(scope), *conditions).scalar_subquery()
        rows = (
            select(literal_column("1").label("one"))
            .select_from(parts.table)
            .where(*parts.inside(scope), *conditions)
            .limit(bind("counted", Integer))
            .subquery()
        )
        return select(func.count()).select_from(rows).scalar_subquery()

    due = [is_state(c.state, TaskState.QUEUED), c.run_at <= now()]
    oldest = select(func.min(c.run_at, type_=DateTime(timezone=True)))
    return select(
        *(
            number(is_state(c.state, state), capped=state in ENDED).label(state.value)
            for state in TaskState
        ),
        number(*due).label("due"),
        number(c.lease_token.is_not(None), c.lease_expires_at <= now()).label("expired"),
        oldest.where(*parts.inside(scope), *due).scalar_subquery().label("oldest_due_at"),
    )
