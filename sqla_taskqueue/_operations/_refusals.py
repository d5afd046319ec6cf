"""Why a write found no row: read afterwards, in the same transaction."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..models import value_of
from ..statements import lease as lease_statements
from ..statements import reading
from ..states import ENDED, TaskState
from ..values import Holder, RefusalReason, Refused

if TYPE_CHECKING:
    from datetime import datetime
    from uuid import UUID

    from .._core import QueueCore
    from .._sessions import Caller
    from ._targets import Target


@dataclass(frozen=True, slots=True)
class Looked:
    """One task as a read found it, with the times already compared by the database."""

    id: Any
    state: TaskState
    attempt: int
    max_attempts: int | None
    round: int
    lease_token: UUID | None
    ended_token: UUID | None
    holder: Holder | None
    run_at: datetime
    due_in: float
    remaining: float | None

    @property
    def expired(self) -> bool:
        """Whether the lease ran out."""
        return self.remaining is not None and self.remaining <= 0

    @property
    def exhausted(self) -> bool:
        """Whether no attempt is left."""
        return self.max_attempts is not None and self.attempt >= self.max_attempts


def look(
    caller: Caller, core: QueueCore[Any], target: Target, *, lock: bool, route: Any
) -> Looked | None:
    """Read the target, locking it for this transaction if *lock*.

    Columns only: a session routes an ORM SELECT by itself, perhaps to another server than the
    write that this read belongs to.
    """
    statement = core.statements(lease_statements.look, target.by, lock)
    named = {
        name: value
        for name, value in target.params.items()
        if name not in ("tq_token", "tq_worker", "tq_session")
    }
    rows = caller.rows(statement, named, route=route)
    return looked_at(core, rows[0]) if rows else None


def looked_at(core: QueueCore[Any], row: Any) -> Looked:
    """Return what a row of ``look`` says."""
    columns = core.model.table.c
    facts = {name: value_of(row, columns[name]) for name in lease_statements.LOOKED_AT}
    worker, session = facts.pop("claimed_by"), facts.pop("claimed_session")
    facts["state"] = TaskState(facts["state"])
    return Looked(
        id=core.model.identity_of(row),
        holder=None if worker is None else Holder(worker, session or ""),
        due_in=row.tq_due_in,
        remaining=row.tq_remaining,
        **facts,
    )


def refuse(
    caller: Caller,
    core: QueueCore[Any],
    target: Target,
    looked: Looked | None,
    reason: RefusalReason | None = None,
    *,
    route: Any,
) -> Refused[Any]:
    """Return the refusal of a write to *target*, with the entity as it is now.

    Args:
        caller: The caller's session.
        core: The queue.
        target: What was to be written.
        looked: The task as it is; None when there is none.
        reason: Why; told from the state when None.
        route: The write.
    """
    if looked is None:
        return Refused(RefusalReason.GONE, target.subject)
    keys = core.model.key_values(looked.id, {})
    rows = caller.entities(
        core.statements(reading.get, tuple(core.model.scope), "id"),
        {**target.params, **{f"tq_pk_{index}": value for index, value in enumerate(keys)}},
        route=route,
    )
    return refusal(target, looked, rows[0][0] if rows else None, reason)


def refusal(
    target: Target, looked: Looked, task: Any, reason: RefusalReason | None = None
) -> Refused[Any]:
    """Return the refusal of a write to *target*, which is now as *looked* says."""
    return Refused(
        reason or reason_for(looked, target.holder),
        target.subject,
        task=task,
        state=looked.state,
        holder=looked.holder,
        lease_seconds_remaining=looked.remaining,
        due_in_seconds=looked.due_in,
    )


def reason_for(looked: Looked, who: Holder | None) -> RefusalReason:
    """Tell from a task's state why *who* cannot write about it."""
    if looked.state in ENDED:
        return RefusalReason.FINISHED
    if looked.state is TaskState.BLOCKED:
        return RefusalReason.BLOCKED
    if looked.state is TaskState.QUEUED:
        return RefusalReason.REQUEUED
    other_session = (
        who is not None
        and looked.holder is not None
        and looked.holder.worker == who.worker
        and looked.holder.session != who.session
    )
    return RefusalReason.HELD_BY_OTHER_SESSION if other_session else RefusalReason.HELD
