"""Claim the next tasks, or one that the caller names; take back leases that ran out."""

from __future__ import annotations

from datetime import datetime, timedelta
from operator import attrgetter
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from .. import checks
from ..statements import claim as statements
from ..statements import lease as lease_statements
from ..states import TaskState
from ..values import Claim, Holder, Lease, Reclaimed, RefusalReason, Refused
from ._refusals import Looked, look, reason_for, refuse
from ._targets import by_name
from ._wakeups import wake

if TYPE_CHECKING:
    from uuid import UUID

    from .._core import QueueCore
    from .._sessions import Caller
    from ._targets import Target

_TRIES = 3
_BATCH = 1_000
"""How many expired leases one statement takes back."""
_FIRST_BATCH = 100
"""The same of a sweep's first: most find nothing, and each row costs the id of an event."""


def claim(
    caller: Caller,
    core: QueueCore[Any],
    *,
    holder: Holder | str,
    limit: int,
    lease: timedelta | None,
    take_expired: bool | None,
) -> list[Claim[Any]]:
    """Take up to *limit* due tasks, in claim order."""
    core.need_scope("claim")
    who = Holder.of(holder, core.limits.name)
    limit = checks.whole("limit", limit, least=1, most=core.limits.claim)
    if take_expired is None:
        take_expired = core.model.is_board
    checks.flag("take_expired", take_expired)
    duration = core.limits.clamp_lease(lease)
    caller.flush()
    if take_expired:
        _reclaim_batch(caller, core, limit, None, None)
    token = uuid4()
    detail = {"session": who.session or None, "via": "next"}
    rows = caller.entities(
        core.statements(statements.claim),
        {
            **core.inside,
            **_lease_params(token, who, duration),
            **core.event(who.worker, detail, limit),
            "tq_limit": limit,
        },
        repeats=False,
    )
    ordered = sorted(rows, key=attrgetter("tq_position"))
    return [_claimed(core, row, token, who, duration) for row in ordered]


def claim_task(
    caller: Caller,
    core: QueueCore[Any],
    *,
    id: Any,  # noqa: A002 - the public word
    key: str | None,
    holder: Holder | str,
    lease: timedelta | None,
) -> Claim[Any] | Refused[Any]:
    """Take one named task; renew it if this very holder has it already."""
    who = Holder.of(holder, core.limits.name)
    target = by_name(core, "claim_task", id, key)
    duration = core.limits.clamp_lease(lease)
    caller.flush()
    looked: Looked | None = None
    for _ in range(_TRIES):
        # The read locks: it goes where the UPDATE will go that follows it.
        route = core.statements(statements.take, "queued")
        looked = look(caller, core, target, lock=True, route=route)
        if looked is None:
            return refuse(caller, core, target, None, route=route)
        if (reason := _not_claimable(looked, who)) is not None:
            return refuse(caller, core, target, looked, reason, route=route)
        params = _by_id(core, target, looked)
        if looked.state is TaskState.CLAIMED and looked.holder != who and looked.exhausted:
            # Its last attempt ended with the lease: end the task first, then say so.
            caller.rows(
                core.statements(lease_statements.give_up),
                {**params, "tq_seen_token": looked.lease_token, **core.event(None)},
            )
            continue
        found: statements.Found = "queued"
        if looked.state is TaskState.CLAIMED:
            found = "held" if looked.holder == who else "expired"
        token = uuid4()
        detail = {
            "session": who.session or None,
            "taken_over_from": str(looked.holder) if found == "expired" else None,
        }
        rows = caller.entities(
            core.statements(statements.take, found),
            {
                **params,
                **_lease_params(token, who, duration),
                **core.event(who.worker, detail),
                "tq_seen_token": looked.lease_token,
                "tq_seen_attempt": looked.attempt,
                "tq_seen_round": looked.round,
            },
            repeats=False,
        )
        if rows:
            return _claimed(core, rows[0], token, who, duration)
    # Only in autocommit: the row changed hands between each look and the write.
    route = core.statements(statements.take, "queued")
    return refuse(caller, core, target, looked, RefusalReason.BUSY, route=route)


def _not_claimable(looked: Looked, who: Holder) -> RefusalReason | None:
    """Return why the task cannot be claimed by *who*, or None."""
    if looked.state is TaskState.QUEUED:
        return None if looked.due_in <= 0 else RefusalReason.NOT_DUE
    if looked.state is TaskState.CLAIMED and (looked.holder == who or looked.expired):
        return None
    return reason_for(looked, who)


def _by_id(core: QueueCore[Any], target: Target, looked: Looked) -> dict[str, Any]:
    """Return the parameters that name the task just looked at by its id."""
    return (
        by_name(core, "claim_task", looked.id, None).params
        if target.by == "key"
        else dict(target.params)
    )


def _lease_params(token: UUID, who: Holder, duration: timedelta) -> dict[str, Any]:
    return {
        "tq_token": token,
        "tq_worker": who.worker,
        "tq_session": who.session,
        "tq_lease": duration,
    }


def _claimed(
    core: QueueCore[Any], row: Any, token: UUID, who: Holder, duration: timedelta
) -> Claim[Any]:
    key = core.model.primary_key
    return Claim(
        id=core.model.identity([getattr(row, f"tq_{column.key}") for column in key]),
        queue=core.name,
        scope=dict(core.scope),
        name=row.tq_name,
        payload=row.tq_payload,
        attempt=row.tq_attempt,
        max_attempts=row.tq_max_attempts,
        key=row.tq_key,
        lease=Lease(token, who, row.tq_lease_expires_at, duration),
        task=row[0],
    )


def reclaim(
    caller: Caller,
    core: QueueCore[Any],
    *,
    stale_after: timedelta | None,
    limit: int | None,
    since: datetime | None = None,
) -> Reclaimed:
    """Take back every lease that ran out, or *limit* of them, in bounded batches.

    With *since*, of those only that were claimed then or later.
    """
    if stale_after is not None:
        stale_after = checks.duration("stale_after", stale_after)
    if limit is not None:
        limit = checks.whole("limit", limit, least=1, most=(1 << 31) - 1)
    caller.flush()
    total = Reclaimed()
    batch = _FIRST_BATCH
    while limit is None or total.total < limit:
        most = batch if limit is None else min(batch, limit - total.total)
        done = _reclaim_batch(caller, core, most, stale_after, since)
        total = Reclaimed(total.requeued + done.requeued, total.failed + done.failed)
        if done.total < most:
            break
        batch = _BATCH
    return total


def _reclaim_batch(
    caller: Caller,
    core: QueueCore[Any],
    limit: int,
    stale_after: timedelta | None,
    since: datetime | None,
) -> Reclaimed:
    expiry: lease_statements.Expiry = "lease" if stale_after is None else "heartbeat"
    bounds: dict[str, Any] = {} if stale_after is None else {"tq_stale_after": stale_after}
    part: tuple[bool, ...] = ()
    if since is not None:
        bounds["tq_since"] = since
        part = (True,)

    def take_back(exhausted: bool, at_most: int) -> int:  # noqa: FBT001 - one of two variants
        if not at_most:
            return 0
        statement = core.statements(lease_statements.reclaim, core.bound, expiry, exhausted, *part)
        event = core.event(None, rows=at_most)
        rows = caller.rows(statement, {**core.inside, **bounds, **event, "tq_limit": at_most})
        if rows and not exhausted:
            wake(caller, core, statement)
        return len(rows)

    requeued = take_back(False, limit)  # noqa: FBT003
    return Reclaimed(requeued, take_back(True, limit - requeued))  # noqa: FBT003
