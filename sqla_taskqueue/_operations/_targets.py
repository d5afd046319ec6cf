"""Which task a call means and what lets it write: a claim's token, or a holder's names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .. import checks
from ..errors import InvalidArgument, shorten
from ..values import Claim, Holder

if TYPE_CHECKING:
    from .._core import QueueCore
    from ..statements._parts import By, Fence


@dataclass(frozen=True, slots=True)
class Target:
    """One task, as the caller names it.

    Attributes:
        by: Whether by id or by key.
        fence: What the write demands of the row.
        params: Parameters of the name and the fence, queue and scope.
        subject: The name in sentences.
        actor: Who acts, for the record.
        holder: Who claims to hold the task; None for operators.
        claim: The claim, in the token form.
    """

    by: By
    fence: Fence
    params: dict[str, Any]
    subject: str
    actor: str | None = None
    holder: Holder | None = None
    claim: Claim[Any] | None = None

    @property
    def detail(self) -> dict[str, Any]:
        """What every event of this target's holder says."""
        return {"session": self.holder.session or None} if self.holder else {}


def by_name(
    core: QueueCore[Any],
    operation: str,
    id: Any,  # noqa: A002 - the public word
    key: str | None,
    *,
    actor: str | None = None,
    scope: Mapping[str, Any] | None = None,
) -> Target:
    """Return the target of an operator's call: ``id=`` or ``key=``, without a fence."""
    if (id is None) == (key is None):
        raise InvalidArgument(operation, {"id": id, "key": key}, "name the task by id= or by key=")
    if actor is not None:
        actor = checks.text("actor", actor, size=core.limits.name)
    if scope is None:
        core.need_scope(operation)
        scope = core.scope
    params = core.inside_of(scope)
    if key is not None:
        params["tq_key"] = checks.text("key", key, characters=core.limits.key, trim=True)
        return Target("key", "live", params, f"task {params['tq_key']!r}", actor)
    for index, value in enumerate(core.model.key_values(id, scope)):
        params[f"tq_pk_{index}"] = value
    shown = shorten(id) if isinstance(id, str | tuple) else str(id)
    return Target("id", "live", params, f"task {shown}", actor)


def held(
    core: QueueCore[Any],
    operation: str,
    claim: Claim[Any] | None,
    id: Any,  # noqa: A002
    key: str | None,
    holder: Holder | str | None,
) -> Target:
    """Return the target of a holder's call: a claim, or ``id=``/``key=`` with ``holder=``."""
    if claim is None:
        if holder is None:
            raise InvalidArgument(
                operation, None, "give it a Claim, or id= or key= together with holder="
            )
        named = by_name(core, operation, id, key)
        who = Holder.of(holder, core.limits.name)
        return Target(
            named.by,
            "holder",
            {**named.params, "tq_worker": who.worker, "tq_session": who.session},
            named.subject,
            who.worker,
            who,
        )
    if not isinstance(claim, Claim):
        raise InvalidArgument(
            operation, claim, f"takes a Claim, not a {type(claim).__name__}; name a task by id="
        )
    if not (id is None and key is None and holder is None):
        raise InvalidArgument(
            operation, claim, "a Claim says it all: leave out id=, key= and holder="
        )
    if claim.queue != core.name or any(
        claim.scope.get(name) != value for name, value in core.scope.items()
    ):
        raise InvalidArgument(
            operation,
            claim,
            f"the claim is of queue {claim.queue!r}, scope {claim.scope!r}, not of "
            f"{core.name!r}, {core.scope!r}",
        )
    named = by_name(core, operation, claim.id, None, scope=claim.scope)
    return Target(
        "id",
        "token",
        {**named.params, "tq_token": claim.lease.token},
        f"task {claim.key!r}" if claim.key else named.subject,
        claim.lease.holder.worker,
        claim.lease.holder,
        claim,
    )
