"""Enqueue: insert a task once, and say whether it was there already."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal

from .. import checks
from .._drivers import UNIQUE_VIOLATION, constraint_name, sqlstate
from ..errors import EnqueueConflict, InvalidArgument, TaskExists
from ..models import value_of
from ..payloads import check_payload
from ..statements import enqueue as statements
from ..states import TaskState
from ..values import Enqueued
from ._wakeups import wake

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .._core import QueueCore
    from .._sessions import Caller

_TRIES = 3
"""How often a conflicting row may vanish between the insert and the look at it."""

MaxAttempts = int | Literal["default"] | None
IfExists = Literal["return", "raise"]


def enqueue(
    caller: Caller,
    core: QueueCore[Any],
    name: str,
    payload: Any,
    *,
    values: Mapping[str, Any] | None,
    id: Any,  # noqa: A002 - the public word
    key: str | None,
    unique_key: str | None,
    priority: int,
    run_at: datetime | None,
    delay: timedelta | None,
    max_attempts: MaxAttempts,
    actor: str | None,
    if_exists: IfExists,
) -> Enqueued:
    """Insert one task, or find the one that its id, key or unique key already names."""
    core.need_scope("enqueue")
    if if_exists not in ("return", "raise"):
        raise InvalidArgument("if_exists", if_exists, "must be 'return' or 'raise'")
    row = _row(core, name, payload, values, key, unique_key, priority, max_attempts, actor)
    identities: list[tuple[statements.Identity, dict[str, Any], str]] = []
    if id is not None:
        pairs = list(enumerate(core.model.key_values(id, core.scope)))
        row |= {core.model.primary_key[index].key: value for index, value in pairs}
        identities.append(("id", {f"tq_pk_{i}": v for i, v in pairs}, f"task {id}"))
    if row["key"] is not None:
        identities.append(("key", {"tq_key": row["key"]}, f"task {row['key']!r}"))
    if row["unique_key"] is not None:
        subject = f"a live task with unique_key {row['unique_key']!r}"
        identities.append(("unique_key", {"tq_unique_key": row["unique_key"]}, subject))
    due = _due(row, run_at, delay)

    caller.flush()
    insert = core.statements(statements.insert_task, due, "nothing")
    for _ in range(_TRIES):
        if rows := caller.rows(insert, row):
            return _created(caller, core, rows[0], actor, insert)
        for by, params, subject in identities:
            query = core.statements(statements.existing, by)
            if found := caller.rows(query, {**core.inside, **params}, route=insert):
                existing = Enqueued(
                    core.model.identity_of(found[0]),
                    created=False,
                    state=TaskState(found[0].state),
                )
                if if_exists == "raise":
                    raise TaskExists(subject, existing.id, existing.state)
                return existing
    return _insert_or_explain(caller, core, row, due, actor)


def _row(
    core: QueueCore[Any],
    name: str,
    payload: Any,
    values: Mapping[str, Any] | None,
    key: str | None,
    unique_key: str | None,
    priority: int,
    max_attempts: MaxAttempts,
    actor: str | None,
) -> dict[str, Any]:
    """Check the arguments and return the new row by column, without times and key."""
    limits = core.limits
    check_payload("payload", payload, limits.payload)

    def optional(argument: str, value: str | None) -> str | None:
        if value is None:
            return None
        return checks.text(argument, value, characters=limits.key, trim=True)

    return {
        **core.model.host_values(values or {}),
        **{core.model.scope[name].key: value for name, value in core.scope.items()},
        "queue": core.name,
        "name": checks.text("name", name, size=limits.name, empty=True),
        "payload": payload,
        "priority": checks.priority(priority),
        "max_attempts": limits.max_attempts
        if max_attempts == "default"
        else checks.max_attempts(max_attempts),
        "key": optional("key", key),
        "unique_key": optional("unique_key", unique_key),
        "created_by": None if actor is None else checks.text("actor", actor, size=limits.name),
    }


def _due(row: dict[str, Any], run_at: datetime | None, delay: timedelta | None) -> statements.Due:
    """Put the task's time into *row*; a delay counts from the database's clock."""
    if run_at is None:
        row["tq_delay"] = checks.duration("delay", timedelta(0) if delay is None else delay)
        return "delay"
    if delay is not None:
        raise InvalidArgument("delay", delay, "give run_at= or delay=, not both")
    row["run_at"] = checks.moment("run_at", run_at)
    return "run_at"


def _created(
    caller: Caller, core: QueueCore[Any], inserted: Any, actor: str | None, route: Any
) -> Enqueued:
    """Record the creation, wake workers, and return the answer."""
    model = core.model
    id_ = model.identity_of(inserted)
    if model.events is not None:
        event = core.event(actor)
        key = [value_of(inserted, column) for column in model.primary_key]
        caller.rows(
            core.statements(statements.record_created),
            {
                **dict(zip((column.key for column in model.events.task_key), key, strict=True)),
                "id": event["tq_event_ids"][0],
                "type": "created",
                "actor": actor,
            },
            route=route,
        )
    wake(caller, core, route)
    return Enqueued(id_, created=True, state=TaskState(inserted.state))


def _insert_or_explain(
    caller: Caller,
    core: QueueCore[Any],
    row: dict[str, Any],
    due: statements.Due,
    actor: str | None,
) -> Enqueued:
    """Insert without ON CONFLICT, to learn which constraint keeps the row out."""
    insert = core.statements(statements.insert_task, due, "raise")
    try:
        with caller.savepoint(insert):
            inserted = caller.rows(insert, row)[0]
    except Exception as error:
        if sqlstate(error) != UNIQUE_VIOLATION:
            raise
        raise EnqueueConflict(constraint_name(error), core.model.table.fullname) from error
    return _created(caller, core, inserted, actor, insert)
