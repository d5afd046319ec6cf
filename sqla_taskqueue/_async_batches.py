"""The queue's operations on many tasks at once, for asynchronous applications."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from . import _operations as operations
from ._core import QueueCore
from ._operations import States
from ._sessions import Caller, caller, runner
from ._settings import QueueSettings, TaskT
from .retry import RetryPolicy
from .values import Claim, Enqueued, Lease, Refused, TaskSpec, Written

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_scoped_session

    AnySession = AsyncSession | async_scoped_session[Any] | AsyncConnection

P = ParamSpec("P")
AnswerT = TypeVar("AnswerT")


class AsyncQueueBatches(QueueSettings[TaskT]):
    """Many tasks in one call, in statements of bounded size, in the caller's transaction."""

    async def _run(
        self,
        session: AnySession,
        operation: Callable[Concatenate[Caller, QueueCore[Any], P], AnswerT],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> AnswerT:
        def run(sync: Any) -> AnswerT:
            return operation(caller(sync, self._core.model), self._core, *args, **kwargs)

        answer: AnswerT = await runner(session)(run)
        return answer

    async def enqueue_many(
        self, session: AnySession, specs: Iterable[TaskSpec], *, actor: str | None = None
    ) -> list[Enqueued]:
        """Insert a task for each spec, unless it names one that exists already.

        See :meth:`.Queue.enqueue_many`.
        """
        return await self._run(session, operations.enqueue_many, specs, actor=actor)

    async def heartbeat_many(
        self,
        session: AnySession,
        claims: Iterable[Claim[TaskT]],
        *,
        lease: timedelta | None = None,
    ) -> list[Lease | Refused[TaskT]]:
        """Extend many leases from now on, waiting for no locked row.

        See :meth:`.Queue.heartbeat_many`.
        """
        return await self._run(session, operations.heartbeat_many, claims, lease=lease)

    async def complete_many(
        self,
        session: AnySession,
        claims: Iterable[Claim[TaskT]],
        *,
        results: Iterable[Any] | None = None,
    ) -> list[Written | Refused[TaskT]]:
        """End many tasks well, waiting for no locked row.

        See :meth:`.Queue.complete_many`.
        """
        return await self._run(session, operations.complete_many, claims, results=results)

    async def fail_many(
        self,
        session: AnySession,
        claims: Iterable[Claim[TaskT]],
        *,
        errors: Iterable[BaseException | str],
        retry: RetryPolicy | None = None,
        final: bool = False,
    ) -> list[Written | Refused[TaskT]]:
        """Record many failed attempts, waiting for no locked row.

        See :meth:`.Queue.fail_many`.
        """
        return await self._run(
            session, operations.fail_many, claims, errors=errors, retry=retry, final=final
        )

    async def prune(
        self,
        session: AnySession,
        *,
        older_than: timedelta,
        state: States = None,
        limit: int = 1_000,
    ) -> int:
        """Delete up to *limit* tasks that ended before *older_than* ago, with their events.

        See :meth:`.Queue.prune`.
        """
        return await self._run(
            session, operations.prune, older_than=older_than, state=state, limit=limit
        )
