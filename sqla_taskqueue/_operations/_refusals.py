"""Why a write found no row: read afterwards, in the same transaction."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..models import value_of
from ..statements import lease as lease_statements
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

    task: Any
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
    caller: Caller, core: QueueCore[Any], target: Target, *, lock: bool, route: Any = None
) -> Looked | None:
    """Read the target, locking it for this transaction if *lock*."""
    statement = core.statements(lease_statements.look, target.by, lock)
    named = {
        name: value
        for name, value in target.params.items()
        if name not in ("tq_token", "tq_worker", "tq_session")
    }
    rows = caller.entities(statement, named, route=route)
    if not rows:
        return None
    return looked_at(core, rows[0])


def looked_at(core: QueueCore[Any], row: Any) -> Looked:
    """Return what a row of ``look`` says."""
    columns = core.model.table.c
    facts = {name: value_of(row, columns[name]) for name in lease_statements.LOOKED_AT}
    worker, session = facts.pop("claimed_by"), facts.pop("claimed_session")
    facts["state"] = TaskState(facts["state"])
    return Looked(
        task=row[0],
        id=core.model.identity_of(row),
        holder=None if worker is None else Holder(worker, session or ""),
        due_in=row.tq_due_in,
        remaining=row.tq_remaining,
        **facts,
    )


def refusal(
    target: Target, looked: Looked | None, reason: RefusalReason | None = None
) -> Refused[Any]:
    """Return the refusal of a write to *target*, which is now as *looked* says.

    Args:
        target: What was to be written.
        looked: The task as it is; None when there is none.
        reason: Why; told from the state when None.
    """
    if looked is None:
        return Refused(RefusalReason.GONE, target.subject)
    return Refused(
        reason or _reason(target, looked),
        target.subject,
        task=looked.task,
        state=looked.state,
        holder=looked.holder,
        lease_seconds_remaining=looked.remaining,
        due_in_seconds=looked.due_in,
    )


def _reason(target: Target, looked: Looked) -> RefusalReason:
    if looked.state in ENDED:
        return RefusalReason.FINISHED
    if looked.state is TaskState.BLOCKED:
        return RefusalReason.BLOCKED
    if looked.state is TaskState.QUEUED:
        return RefusalReason.REQUEUED
    other_session = (
        target.holder is not None
        and looked.holder is not None
        and looked.holder.worker == target.holder.worker
        and looked.holder.session != target.holder.session
    )
    return RefusalReason.HELD_BY_OTHER_SESSION if other_session else RefusalReason.HELD
