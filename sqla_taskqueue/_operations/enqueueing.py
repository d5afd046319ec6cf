"""Enqueue: insert a task once, and say whether it was there already."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

from .. import checks
from ..errors import EnqueueConflict, TaskExists
from ..ids import uuid7
from ..models import value_of
from ..payloads import encode
from ..statements import enqueue as statements
from ..states import EventType, TaskState
from ..values import Enqueued, TaskSpec
from ._rows import NewTask, checked_actor, new_task
from ._violations import is_unique_violation, violated
from ._wakeups import wake

if TYPE_CHECKING:
    from .._core import QueueCore
    from .._sessions import Caller

TRIES = 3
"""How often a conflicting row may vanish between the insert and the look at it."""

IfExists = Literal["return", "raise"]


def enqueue(
    caller: Caller,
    core: QueueCore[Any],
    spec: TaskSpec,
    *,
    actor: str | None,
    if_exists: IfExists,
) -> Enqueued:
    """Insert one task, or find the one that its id, key or unique key already names."""
    core.need_scope("enqueue")
    checks.choice("if_exists", if_exists, "return", "raise")
    actor = checked_actor(core, actor)
    new = new_task(core, spec, actor)
    caller.flush()
    return insert_or_find(caller, core, new, actor, if_exists)


def insert_or_find(
    caller: Caller,
    core: QueueCore[Any],
    new: NewTask,
    actor: str | None,
    if_exists: IfExists = "return",
) -> Enqueued:
    """Insert a checked row, or return what its id, key or unique key already names."""
    due, row = _parameters(core, new)
    insert = core.statements(statements.insert_task, due, "nothing")
    for _ in range(TRIES):
        if rows := caller.rows(insert, row):
            return _created(caller, core, rows[0], actor, insert)
        for by, params, subject in _identities(new):
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
    return insert_or_explain(caller, core, new, actor)


def _parameters(core: QueueCore[Any], new: NewTask) -> tuple[statements.Due, dict[str, Any]]:
    """Return the row with its time; a delay counts from the database's clock."""
    row = new.columns
    if core.model.keeps_json:
        payload = row["payload"]
        row = {**row, "tq_payload": None if payload is None else encode(payload)}
        del row["payload"]
    if new.run_at is None:
        return "delay", {**row, "tq_delay": new.delay}
    return "run_at", {**row, "run_at": new.run_at}


def _identities(new: NewTask) -> list[tuple[statements.Identity, dict[str, Any], str]]:
    """Return by what an existing task is recognised, with parameters and a name for messages."""
    found: list[tuple[statements.Identity, dict[str, Any], str]] = []
    if new.id_values is not None:
        shown = new.id_values[0] if len(new.id_values) == 1 else tuple(new.id_values)
        params = {f"tq_pk_{index}": value for index, value in enumerate(new.id_values)}
        found.append(("id", params, f"task {shown}"))
    if new.key is not None:
        found.append(("key", {"tq_key": new.key}, f"task {new.key!r}"))
    if new.unique_key is not None:
        subject = f"a live task with unique_key {new.unique_key!r}"
        found.append(("unique_key", {"tq_unique_key": new.unique_key}, subject))
    return found


def _created(
    caller: Caller, core: QueueCore[Any], inserted: Any, actor: str | None, route: Any
) -> Enqueued:
    """Record the creation, wake workers, and return the answer."""
    model = core.model
    if model.events is not None:
        key = [value_of(inserted, column) for column in model.primary_key]
        caller.rows(
            core.statements(statements.record_created),
            {
                **dict(zip((column.key for column in model.events.task_key), key, strict=True)),
                "id": uuid7(),
                "type": EventType.CREATED.value,
                "actor": actor,
            },
            route=route,
        )
    wake(caller, core, route)
    return Enqueued(model.identity_of(inserted), created=True, state=TaskState(inserted.state))


def insert_or_explain(
    caller: Caller, core: QueueCore[Any], new: NewTask, actor: str | None
) -> Enqueued:
    """Insert without ON CONFLICT, to learn which constraint keeps the row out.

    Raises:
        EnqueueConflict: It is not one of the queue's own; the transaction stays usable.
    """
    due, row = _parameters(core, new)
    insert = core.statements(statements.insert_task, due, "raise")
    with explained(caller, core, insert):
        inserted = caller.rows(insert, row)[0]
    return _created(caller, core, inserted, actor, insert)


@contextmanager
def explained(caller: Caller, core: QueueCore[Any], insert: Any) -> Generator[None]:
    """Run inserts in a savepoint, and name the constraint that refuses one.

    Raises:
        EnqueueConflict: A unique constraint refused a row; the savepoint was rolled back.
    """
    try:
        with caller.savepoint(insert):
            yield
    except Exception as error:
        if not is_unique_violation(error):
            raise
        constraint = violated(caller, core, error, insert)
        raise EnqueueConflict(constraint, core.model.table.fullname) from error
