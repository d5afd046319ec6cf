"""Reading: one task, pages of tasks, histories and counts. A scope may be full, partial or none."""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    ColumnElement,
    Integer,
    Select,
    Text,
    func,
    literal_column,
    select,
    true,
    tuple_,
    union_all,
)
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
    key = parts.model.primary_key
    newest_first = [column.desc() for column in key]
    conditions = [compared[name] == bind(name, Text) for name in filters if name in compared]
    if "after" in filters:
        after = [bind(f"pk_{index}", column.type) for index, column in enumerate(key)]
        conditions.append(tuple_(*key) < tuple_(*after))
    conditions = [*parts.inside(scope), *conditions]
    limit = bind("limit", Integer)
    if _listed(parts, scope):
        # The page of each state is a range of the index; the page is the newest of them all.
        pages = [
            select(*key).where(*conditions, is_state(c.state, state)).order_by(*newest_first)
            for state in states or TaskState
        ]
        every = union_all(*(page.limit(limit) for page in pages)).subquery("tq_pages")
        newest = [every.c[column.key].desc() for column in key]
        picked = parts.once(select(*every.c).order_by(*newest).limit(limit))
        conditions = [*parts.of_key(scope), *parts.among(picked, scope)]
    elif states:
        conditions.append(is_state(c.state, *states))
    query = (
        select(parts.model.cls, *key)
        .where(postgresql_only(), *conditions)
        .order_by(*newest_first)
        .limit(limit)
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
    """Count tasks by state in one statement.

    What is queued or claimed is counted in its own index. The rest is counted in one pass over
    the table; with the index of the class's lists, each state in its range of it, and ended ones
    up to ``tq_counted`` and one more.
    """
    c = parts.c
    count = func.count()
    due = c.run_at <= now()
    queued = (
        select(
            count.label("queued"),
            count.filter(due).label("due"),
            func.min(c.run_at, type_=c.run_at.type).filter(due).label("oldest_due_at"),
        )
        .where(*parts.inside(scope), is_state(c.state, TaskState.QUEUED))
        .subquery("tq_queued")
    )
    claimed = (
        select(
            count.label("claimed"),
            count.filter(c.lease_expires_at <= now()).label("expired"),
        )
        .select_from(parts.table)
        .where(*parts.inside(scope), *parts.leased())
        .subquery("tq_claimed")
    )
    others = [state for state in TaskState if state not in (TaskState.QUEUED, TaskState.CLAIMED)]
    if _listed(parts, scope):
        rest = select(*(_listed_number(parts, scope, state) for state in others))
    else:
        rest = (
            select(*(count.filter(is_state(c.state, state)).label(state) for state in others))
            .select_from(parts.table)
            .where(*parts.inside(scope), is_state(c.state, *others))
        )
    counted = rest.subquery("tq_others")
    by_state = {column.key: column for source in (queued, claimed, counted) for column in source.c}
    return select(
        *(by_state[state] for state in TaskState),
        queued.c.due,
        claimed.c.expired,
        queued.c.oldest_due_at,
    ).select_from(queued.join(claimed, true()).join(counted, true()))


def _listed(parts: Parts, scope: Scope) -> bool:
    """Return whether the index of the class's lists serves this scope."""
    return "list" in parts.model.extra_indexes and len(scope) == len(parts.model.scope)


def _listed_number(parts: Parts, scope: Scope, state: TaskState) -> ColumnElement[int]:
    rows: Select[Any] = (
        select(literal_column("1").label("one"))
        .select_from(parts.table)
        .where(*parts.inside(scope), is_state(parts.c.state, state))
    )
    if state in ENDED:
        rows = rows.limit(bind("counted", Integer))
    return select(func.count()).select_from(rows.subquery()).scalar_subquery().label(state)
