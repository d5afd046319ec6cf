"""Heartbeats and endings of many claims at once; they wait for no row that others have locked.

Whatever a statement did not write is looked at afterwards: the claim was lost, or the row is busy
because another transaction has locked it, and can be sent again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from itertools import repeat
from typing import TYPE_CHECKING, Any

from .. import checks
from ..errors import InvalidArgument
from ..models import value_of
from ..payloads import encode
from ..retry import policy_or
from ..statements import batch as statements
from ..states import TaskState
from ..values import Claim, Lease, RefusalReason, Refused, Written
from ._chunks import chunks
from ._refusals import looked_at, refusal
from ._targets import checked_claims, of_claim
from .settling import checked_result, ended_by, error_texts, renewed

if TYPE_CHECKING:
    from .._core import QueueCore
    from .._sessions import Caller
    from ..retry import RetryPolicy
    from ._refusals import Looked

_CHUNK = 1_000
Outcomes = list[Written | Refused[Any]]


def heartbeat_many(
    caller: Caller,
    core: QueueCore[Any],
    claims: Iterable[Claim[Any]],
    *,
    lease: timedelta | None,
) -> list[Lease | Refused[Any]]:
    """Extend many leases; answers in the order of the claims."""
    given = checked_claims(core, claims)
    length = None if lease is None else core.limits.clamp_lease(lease)
    leases = [length or core.limits.clamp_lease(claim.lease.duration) for claim in given]

    def lease_of(claim: Claim[Any], row: Any) -> Lease:
        return renewed(claim.lease.holder, row)

    return _settle(
        caller,
        core,
        given,
        core.statements(statements.heartbeats),
        columns={"tq_sent_lease": leases},
        answer=lease_of,
    )


def complete_many(
    caller: Caller,
    core: QueueCore[Any],
    claims: Iterable[Claim[Any]],
    *,
    results: Iterable[Any] | None,
) -> Outcomes:
    """End many tasks well; answers in the order of the claims."""
    given = checked_claims(core, claims)
    values = [None] * len(given) if results is None else _one_each("results", results, given)
    texts = [
        checked_result(core, f"results[{index}]", value) or "null"
        for index, value in enumerate(values)
    ]
    return _settle(
        caller,
        core,
        given,
        core.statements(statements.completions),
        json=texts,
        answer=_written,
        again=TaskState.DONE,
    )


def fail_many(
    caller: Caller,
    core: QueueCore[Any],
    claims: Iterable[Claim[Any]],
    *,
    errors: Iterable[BaseException | str],
    retry: RetryPolicy | None,
    final: bool,
) -> Outcomes:
    """Record many failed attempts; answers in the order of the claims."""
    checks.flag("final", final)
    policy = policy_or(core.retry, retry)
    given = checked_claims(core, claims)
    texts = [error_texts(core, error) for error in _one_each("errors", errors, given)]
    delays = [checks.duration("retry", policy.delay(claim.attempt)) for claim in given]
    details: list[str] = []
    if core.model.events is not None:
        details = [encode({"error": in_event}) for _, in_event in texts]
    return _settle(
        caller,
        core,
        given,
        core.statements(statements.failures, final),
        columns={
            "tq_sent_error": [in_row for in_row, _ in texts],
            "tq_sent_delay": delays,
        },
        json=details,
        answer=_written,
        again=TaskState.FAILED,
    )


def _one_each(argument: str, values: Iterable[Any], claims: Sequence[Claim[Any]]) -> list[Any]:
    """Return the values of a batch, of which each claim must have one."""
    given = checks.items(argument, values, "values")
    if len(given) != len(claims):
        problem = f"must have {len(claims):,} values, one for each claim, not {len(given):,}"
        raise InvalidArgument(argument, values, problem)
    return given


def _written(claim: Claim[Any], row: Any) -> Written:
    return Written(claim.id, TaskState(row.state), row.attempt, row.run_at)


def _settle(
    caller: Caller,
    core: QueueCore[Any],
    claims: Sequence[Claim[Any]],
    statement: Any,
    *,
    answer: Callable[[Claim[Any], Any], Any],
    columns: dict[str, list[Any]] | None = None,
    json: Sequence[str] = (),
    again: TaskState | None = None,
) -> list[Any]:
    """Write what the claims still hold, and say of each what became of it.

    Args:
        caller: The caller's session.
        core: The queue.
        claims: The claims, checked.
        statement: The conditional UPDATE of many.
        answer: Makes the answer of a claim and the row that was written.
        columns: Arrays with an element for each claim.
        json: A JSON text for each claim, if the statement takes any.
        again: The state in which a row that a claim itself ended counts as written.
    """
    keys = [tuple(core.model.key_values(claim.id, claim.scope)) for claim in claims]
    names = [(key, claim.lease.token) for key, claim in zip(keys, claims, strict=True)]
    # A claim that is given twice is sent once, and answered twice.
    sent = {name: index for index, name in enumerate(names)}
    once = list(sent.values())
    answers: dict[int, Any] = {}
    caller.flush()
    sizes = [len(json[index]) for index in once] if json else repeat(0)
    for chunk in chunks(once, sizes, _CHUNK):
        rows = caller.rows(
            statement,
            {
                "tq_queue": core.name,
                "tq_sent_token": [claims[index].lease.token for index in chunk],
                **_key_arrays([keys[index] for index in chunk]),
                **{
                    name: [values[index] for index in chunk]
                    for name, values in (columns or {}).items()
                },
                **({"tq_sent_json": _array([json[index] for index in chunk])} if json else {}),
                **_event(core, claims, chunk),
            },
        )
        for row in rows:
            index = chunk[row.tq_n - 1]
            answers[index] = answer(claims[index], row)
        if missing := [index for index in chunk if index not in answers]:
            found = _look(caller, core, [keys[index] for index in missing], statement)
            answers |= {
                index: _explain(core, claims[index], found.get(keys[index]), again)
                for index in missing
            }
    return [answers[sent[name]] for name in names]


def _array(texts: list[str]) -> str:
    """Return JSON texts as the text of a JSON array."""
    return f"[{','.join(texts)}]"


def _explain(
    core: QueueCore[Any],
    claim: Claim[Any],
    found: tuple[Looked, Any] | None,
    again: TaskState | None,
) -> Written | Refused[Any]:
    """Say why a claim was not written: lost, busy, or ended by this very claim before."""
    target = of_claim(core, claim)
    if found is None:
        return Refused(RefusalReason.GONE, target.subject)
    looked, task = found
    if ended_by(target, looked, again):
        return Written(looked.id, looked.state, looked.attempt, looked.run_at)
    still_held = looked.lease_token == claim.lease.token
    return refusal(target, looked, task, RefusalReason.BUSY if still_held else None)


def _look(
    caller: Caller, core: QueueCore[Any], keys: list[tuple[Any, ...]], route: Any
) -> dict[tuple[Any, ...], tuple[Looked, Any]]:
    """Read what was not written: the facts where it was tried, and the entities."""
    params = {"tq_queue": core.name, **_key_arrays(keys)}
    facts = caller.rows(core.statements(statements.look), params, route=route)
    entities = caller.entities(core.statements(statements.by_keys), _key_arrays(keys), route=route)
    tasks = {_key(core, row): row[0] for row in entities}
    return {_key(core, row): (looked_at(core, row), tasks.get(_key(core, row))) for row in facts}


def _key(core: QueueCore[Any], row: Any) -> tuple[Any, ...]:
    return tuple(value_of(row, column) for column in core.model.primary_key)


def _key_arrays(keys: list[tuple[Any, ...]]) -> dict[str, list[Any]]:
    columns = zip(*keys, strict=True)
    return {f"tq_sent_pk_{n}": list(values) for n, values in enumerate(columns)}


def _event(core: QueueCore[Any], claims: Sequence[Claim[Any]], chunk: list[int]) -> dict[str, Any]:
    """Return the parameters of recorded events; each claim's holder is its actor."""
    if core.model.events is None:
        return {}
    return {
        "tq_sent_actor": [claims[index].lease.holder.worker for index in chunk],
        "tq_detail": None,
        **core.model.events.rows(len(chunk)),
    }
