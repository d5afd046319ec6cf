"""The queue's operations on many tasks at once, for synchronous applications."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from . import _operations as operations
from ._operations import States
from ._sessions import Caller, caller
from ._settings import QueueSettings, TaskT
from .retry import RetryPolicy
from .values import Claim, Enqueued, Lease, Refused, TaskSpec, Written

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sqlalchemy import Connection
    from sqlalchemy.orm import Session, scoped_session

    AnySession = Session | scoped_session[Any] | Connection


class QueueBatches(QueueSettings[TaskT]):
    """Many tasks in one call, in statements of bounded size, in the caller's transaction."""

    def _caller(self, session: AnySession) -> Caller:
        return caller(session, self._core.model)

    def enqueue_many(
        self, session: AnySession, specs: Iterable[TaskSpec], *, actor: str | None = None
    ) -> list[Enqueued]:
        """Insert a task for each spec, unless it names one that exists already.

        Each spec is treated as ``enqueue`` treats its arguments, duplicates within the batch
        included: the first of them is created, the others find it. All specs are checked before
        anything is sent.

        Args:
            specs: Any number of tasks; 100,000 in one call are well.
            actor: Who enqueues them.

        Returns:
            One answer for each spec, in their order.

        Raises:
            InvalidArgument: A spec is out of range; nothing was sent.
            EnqueueConflict: A unique constraint of the host's own keeps a row out. Rows before
                it were inserted: roll back.
        """
        return operations.enqueue_many(self._caller(session), self._core, specs, actor=actor)

    def heartbeat_many(
        self,
        session: AnySession,
        claims: Iterable[Claim[TaskT]],
        *,
        lease: timedelta | None = None,
    ) -> list[Lease | Refused[TaskT]]:
        """Extend many leases from now on, waiting for no locked row.

        A row that another transaction has locked is refused as ``busy``; nobody can take it
        meanwhile, so its heartbeat can wait for the next turn.

        Args:
            claims: The claims; of any scopes, unless the queue has some bound.
            lease: How long from now; by default as long as before.

        Returns:
            The extended lease or a refusal for each claim, in their order.
        """
        return operations.heartbeat_many(self._caller(session), self._core, claims, lease=lease)

    def complete_many(
        self,
        session: AnySession,
        claims: Iterable[Claim[TaskT]],
        *,
        results: Iterable[Any] | None = None,
    ) -> list[Written | Refused[TaskT]]:
        """End many tasks well, waiting for no locked row.

        A row that another transaction has locked is refused as ``busy``: send it again.

        Args:
            claims: The claims; of any scopes, unless the queue has some bound.
            results: One result for each claim; none by default.

        Returns:
            What the row says now or a refusal for each claim, in their order.

        Raises:
            InvalidArgument: There are not as many results as claims; nothing was sent.
        """
        return operations.complete_many(self._caller(session), self._core, claims, results=results)

    def fail_many(
        self,
        session: AnySession,
        claims: Iterable[Claim[TaskT]],
        *,
        errors: Iterable[BaseException | str],
        retry: RetryPolicy | None = None,
        final: bool = False,
    ) -> list[Written | Refused[TaskT]]:
        """Record many failed attempts, waiting for no locked row.

        A row that another transaction has locked is refused as ``busy``: send it again.

        Args:
            claims: The claims; of any scopes, unless the queue has some bound.
            errors: One exception or text for each claim.
            retry: How long to wait; by default the queue's policy.
            final: End the tasks in ``failed`` whatever attempts are left.

        Returns:
            What the row says now or a refusal for each claim, in their order.

        Raises:
            InvalidArgument: There are not as many errors as claims; nothing was sent.
        """
        return operations.fail_many(
            self._caller(session), self._core, claims, errors=errors, retry=retry, final=final
        )

    def prune(
        self,
        session: AnySession,
        *,
        older_than: timedelta,
        state: States = None,
        limit: int = 1_000,
    ) -> int:
        """Delete up to *limit* tasks that ended before *older_than* ago, with their events.

        One bounded batch: commit after each, and call it until it returns less than *limit*.
        Of all scopes, unless the queue has some bound. A deleted task's key is free again.

        Args:
            older_than: How long ago they must have ended.
            state: Only those that ended in this state or these; any by default.
            limit: 1 to 10,000.

        Returns:
            How many were deleted.
        """
        return operations.prune(
            self._caller(session), self._core, older_than=older_than, state=state, limit=limit
        )
