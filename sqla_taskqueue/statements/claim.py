"""Claiming: the next tasks of a queue, or one that the caller names."""

from __future__ import annotations

from typing import Any, Literal

from sqlalchemy import ColumnElement, Integer, Select, Uuid, case, select

from .._schema import is_state
from ..dialects import now
from ..states import EventType, TaskState
from ._lanes import lanes_of, next_tasks, taken
from ._parts import ONE, Parts, bind

_POSITION = "tq_position"

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
