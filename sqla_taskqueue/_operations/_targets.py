"""Which task a call means and what lets it write: a claim's token, or a holder's names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from uuid import UUID

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
        fence: What the write demands of the row.
        params: Parameters of the name and the fence, queue and scope.
        id: The primary key, if the caller gave that.
        actor: Who acts, for the record.
        holder: Who claims to hold the task; None for operators.
        claim: The claim, in the token form.
    """

    fence: Fence
    params: dict[str, Any]
    id: Any
    actor: str | None = None
    holder: Holder | None = None
    claim: Claim[Any] | None = None

    @property
    def by(self) -> By:
        """Whether the task is named by id or by key."""
        return "key" if self.id is None else "id"

    @property
    def subject(self) -> str:
        """The name in sentences."""
        key = self.params.get("tq_key") if self.claim is None else self.claim.key
        if key:
            return f"task {key!r}"
        id: Any = self.id  # noqa: A001
        return f"task {shorten(id) if isinstance(id, str | tuple) else id}"

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
    partial: bool = False,
) -> Target:
    """Return the target of an operator's call: ``id=`` or ``key=``, without a fence.

    Args:
        core: The queue.
        operation: The method, for messages.
        id: The primary key, or None.
        key: The key, or None.
        actor: Who acts.
        partial: Whether scope columns may have no value.
    """
    if actor is not None:
        actor = checks.text("actor", actor, size=core.limits.name)
    return Target("live", _named(core, operation, id, key, partial=partial), id, actor)


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
            problem = "names no task; give a Claim, or id= or key= together with holder="
            raise InvalidArgument("claim", None, problem)
        params = _named(core, operation, id, key)
        who = Holder.of(holder, core.limits.name)
        params |= {"tq_worker": who.worker, "tq_session": who.session}
        return Target("holder", params, id, who.worker, who)
    if not isinstance(claim, Claim):
        raise InvalidArgument(
            "claim",
            claim,
            f"must be a Claim, not {type(claim).__name__}; name a task by id= or key=",
        )
    if not (id is None and key is None and holder is None):
        problem = "cannot be given together with id=, key= or holder=: it says them all"
        raise InvalidArgument("claim", claim, problem)
    _check_origin(core, "claim", claim)
    return of_claim(core, claim)


def of_claim(core: QueueCore[Any], claim: Claim[Any]) -> Target:
    """Return the target of a checked claim."""
    params = _by_id(core, claim.id, claim.scope)
    params["tq_token"] = claim.lease.token
    who = claim.lease.holder
    return Target("token", params, claim.id, who.worker, who, claim)


def checked_claims(core: QueueCore[Any], claims: Iterable[Claim[Any]]) -> list[Claim[Any]]:
    """Return the claims of a batch, each of this queue and scope.

    Raises:
        InvalidArgument: One is something else.
    """
    given = checks.items("claims", claims, "Claims")
    for index, claim in enumerate(given):
        if not isinstance(claim, Claim):
            raise InvalidArgument(
                f"claims[{index}]", claim, f"must be a Claim, not {type(claim).__name__}"
            )
        _check_origin(core, f"claims[{index}]", claim)
    return given


def _check_origin(core: QueueCore[Any], argument: str, claim: Claim[Any]) -> None:
    if claim.queue != core.name or not core.scope.items() <= claim.scope.items():
        raise InvalidArgument(
            argument,
            claim,
            f"cannot be used here: the claim is of queue {claim.queue!r}, scope {claim.scope!r}, "
            f"and this is queue {core.name!r}, scope {core.scope!r}",
        )
    lease = claim.lease
    if not (isinstance(lease.token, UUID) and isinstance(lease.holder, Holder)):
        raise InvalidArgument(
            argument, claim, "must have a lease whose token is a UUID and whose holder is a Holder"
        )


def _named(
    core: QueueCore[Any],
    operation: str,
    id: Any,  # noqa: A002
    key: str | None,
    *,
    partial: bool = False,
) -> dict[str, Any]:
    """Return the parameters of the queue, its scope, and a task that is named in it."""
    if id is None and key is None:
        raise InvalidArgument("id", None, "names no task; name it by id= or by key=")
    if id is not None and key is not None:
        raise InvalidArgument("key", key, "cannot be given together with id=; one is enough")
    if not partial:
        core.need_scope(operation)
    if key is None:
        return _by_id(core, id, core.scope)
    return {
        **core.inside,
        "tq_key": checks.text("key", key, characters=core.limits.key, trim=True),
    }


def _by_id(core: QueueCore[Any], id: Any, scope: Mapping[str, Any]) -> dict[str, Any]:  # noqa: A002
    """Return the parameters of the queue, a scope, and a task's primary key."""
    params = core.inside_of(scope)
    for number, value in enumerate(core.model.key_values(id, scope)):
        params[f"tq_pk_{number}"] = value
    return params
