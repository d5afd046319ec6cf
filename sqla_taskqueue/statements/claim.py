"""Claiming: the next tasks of a queue, or one that the caller names.

The next tasks are found *lane by lane*: the distinct priorities are walked by a loose index scan
and each is joined laterally with a locking, limited scan of its own range of the claim index. A
plain ordered scan walks every task due later before it reaches the next priority (120 ms beside
a million of them on PostgreSQL 15, against half a millisecond).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from sqlalchemy import (
    CTE,
    ColumnElement,
    FromClause,
    Integer,
    Select,
    Text,
    Uuid,
    case,
    select,
    true,
)

from .._schema import is_state
from ..dialects import now
from ..states import EventType, TaskState
from ._parts import ONE, Parts, bind, lease_end, state

_POSITION = "tq_position"

Begin = Callable[[FromClause, FromClause], list[ColumnElement[bool]]]
Found = Literal["queued", "held", "expired"]
"""How a named task was found: due, held by the claimer itself, or held under an ended lease."""


def claim(parts: Parts) -> Any:
    """Claim up to ``tq_limit`` tasks; returns entities, their columns and their order."""
    picked = parts.once(next_tasks(parts, lanes_of(parts)))
    conditions, position = parts.match(picked)
    statement = parts.set(
        taken(parts.c.attempt + ONE),
        *parts.entity(),
        position.label(_POSITION),
    ).where(*parts.inside(), *conditions)
    statement = statement.options(*parts.model.unjoined)
    if parts.model.events is not None:
        statement = statement.add_cte(parts.recorded(picked, EventType.CLAIMED, counted=ONE))
    return statement


def next_tasks(
    parts: Parts, lanes: FromClause, begin: Begin = lambda _task, _lane: []
) -> Select[Any]:
    """Return the query that locks up to ``tq_limit`` due tasks, lane by lane.

    Args:
        parts: The building blocks.
        lanes: Priorities in ascending order.
        begin: Where to begin in each lane: a condition on a candidate and its lane.
    """
    task = parts.table.alias("tq_candidate")
    limit = bind("limit", Integer)
    key = [task.c[column.key] for column in parts.model.free_key]
    lane = (
        parts.locking(
            select(*parts.key_and_counters(task))
            .where(
                *parts.inside(of=task),
                is_state(task.c.state, TaskState.QUEUED),
                task.c.priority == lanes.c.priority,
                task.c.run_at <= now(),
                *begin(task, lanes),
            )
            .order_by(task.c.run_at, *key)
            .limit(limit),
            skip=True,
        )
    ).lateral("tq_lane")
    # Only a nested loop can run a lateral join: lanes come in ascending order, and the limit
    # stops the scan, so that no more rows are locked than taken.
    return select(*lane.c).select_from(lanes.join(lane, true())).limit(limit)


def lanes_of(parts: Parts) -> CTE:
    """Return the priorities that have queued tasks, in ascending order."""

    def lowest(of: Any, *more: ColumnElement[bool]) -> Select[Any]:
        return (
            select(of.c.priority)
            .where(*parts.inside(of=of), is_state(of.c.state, TaskState.QUEUED), *more)
            .order_by(of.c.priority)
            .limit(ONE)
        )

    lanes = lowest(parts.table.alias("tq_first")).cte("tq_lanes", recursive=True)
    following = parts.table.alias("tq_following")
    return lanes.union_all(
        select(lowest(following, following.c.priority > lanes.c.priority).scalar_subquery()).where(
            lanes.c.priority.is_not(None)
        )
    )


def taken(attempt: ColumnElement[int]) -> dict[str, Any]:
    """Return what a claim writes."""
    return {
        "state": state(TaskState.CLAIMED),
        "attempt": attempt,
        "lease_token": bind("token", Uuid),
        "lease_expires_at": lease_end(),
        "heartbeat_at": now(),
        "claimed_at": now(),
        "claimed_by": bind("worker", Text),
        "claimed_session": bind("session", Text),
    }


def take(parts: Parts, found: Found) -> Any:
    """Claim the one task that ``look`` has just judged, unless it has changed since.

    What was found is demanded again: in a transaction the row is locked and cannot change, in
    autocommit it can.
    """
    c = parts.c
    renew = found == "held"
    where = [
        *parts.inside(),
        *parts.named("id"),
        *_still(parts, found),
        c.attempt == bind("seen_attempt", Integer),
        c.round == bind("seen_round", Integer),
    ]
    attempt = c.attempt if renew else c.attempt + ONE
    statement = parts.set(taken(attempt), *parts.entity())
    statement = statement.options(*parts.model.unjoined)
    if parts.model.events is None:
        return statement.where(*where)
    query: Select[Any] = select(*parts.key_and_counters()).where(*where)
    picked = parts.once(parts.locking(query, skip=False))
    event = EventType.RENEWED if renew else EventType.CLAIMED
    return statement.where(*parts.inside(), *parts.among(picked)).add_cte(
        parts.recorded(picked, event, counted=None if renew else ONE)
    )


def _still(parts: Parts, found: Found) -> list[ColumnElement[bool]]:
    """Return the conditions of a row that was found so; none that a partial index could serve.

    The row is found by its key. A planner without good statistics would rather walk all that is
    queued or claimed.
    """
    c = parts.c
    if found == "queued":
        return [case((is_state(c.state, TaskState.QUEUED), c.run_at)) <= now()]
    same_claim = parts.token_held == bind("seen_token", Uuid)
    return [same_claim] if found == "held" else [same_claim, c.lease_expires_at <= now()]
