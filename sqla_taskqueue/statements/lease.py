"""Keeping a lease, and taking back those that ran out."""

from __future__ import annotations

from typing import Any, Literal

from sqlalchemy import (
    ColumnElement,
    DateTime,
    Float,
    FromClause,
    Integer,
    Interval,
    Select,
    Uuid,
    and_,
    cast,
    extract,
    func,
    literal_column,
    not_,
    select,
)
from sqlalchemy.dialects.postgresql import JSONB

from ..dialects import now
from ..states import EventType, TaskState
from ._parts import NO_HOLDER, NO_LEASE, ONE, By, Fence, Parts, bind, renewed_end, state

LOOKED_AT = (
    "state",
    "attempt",
    "max_attempts",
    "round",
    "run_at",
    "lease_token",
    "ended_token",
    "claimed_by",
    "claimed_session",
)
"""Columns that a decision about one task needs."""

Expiry = Literal["lease", "heartbeat"]
"""Whether a claim is given up by its lease, or by the age of its last heartbeat."""


def heartbeat(parts: Parts, by: By, fence: Fence) -> Any:
    """Extend the lease; after its end too, as long as nobody took the task."""
    return parts.write(
        # updated_at stays: a heartbeat is no change of the task.
        {
            "lease_expires_at": renewed_end(parts),
            "heartbeat_at": now(),
            "updated_at": parts.c.updated_at,
        },
        where=[*parts.inside(), *parts.named(by), parts.fenced(fence)],
        event=EventType.RENEWED if parts.model.is_board else None,
    )


def _expired(parts: Parts, expiry: Expiry) -> ColumnElement[bool]:
    c = parts.c
    if expiry == "lease":
        return c.lease_expires_at <= now()
    return c.heartbeat_at <= now() - bind("stale_after", Interval)


def no_attempt_left(parts: Parts) -> ColumnElement[bool]:
    """Return whether a task has used up its attempts; never NULL."""
    limited = parts.c.max_attempts.is_not(None)
    return and_(limited, parts.c.attempt >= parts.c.max_attempts)


def reclaim(
    parts: Parts,
    scope: tuple[str, ...],
    expiry: Expiry,
    exhausted: bool,  # noqa: FBT001
    since: bool = False,  # noqa: FBT001, FBT002
) -> Any:
    """Take back up to ``tq_limit`` expired claims: to the queue, or to their end if *exhausted*.

    With *since*, of those only that were made at ``tq_since`` or later: the index entries of older
    claims, which a held snapshot may keep from vacuum, are not walked.

    The condition stands in the UPDATE again: a task that was finished or claimed afresh between
    the look and the write stays as it is.
    """
    c = parts.c
    expired = [
        _expired(parts, expiry),
        no_attempt_left(parts) if exhausted else not_(no_attempt_left(parts)),
    ]
    wanted = parts.beside(scope, c.lease_token.is_not(None), *expired)
    query = (
        select(*parts.key_and_counters(), c.claimed_by, c.claimed_session)
        .where(*parts.leased(), *_made_since(parts, since=since), *wanted)
        .order_by(c.claimed_at)
        .limit(bind("limit", Integer))
    )
    return _give_up(parts, query, wanted, scope, exhausted=exhausted, skip=True)


def _made_since(parts: Parts, *, since: bool) -> list[ColumnElement[bool]]:
    return [parts.c.claimed_at >= bind("since", DateTime(timezone=True))] if since else []


def oldest(parts: Parts, scope: tuple[str, ...], since: bool) -> Any:  # noqa: FBT001
    """Read when the oldest live claim was made, less a minute; without one, by the clock."""
    c = parts.c
    first = (
        select(c.claimed_at)
        .where(
            *parts.leased(),
            *_made_since(parts, since=since),
            *parts.beside(scope, c.lease_token.is_not(None)),
        )
        .order_by(c.claimed_at)
        .limit(ONE)
        .scalar_subquery()
    )
    minute = literal_column("interval '1 minute'", Interval())
    return select((func.coalesce(first, now()) - minute).label("tq_since"))


def give_up(parts: Parts) -> Any:
    """End the one named task whose lease ran out on its last attempt."""
    c = parts.c
    conditions = [
        *parts.inside(),
        *parts.named("id"),
        parts.token_held == bind("seen_token", Uuid),
        _expired(parts, "lease"),
        no_attempt_left(parts),
    ]
    query: Select[Any] = select(*parts.key_and_counters(), c.claimed_by, c.claimed_session).where(
        *conditions
    )
    scope = tuple(parts.model.scope)
    return _give_up(parts, query, conditions, scope, exhausted=True, skip=False)


def _give_up(
    parts: Parts,
    query: Select[Any],
    conditions: list[ColumnElement[bool]],
    scope: tuple[str, ...],
    *,
    exhausted: bool,
    skip: bool,
) -> Any:
    picked = parts.once(parts.locking(query, skip=skip))
    if exhausted:
        values = {
            **NO_LEASE,
            "state": state(TaskState.FAILED),
            "error": literal_column(
                "'lease expired on the last attempt; last held by '", parts.c.error.type
            )
            + func.coalesce(parts.c.claimed_by, literal_column("'nobody'")),
            "finished_at": now(),
        }
    else:
        values = {
            **NO_HOLDER,
            "state": state(TaskState.QUEUED),
        }
    statement = parts.set(values).where(*conditions, *parts.among(picked, scope))
    if parts.model.events is not None:
        event = EventType.FAILED if exhausted else EventType.RECLAIMED
        statement = statement.add_cte(parts.recorded(picked, event, detail=_lost_by))
    return statement


def _lost_by(rows: FromClause) -> ColumnElement[Any]:
    """Return the detail of a reclaim: who held the lease that ran out."""
    return func.jsonb_build_object(
        literal_column("'reason'"),
        literal_column("'lease expired'"),
        literal_column("'worker'"),
        rows.c.claimed_by,
        literal_column("'session'"),
        rows.c.claimed_session,
        type_=JSONB,
    )


def look(parts: Parts, by: By, lock: bool) -> Any:  # noqa: FBT001 - one of two variants
    """Read one task as it is: its key, and the facts that a decision or a refusal needs.

    Times are compared by the database, whose clock is the only one.
    """
    c = parts.c
    query: Select[Any] = select(
        *parts.model.primary_key,
        *(c[name] for name in LOOKED_AT),
        *remaining_columns(parts),
    ).where(*parts.inside(), *parts.named(by))
    return parts.locking(query, skip=False) if lock else query


def remaining_columns(parts: Parts) -> list[ColumnElement[Any]]:
    """Return how long a task waits, and how long its lease runs on, in seconds."""
    return [
        seconds_until(parts.c.run_at).label("tq_due_in"),
        seconds_until(parts.c.lease_expires_at).label("tq_remaining"),
    ]


def seconds_until(moment: ColumnElement[Any]) -> ColumnElement[float]:
    """Return how long it is until *moment*, in seconds; negative when it has passed."""
    return cast(extract("epoch", moment - now()), Float(53))
