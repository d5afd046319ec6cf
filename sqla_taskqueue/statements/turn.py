"""The worker's statements: end these tasks and claim those, in one round trip.

A turn writes whatever became of tasks that the worker had, each fenced by its token, and claims
the next ones of one queue and scope. The rows of the two parts never meet: the first finds what
was claimed when the statement began, the second what was queued.

Claims go lane by lane (see :mod:`._lanes`), and in each lane from a *floor*: the place where the
worker's last claim ended. Index entries of finished tasks that a held snapshot keeps from vacuum
lie below it, and are not walked again.
"""

from __future__ import annotations

from typing import Any, Literal

from sqlalchemy import (
    CTE,
    ColumnElement,
    FromClause,
    Integer,
    Interval,
    Select,
    Text,
    Uuid,
    and_,
    case,
    func,
    literal_column,
    select,
    true,
    tuple_,
    update,
)
from sqlalchemy.dialects.postgresql import ARRAY

from .._schema import is_state
from ..dialects import now
from ..states import EventType, TaskState
from ._lanes import lanes_of, next_tasks, taken
from ._parts import (
    CLAIMED,
    NULL,
    ONE,
    Parts,
    arrays,
    bind,
    event_type,
    json_at,
    sent_json,
    state,
)
from .lease import seconds_until

Ends = Literal["none", "direct", "careful"]
"""How outcomes are written: not at all, at once, or past rows that somebody else has locked."""
Look = Literal["none", "full", "floor"]
"""Where claims are looked for: nowhere, in all lanes from their beginning, or above the floors."""

ZERO = ONE - ONE
ANSWER = (*CLAIMED, "priority", "run_at")
"""What a turn says of a claimed task, beside its key."""


def turn(parts: Parts, ends: Ends, look: Look) -> Any:
    """End the sent tasks, then claim up to ``tq_limit`` others.

    Each row has in ``tq_ended`` the numbers of the sent tasks that were written, and beside them
    a claimed task, or NULL where none was claimed.
    """
    ended = None if ends == "none" else _ended(parts, careful=ends == "careful")
    picked = None if look == "none" else parts.once(_picked(parts, look))
    columns: list[Any] = []
    source: Any = None
    if ended is not None:
        numbers = select(
            func.array_agg(ended.c.tq_n, type_=ARRAY(Integer)).label("tq_ended")
        ).subquery("tq_numbers")
        columns, source = [numbers.c.tq_ended], numbers
    if picked is not None:
        claimed = _claimed(parts, picked)
        if source is None:
            columns, source = [literal_column("NULL").label("tq_ended")], claimed
        else:
            source = source.outerjoin(claimed, true())
        columns += claimed.c
    statement = select(*columns).select_from(source)
    if parts.model.events is not None:
        statement = statement.add_cte(_recorded(parts, ended, picked))
    return statement


# --- What became of tasks ----------------------------------------------------------------------


def _types(parts: Parts) -> dict[str, Any]:
    """Return what is sent of each task beside its key."""
    types: dict[str, Any] = {
        "token": Uuid(),
        "state": Text(),
        "delay": Interval(),
        "uncounted": Integer(),
        "error": Text(),
    }
    return types if parts.model.events is None else {**types, "type": Text()}


def _sent(parts: Parts) -> FromClause:
    """Return the arrays ``tq_sent_<column>``: keys, tokens and outcomes."""
    keys = {f"pk_{n}": of.type for n, of in enumerate(parts.model.primary_key)}
    return arrays("sent", {**keys, **_types(parts)})  # type: ignore[no-any-return]


def _ended(parts: Parts, *, careful: bool) -> CTE:
    """Return the UPDATE of the sent tasks that are still held, as a CTE."""
    sent = _sent(parts)
    key = parts.model.primary_key
    of_sent = {of: sent.c[f"pk_{n}"] for n, of in enumerate(key)}
    columns = [
        *(sent_key.label(of.key) for of, sent_key in of_sent.items()),
        sent.c.tq_n,
        *(sent.c[name].label(f"tq_{name}") for name in _types(parts)),
        json_at("sent_json", sent).label("tq_result"),
    ]
    if parts.model.events is not None:
        columns.append(json_at("sent_detail", sent).label("tq_detail"))
    if careful:
        held = and_(
            *(of == sent_key for of, sent_key in of_sent.items()),
            parts.token_held == sent.c.token,
        )
        query = select(*columns).select_from(parts.table.join(sent, held)).order_by(*key)
        outcome: Any = parts.locking(query, skip=True, of=parts.table).cte("tq_outcome")
        outcome = outcome.prefix_with("MATERIALIZED")
        found = parts.among(outcome, ())  # a generic plan would scan the table for the join
    else:
        # In the order of the keys, so that two workers seldom lock against each other.
        outcome = select(*columns).order_by(*of_sent.values()).subquery("tq_outcome")
        found = []
    c, of = parts.c, outcome.c
    ends = of.tq_state != state(TaskState.QUEUED)
    values = {
        "state": of.tq_state,
        "lease_token": NULL,
        "lease_expires_at": NULL,
        "claimed_by": case((ends, c.claimed_by)),
        "claimed_session": case((ends, c.claimed_session)),
        "attempt": func.greatest(c.attempt - of.tq_uncounted, ZERO),
        "run_at": case((of.tq_delay.is_not(None), now() + of.tq_delay), else_=c.run_at),
        "result": of.tq_result,
        # What is put off unworked keeps the error of the attempt before.
        "error": case((of.tq_uncounted > ZERO, c.error), else_=of.tq_error),
        "ended_token": case((ends, c.lease_token)),
        "finished_at": case((ends, now())),
        "updated_at": now(),
    }
    answer = [*key, of.tq_n]
    if parts.model.events is not None:
        counted = (c.attempt + of.tq_uncounted).label(c.attempt.key)
        answer += [counted, c.round, of.tq_type, of.tq_detail]
    return (
        update(parts.table)
        .values({**parts.on_update(values), **values})
        .where(
            *found,
            *(column == of[column.key] for column in key),
            parts.token_held == of.tq_token,
        )
        .returning(*answer)
        .cte("tq_ended")
    )


# --- Claims ------------------------------------------------------------------------------------


def _picked(parts: Parts, look: Look) -> Select[Any]:
    """Return the query that locks the tasks to claim.

    With *floor* the arrays ``tq_lane_<column>`` say where to begin: ascending in priority, which
    the nested loop keeps that alone can run a lateral join. The floors are lowered to what
    ``tq_lookback`` ago was; a negative lookback leaves them where they are.
    """
    if look == "full":
        return next_tasks(parts, lanes_of(parts))
    names = [of.key for of in parts.model.free_key]
    columns = [parts.c.priority, parts.c.run_at, *parts.model.free_key]

    def above(task: FromClause, lane: FromClause) -> list[ColumnElement[bool]]:
        begin = func.least(lane.c.run_at, now() - bind("lookback", Interval))
        position = tuple_(task.c.run_at, *(task.c[name] for name in names))
        return [position > tuple_(begin, *(lane.c[name] for name in names))]

    return next_tasks(parts, arrays("lane", {of.key: of.type for of in columns}), above)


def _claimed(parts: Parts, picked: CTE) -> CTE:
    values = taken(parts.c.attempt + ONE)
    values["updated_at"] = now()
    return (
        update(parts.table)
        .values({**parts.on_update(values), **values})
        .where(*parts.inside(), *parts.among(picked))
        .returning(*parts.model.primary_key, *(parts.c[name] for name in ANSWER))
        .cte("tq_claimed")
    )


def _recorded(parts: Parts, ended: CTE | None, picked: CTE | None) -> CTE:
    """Return the INSERT of the events of both parts, numbered through."""
    c = parts.c
    queries: list[Any] = []
    if ended is not None:
        counters = (ended.c[c.attempt.key], ended.c[c.round.key])
        keys = [ended.c[of.key] for of in parts.model.primary_key]
        queries.append(select(*keys, *counters, ended.c.tq_type, ended.c.tq_detail))
    if picked is not None:
        attempt, round_ = picked.c[c.attempt.key], picked.c[c.round.key]
        keys = [picked.c[of.key] for of in parts.model.primary_key]
        queries.append(
            select(
                *keys,
                (attempt + ONE).label(c.attempt.key),
                round_,
                event_type(EventType.CLAIMED).label("tq_type"),
                sent_json("detail").label("tq_detail"),
            )
        )
    first, *others = queries
    rows = (first.union_all(*others) if others else first).cte("tq_events")
    return parts.recorded(rows, _type, detail=_detail)


def _type(rows: FromClause) -> ColumnElement[str]:
    return rows.c.tq_type


def _detail(rows: FromClause) -> ColumnElement[Any]:
    return rows.c.tq_detail


def claimed_under(parts: Parts) -> Any:
    """Read the tasks that are held under one token: what a turn claimed whose answer was lost."""
    return select(*parts.model.primary_key, *(parts.c[name] for name in ANSWER)).where(
        *parts.leased(),
        *parts.beside(
            tuple(parts.model.scope),
            parts.c.lease_token.is_not(None),
            parts.token_held == bind("token", Uuid),
        ),
    )


# --- When and where to look --------------------------------------------------------------------


def next_due(parts: Parts) -> Any:
    """Return in how many seconds the next queued task of the queue and scope is due."""
    lanes = lanes_of(parts)
    task = parts.table.alias("tq_candidate")
    following = (
        select(task.c.run_at)
        .where(
            *parts.inside(of=task),
            is_state(task.c.state, TaskState.QUEUED),
            task.c.priority == lanes.c.priority,
            task.c.run_at > now(),
        )
        .order_by(task.c.run_at)
        .limit(ONE)
        .lateral("tq_following_due")
    )
    first = select(func.min(following.c.run_at).label("run_at")).select_from(
        lanes.join(following, true())
    )
    return select(seconds_until(first.scalar_subquery()).label("tq_due_in"))


def scopes(parts: Parts) -> Any:
    """Return the scopes and queues that have queued tasks, by a loose scan of the claim index."""
    names = [*(of.key for of in parts.model.scope.values()), "queue"]

    def first(of: FromClause, *after: ColumnElement[bool]) -> Any:
        columns = [of.c[name] for name in names]
        # The rest of the claim index too: no other serves this order, however few tasks the
        # planner believes to have ended.
        rest = [of.c.priority, of.c.run_at, *(of.c[key.key] for key in parts.model.free_key)]
        return (
            select(*columns)
            .where(is_state(of.c.state, TaskState.QUEUED), *after)
            .order_by(*columns, *rest)
            .limit(ONE)
        )

    found = first(parts.table.alias("tq_first")).cte("tq_scopes", recursive=True)
    other = parts.table.alias("tq_following")
    beyond = tuple_(*(other.c[name] for name in names)) > tuple_(
        *(found.c[name] for name in names)
    )
    following = first(other, beyond).lateral("tq_next")
    found = found.union_all(select(*following.c).select_from(found.join(following, true())))
    return select(*found.c)
