"""Many tasks in one statement: arrays through ``unnest … WITH ORDINALITY``.

Its text does not depend on how many there are. No batch waits for a row that somebody else has
locked: rows are locked first, in key order, those of others are skipped, and what was skipped is
told apart from what was lost.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from sqlalchemy import (
    CTE,
    ColumnElement,
    FromClause,
    Integer,
    Interval,
    Text,
    Uuid,
    and_,
    case,
    func,
    insert,
    literal_column,
    select,
    true,
)

from .._schema import is_state
from ..dialects import now, or_nothing
from ..models import sql_default
from ..states import ENDED, LIVE, EventType, TaskState
from ._parts import NO_LEASE, NULL, ONE, Parts, arrays, bind, event_type, json_at, state
from .lease import LOOKED_AT, no_attempt_left, remaining_columns

Identity = Literal["id", "key", "unique_key"]
"""By what existing tasks are recognised."""
Due = Literal["now", "given"]
OnConflict = Literal["nothing", "raise"]


def insert_tasks(parts: Parts, columns: tuple[str, ...], due: Due, on_conflict: OnConflict) -> Any:
    """Insert a task for each row of the arrays ``tq_new_<column>``, its payload in ``tq_new_json``.

    Args:
        parts: The building blocks.
        columns: Which columns are sent. Python-side defaults are among them: from a SELECT,
            SQLAlchemy would evaluate them once for all rows.
        due: Whether rows say when they are due: ``tq_new_run_at`` or ``tq_new_tq_delay``.
        on_conflict: Whether rows that exist already are passed over.
    """
    table = parts.table
    types: dict[str, Any] = {key: table.c[key].type for key in columns if key != "payload"}
    if due == "given":
        types |= {"run_at": table.c.run_at.type, "tq_delay": Interval()}
    new = arrays("new", types)
    values: dict[str, Any] = {
        key: json_at("new_json", new) if key == "payload" else new.c[key] for key in columns
    }
    values["run_at"] = (
        func.coalesce(new.c.run_at, now() + new.c.tq_delay) if due == "given" else now()
    )
    values |= {"created_at": now(), "updated_at": now()}
    values |= {
        of.key: sql_default(of)
        for of in table.c
        if of.key not in values and sql_default(of) is not None
    }
    statement = insert(parts.model.cls).from_select(
        [table.c[key] for key in values],
        select(*values.values()).order_by(new.c.tq_n),
        include_defaults=False,
    )
    if on_conflict == "nothing":
        statement = or_nothing(statement)
    return statement.returning(
        *parts.model.primary_key, table.c.state, table.c.key, table.c.unique_key
    ).execution_options(dml_strategy="raw")


def existing_tasks(parts: Parts, by: Identity) -> Any:
    """Find the tasks that kept others out, by the arrays of what names them.

    Rows are the primary key, the state, and the place in the arrays.
    """
    c = parts.c
    query = select(*parts.model.primary_key, c.state)
    if by == "id":
        sent, same = _named(parts, {})
        found = query.add_columns(sent.c.tq_n)
        return found.select_from(parts.table.join(sent, same)).where(*parts.scoped())
    wanted = arrays("wanted", {"value": Text()})
    if by == "key":
        named = [c.key == wanted.c.value, *parts.in_key_scope()]
    else:
        named = [c.unique_key == wanted.c.value, *parts.inside(), is_state(c.state, *LIVE)]
    # At most one each, and the limit says so: a plain join may read the whole index to meet a
    # few values.
    task = query.where(*named).limit(ONE).lateral("tq_found")
    return select(*task.c, wanted.c.tq_n).select_from(wanted.join(task, true()))


def record_created(parts: Parts) -> Any:
    """Record that the tasks of the arrays ``tq_event_pk_<n>`` were made."""
    events = parts.model.events
    assert events is not None
    key = {f"pk_{n}": of.type for n, of in enumerate(parts.model.primary_key)}
    of_event = {of.key: of.type for of in (events.table.c.id, *events.defaults)}
    made = arrays("event", of_event | key)
    values: dict[str, Any] = {
        **{of.key: made.c[f"pk_{n}"] for n, of in enumerate(events.task_key)},
        **{name: made.c[name] for name in of_event},
        "type": event_type(EventType.CREATED),
        "actor": bind("actor", Text),
        "created_at": now(),
    }
    return (
        insert(events.table)
        .from_select(
            [events.table.c[key] for key in values],
            select(*values.values()).select_from(made).order_by(made.c.tq_n),
        )
        .returning(events.table.c.id)
    )


def _named(parts: Parts, columns: dict[str, Any]) -> tuple[Any, ColumnElement[bool]]:
    """Return the arrays ``tq_sent_pk_<n>`` and others as a table, and its join with the tasks."""
    key = parts.model.primary_key
    sent = arrays("sent", {f"pk_{n}": of.type for n, of in enumerate(key)} | columns)
    return sent, and_(*(of == sent.c[f"pk_{n}"] for n, of in enumerate(key)))


Computed = Callable[[FromClause], ColumnElement[Any]]


def _sent_json(sent: FromClause) -> ColumnElement[Any]:
    return json_at("sent_json", sent)


def _held(
    parts: Parts, sent_types: dict[str, Any], computed: dict[str, Computed] | None = None
) -> CTE:
    """Lock the tasks that the sent claims still hold, in key order, skipping locked ones.

    Args:
        parts: The building blocks.
        sent_types: What is sent beside keys and tokens, with its types.
        computed: Expressions over the sent rows.

    Returns:
        The CTE; the token, what is sent and what is computed are its columns ``tq_<name>``.
    """
    types = {"token": Uuid(), **sent_types}
    if parts.model.events is not None:
        types["actor"] = Text()
    sent, same = _named(parts, types)
    c = parts.c
    query: Any = (
        select(
            *parts.key_and_counters(),
            sent.c.tq_n,
            *(sent.c[name].label(f"tq_{name}") for name in types),
            *(build(sent).label(f"tq_{name}") for name, build in (computed or {}).items()),
        )
        .select_from(parts.table.join(sent, same))
        .where(
            c.queue == bind("queue", Text),
            parts.token_held == sent.c.token,
        )
        .order_by(*parts.model.primary_key)
    )
    return parts.once(parts.locking(query, skip=True, of=parts.table))


def _write(parts: Parts, picked: CTE, values: dict[str, Any]) -> Any:
    """Return the UPDATE of what *picked* has locked, joined to its columns.

    Its rows say by number, ``tq_n``, which of the sent claims they answer.
    """
    return parts.set(values, *parts.answer, picked.c.tq_n).where(
        # The array finds the rows by their key; joined alone, a generic plan scans the table.
        *parts.among(picked, ()),
        *(of == picked.c[of.key] for of in parts.model.primary_key),
    )


def _recorded(parts: Parts, statement: Any, picked: CTE, event: Any, detail: Any = None) -> Any:
    if parts.model.events is None:
        return statement
    return statement.add_cte(
        parts.recorded(picked, event, detail=detail, actor=lambda rows: rows.c.tq_actor)
    )


def heartbeats(parts: Parts) -> Any:
    """Extend the leases that the sent claims still hold."""
    picked = _held(parts, {"lease": Interval()})
    statement = _write(
        parts,
        picked,
        {
            "lease_expires_at": now() + picked.c.tq_lease,
            "heartbeat_at": now(),
            "updated_at": parts.c.updated_at,
        },
    )
    return (
        _recorded(parts, statement, picked, EventType.RENEWED)
        if parts.model.is_board
        else statement
    )


def completions(parts: Parts) -> Any:
    """End the tasks that the sent claims still hold, each with its result."""
    picked = _held(parts, {}, {"result": _sent_json})
    statement = _write(
        parts,
        picked,
        {
            **NO_LEASE,
            "state": state(TaskState.DONE),
            "result": picked.c.tq_result,
            "error": NULL,
            "ended_token": parts.c.lease_token,
            "finished_at": now(),
        },
    )
    return _recorded(parts, statement, picked, EventType.COMPLETED)


def failures(parts: Parts, final: bool) -> Any:  # noqa: FBT001 - one of two variants
    """Record failed attempts: those with attempts left are queued again, unless *final*."""
    c = parts.c

    def is_last(_: FromClause) -> ColumnElement[Any]:
        return literal_column("true") if final else no_attempt_left(parts)

    def due(sent: FromClause) -> ColumnElement[Any]:
        return now() + sent.c.delay

    computed: dict[str, Computed] = {"last": is_last, "due": due}
    if parts.model.events is not None:
        computed["detail"] = _sent_json
    picked = _held(parts, {"error": Text(), "delay": Interval()}, computed)

    def ends(ended: Any, queued: Any) -> ColumnElement[Any]:
        return case((picked.c.tq_last, ended), else_=queued)

    statement = _write(
        parts,
        picked,
        {
            **NO_LEASE,
            "claimed_by": ends(c.claimed_by, NULL),
            "claimed_session": ends(c.claimed_session, NULL),
            "state": ends(state(TaskState.FAILED), state(TaskState.QUEUED)),
            "run_at": ends(c.run_at, picked.c.tq_due),
            "error": picked.c.tq_error,
            "ended_token": ends(c.lease_token, c.ended_token),
            "finished_at": ends(now(), NULL),
        },
    )
    return _recorded(parts, statement, picked, _failed_or_retried, _detail)


def _failed_or_retried(rows: FromClause) -> ColumnElement[str]:
    return case(
        (rows.c.tq_last, event_type(EventType.FAILED)),
        else_=event_type(EventType.RETRIED),
    )


def _detail(rows: FromClause) -> ColumnElement[Any]:
    return rows.c.tq_detail


def look(parts: Parts) -> Any:
    """Read the named tasks as they are, with the facts that refusals need."""
    sent, same = _named(parts, {})
    return (
        select(
            *parts.model.primary_key,
            *(parts.c[name] for name in LOOKED_AT),
            *remaining_columns(parts),
        )
        .select_from(parts.table.join(sent, same))
        .where(parts.c.queue == bind("queue", Text))
    )


def by_keys(parts: Parts) -> Any:
    """Read the entities of tasks that ``look`` has found."""
    sent, same = _named(parts, {})
    return select(parts.model.cls, *parts.model.primary_key).join_from(parts.model.cls, sent, same)


def prune(parts: Parts, scope: tuple[str, ...], states: tuple[TaskState, ...]) -> Any:
    """Delete up to ``tq_limit`` tasks that ended long ago: oldest key first, or oldest end first.

    FOR UPDATE here: a task that an open insert refers to by a foreign key must stay.
    """
    c = parts.c
    ended = is_state(c.state, *(states or ENDED))
    old = c.finished_at <= now() - bind("age", Interval)
    wanted = [*parts.inside(scope), ended, old]
    order: list[ColumnElement[Any]] = [*parts.model.primary_key]
    if "finished" in parts.model.extra_indexes:
        # With an end on both sides: the planner then expects few rows, and takes the index.
        some_time = c.finished_at > literal_column("'-infinity'", c.finished_at.type)
        wanted = [old, some_time, *parts.beside(scope, c.finished_at.is_not(None), ended)]
        order = [c.finished_at]
    picked = parts.once(
        select(*parts.model.primary_key)
        .where(*wanted)
        .order_by(*order)
        .limit(bind("limit", Integer))
        .with_for_update(skip_locked=True)
    )
    again = parts.beside(scope, c.finished_at.is_not(None), ended, old)
    return parts.delete().where(*again, *parts.among(picked, scope))
