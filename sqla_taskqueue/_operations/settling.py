"""Heartbeats and the ends of a claim; cancelling and retrying by operators."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal

from .. import checks
from ..errors import InvalidArgument, InvalidPayload, LeaseLost
from ..payloads import clean_json, cut, encode, error_text, too_large
from ..retry import policy_or
from ..statements import finish as statements
from ..statements import lease as lease_statements
from ..states import TaskState
from ..values import Claim, Holder, Lease, RefusalReason, Refused, Written
from ._refusals import look, refuse
from ._targets import Target, by_name, held
from ._violations import is_unique_violation, violated
from ._wakeups import wake

if TYPE_CHECKING:
    from .._core import QueueCore
    from .._sessions import Caller
    from ..retry import RetryPolicy
    from ._refusals import Looked

OnLost = Literal["raise", "return"]
Outcome = Written | Refused[Any]


def heartbeat(
    caller: Caller,
    core: QueueCore[Any],
    claim: Claim[Any] | None,
    *,
    id: Any,  # noqa: A002 - the public word
    key: str | None,
    holder: Holder | str | None,
    lease: timedelta | None,
) -> Lease | Refused[Any]:
    """Extend a lease that is still the caller's."""
    target = held(core, "heartbeat", claim, id, key, holder)
    if lease is None and claim is not None:
        lease = claim.lease.duration
    params = {
        # None: as long as before, which the row tells.
        "tq_lease": None if lease is None else core.limits.clamp_lease(lease),
        "tq_lease_min": core.limits.lease_min,
        "tq_lease_default": core.limits.lease,
    }
    caller.flush()
    statement = core.statements(lease_statements.heartbeat, target.by, target.fence)
    recorded = core.event(target.actor, target.detail) if core.model.is_board else {}
    rows = caller.rows(statement, {**target.params, **params, **recorded})
    if not rows:
        looked = look(caller, core, target, lock=False, route=statement)
        return refuse(caller, core, target, looked, route=statement)
    assert target.holder is not None
    return renewed(target.holder, rows[0])


def renewed(holder: Holder, row: Any) -> Lease:
    """Return the lease that a heartbeat has just extended."""
    duration = row.lease_expires_at - row.heartbeat_at
    return Lease(row.lease_token, holder, row.lease_expires_at, duration)


def complete(
    caller: Caller,
    core: QueueCore[Any],
    claim: Claim[Any] | None,
    *,
    id: Any,  # noqa: A002
    key: str | None,
    holder: Holder | str | None,
    result: Any,
    force: bool,
    actor: str | None,
    on_lost: OnLost,
) -> Outcome:
    """End a task well."""
    checks.choice("on_lost", on_lost, "raise", "return")
    if checks.flag("force", force):
        if claim is not None or holder is not None:
            problem = "goes with id= or key= and actor=, not with a Claim or a holder"
            raise InvalidArgument("force", force, problem)
        target = by_name(core, "complete", id, key, actor=actor)
    elif actor is not None:
        problem = "goes with force=True only; a holder is its own actor"
        raise InvalidArgument("actor", actor, problem)
    else:
        target = held(core, "complete", claim, id, key, holder)
    text = checked_result(core, "result", result)
    return _write(
        caller,
        core,
        target,
        core.statements(statements.complete, target.by, target.fence),
        params={"tq_result": text},
        detail={"forced": True} if force else {},
        on_lost=on_lost,
        again=TaskState.DONE,
    )


def checked_result(core: QueueCore[Any], argument: str, result: Any) -> str | None:
    """Return a result as JSON text that can be stored; None for None.

    Raises:
        InvalidPayload: It is too large.
    """
    if result is None:
        return None
    text = encode(clean_json(result))
    if (size := len(text.encode())) > core.limits.result:
        raise InvalidPayload(argument, result, too_large(size, core.limits.result))
    return text


def error_texts(core: QueueCore[Any], error: object) -> tuple[str, str]:
    """Return the text of an error or reason, cut for the row and cut for the event."""
    limits = core.limits
    text = error_text(error, max(limits.error, limits.event_error))
    return cut(text, limits.error), cut(text, limits.event_error)


def fail(
    caller: Caller,
    core: QueueCore[Any],
    claim: Claim[Any] | None,
    *,
    id: Any,  # noqa: A002
    key: str | None,
    holder: Holder | str | None,
    error: BaseException | str,
    retry: RetryPolicy | None,
    final: bool,
    on_lost: OnLost,
) -> Outcome:
    """Record a failed attempt: queue the next one, or end the task when none is left."""
    checks.choice("on_lost", on_lost, "raise", "return")
    checks.flag("final", final)
    policy = policy_or(core.retry, retry)
    target = held(core, "fail", claim, id, key, holder)
    in_row, in_event = error_texts(core, error)
    params, detail = {"tq_error": in_row}, {"error": in_event}

    def ending(how: statements.Ending) -> Any:
        return core.statements(statements.fail, target.by, target.fence, how)

    if not final:
        attempt = claim.attempt if claim is not None else _attempt_held(caller, core, target)
        delay = checks.duration("retry", policy.delay(attempt))
        retried = _try_write(
            caller,
            core,
            target,
            ending("retry"),
            params={**params, "tq_delay": delay},
            detail={**detail, "retry_in": str(delay)},
        )
        if retried is not None:
            return retried
    return _write(
        caller,
        core,
        target,
        ending("final" if final else "exhausted"),
        params=params,
        detail=detail,
        on_lost=on_lost,
        again=TaskState.FAILED,
    )


def _attempt_held(caller: Caller, core: QueueCore[Any], target: Target) -> int:
    """Return the attempt that the holder works on, from which the backoff is made."""
    caller.flush()
    route = core.statements(statements.fail, target.by, target.fence, "final")
    looked = look(caller, core, target, lock=True, route=route)
    return 1 if looked is None else max(looked.attempt, 1)


def release(
    caller: Caller,
    core: QueueCore[Any],
    claim: Claim[Any] | None,
    *,
    id: Any,  # noqa: A002
    key: str | None,
    holder: Holder | str | None,
) -> Outcome:
    """Give a task back unworked."""
    target = held(core, "release", claim, id, key, holder)
    statement = core.statements(statements.release, target.by, target.fence)
    outcome = _write(caller, core, target, statement, on_lost="return")
    if outcome:
        wake(caller, core, statement)
    return outcome


def snooze(
    caller: Caller,
    core: QueueCore[Any],
    claim: Claim[Any] | None,
    *,
    id: Any,  # noqa: A002
    key: str | None,
    holder: Holder | str | None,
    delay: timedelta,
    on_lost: OnLost,
) -> Outcome:
    """Put a task off without counting the attempt."""
    checks.choice("on_lost", on_lost, "raise", "return")
    target = held(core, "snooze", claim, id, key, holder)
    delay = checks.duration("delay", delay)
    return _write(
        caller,
        core,
        target,
        core.statements(statements.snooze, target.by, target.fence),
        params={"tq_delay": delay},
        detail={"delay": str(delay)},
        on_lost=on_lost,
    )


def cancel(
    caller: Caller,
    core: QueueCore[Any],
    *,
    id: Any,  # noqa: A002
    key: str | None,
    reason: str | None,
    actor: str | None,
) -> Outcome:
    """End a live task that is no longer wanted."""
    target = by_name(core, "cancel", id, key, actor=actor)
    in_row, in_event = (None, None) if reason is None else error_texts(core, reason)
    return _write(
        caller,
        core,
        target,
        core.statements(statements.cancel, target.by),
        params={"tq_error": in_row},
        detail={"reason": in_event},
        on_lost="return",
    )


def retry(
    caller: Caller,
    core: QueueCore[Any],
    *,
    id: Any,  # noqa: A002
    key: str | None,
    actor: str | None,
) -> Outcome:
    """Open a new round of a task that failed or was cancelled."""
    target = by_name(core, "retry", id, key, actor=actor)
    statement = core.statements(statements.retry, target.by)
    caller.flush()
    try:
        with caller.savepoint(statement):
            outcome = _write(caller, core, target, statement, on_lost="return")
    except Exception as error:
        if not is_unique_violation(error):
            raise
        if violated(caller, core, error, statement) not in _index_names(core):
            raise
        looked = look(caller, core, target, lock=False, route=statement)
        return refuse(caller, core, target, looked, RefusalReason.KEY_TAKEN, route=statement)
    if outcome:
        wake(caller, core, statement)
    return outcome


def _index_names(core: QueueCore[Any]) -> set[str | None]:
    """Return the names of the indexes in which a retried task may meet a live one."""
    unique_key = core.model.table.c.unique_key
    return {
        str(index.name) for index in core.model.table.indexes if unique_key in set(index.columns)
    }


def _write(
    caller: Caller,
    core: QueueCore[Any],
    target: Target,
    statement: Any,
    *,
    params: dict[str, Any] | None = None,
    detail: dict[str, Any] | None = None,
    on_lost: OnLost,
    again: TaskState | None = None,
) -> Outcome:
    """Run one conditional write and answer what it did, or why it did nothing.

    Args:
        caller: The caller's session.
        core: The queue.
        target: The task and the fence.
        statement: The conditional UPDATE.
        params: Its parameters, beside those of the target and the event.
        detail: What the event says.
        on_lost: Whether a claim's loss is raised.
        again: The state in which a row that this very token ended counts as written: the same
            call, repeated after a commit whose answer was lost.
    """
    written = _try_write(caller, core, target, statement, params=params, detail=detail)
    if written is not None:
        return written
    looked = look(caller, core, target, lock=False, route=statement)
    if looked is not None and ended_by(target, looked, again):
        return Written(looked.id, looked.state, looked.attempt, looked.run_at)
    refused = refuse(caller, core, target, looked, route=statement)
    if target.claim is not None and on_lost == "raise":
        raise LeaseLost(refused)
    return refused


def _try_write(
    caller: Caller,
    core: QueueCore[Any],
    target: Target,
    statement: Any,
    *,
    params: dict[str, Any] | None,
    detail: dict[str, Any] | None,
) -> Written | None:
    """Run one conditional write; None when no row satisfied its condition."""
    caller.flush()
    rows = caller.rows(
        statement,
        {
            **target.params,
            **(params or {}),
            **core.event(target.actor, {**target.detail, **(detail or {})}),
        },
    )
    if not rows:
        return None
    row = rows[0]
    return Written(core.model.identity_of(row), TaskState(row.state), row.attempt, row.run_at)


def ended_by(target: Target, looked: Looked, state: TaskState | None) -> bool:
    """Tell whether this very claim has already ended the task in *state*."""
    return (
        target.claim is not None
        and looked.state is state
        and looked.ended_token == target.claim.lease.token
    )
