"""The queue, for asynchronous applications: the methods of :class:`.Queue`, awaited.

Each runs the same operation on the synchronous session beneath, through ``run_sync``, the way
SQLAlchemy's own asyncio extension works. A cancelled call leaves the session as a cancelled
``session.execute`` does.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from . import _operations as operations
from ._async_batches import AsyncQueueBatches
from ._operations import IfExists, OnLost, States
from ._settings import TaskT
from .retry import RetryPolicy
from .values import (
    Claim,
    Enqueued,
    Holder,
    Lease,
    MaxAttempts,
    Page,
    QueueStats,
    Reclaimed,
    Refused,
    TaskSpec,
    Written,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_scoped_session

    AnySession = AsyncSession | async_scoped_session[Any] | AsyncConnection


class AsyncQueue(AsyncQueueBatches[TaskT]):
    """A queue of the host's own class, for ``AsyncSession`` and ``AsyncConnection``."""

    async def enqueue(
        self,
        session: AnySession,
        name: str = "",
        payload: Any = None,
        *,
        values: Mapping[str, Any] | None = None,
        id: Any = None,  # noqa: A002
        key: str | None = None,
        unique_key: str | None = None,
        priority: int = 0,
        run_at: datetime | None = None,
        delay: timedelta | None = None,
        max_attempts: MaxAttempts = "default",
        actor: str | None = None,
        if_exists: IfExists = "return",
    ) -> Enqueued:
        """Insert a task, unless its id, key or unique key names one that exists already.

        See :meth:`.Queue.enqueue`.
        """
        spec = TaskSpec(
            name,
            payload,
            values=values,
            id=id,
            key=key,
            unique_key=unique_key,
            priority=priority,
            run_at=run_at,
            delay=delay,
            max_attempts=max_attempts,
        )
        return await self._run(session, operations.enqueue, spec, actor=actor, if_exists=if_exists)

    async def claim(
        self,
        session: AnySession,
        *,
        holder: Holder | str,
        limit: int = 1,
        lease: timedelta | None = None,
        take_expired: bool | None = None,
    ) -> list[Claim[TaskT]]:
        """Take up to *limit* due tasks under a lease, in order of (priority, run_at, key).

        See :meth:`.Queue.claim`.
        """
        return await self._run(
            session,
            operations.claim,
            holder=holder,
            limit=limit,
            lease=lease,
            take_expired=take_expired,
        )

    async def claim_task(
        self,
        session: AnySession,
        *,
        id: Any = None,  # noqa: A002
        key: str | None = None,
        holder: Holder | str,
        lease: timedelta | None = None,
    ) -> Claim[TaskT] | Refused[TaskT]:
        """Take the one named task: if it is due, if its lease ran out, or to renew one's own.

        See :meth:`.Queue.claim_task`.
        """
        return await self._run(
            session, operations.claim_task, id=id, key=key, holder=holder, lease=lease
        )

    async def heartbeat(
        self,
        session: AnySession,
        claim: Claim[TaskT] | None = None,
        *,
        id: Any = None,  # noqa: A002
        key: str | None = None,
        holder: Holder | str | None = None,
        lease: timedelta | None = None,
    ) -> Lease | Refused[TaskT]:
        """Extend a lease from now on; also after its end, as long as nobody took the task.

        See :meth:`.Queue.heartbeat`.
        """
        return await self._run(
            session, operations.heartbeat, claim, id=id, key=key, holder=holder, lease=lease
        )

    async def complete(
        self,
        session: AnySession,
        claim: Claim[TaskT] | None = None,
        *,
        id: Any = None,  # noqa: A002
        key: str | None = None,
        holder: Holder | str | None = None,
        result: Any = None,
        force: bool = False,
        actor: str | None = None,
        on_lost: OnLost = "raise",
    ) -> Written | Refused[TaskT]:
        """End a task well. As a transaction's last statement it makes the effects exactly-once.

        See :meth:`.Queue.complete`.
        """
        return await self._run(
            session,
            operations.complete,
            claim,
            id=id,
            key=key,
            holder=holder,
            result=result,
            force=force,
            actor=actor,
            on_lost=on_lost,
        )

    async def fail(
        self,
        session: AnySession,
        claim: Claim[TaskT] | None = None,
        *,
        id: Any = None,  # noqa: A002
        key: str | None = None,
        holder: Holder | str | None = None,
        error: BaseException | str = "",
        retry: RetryPolicy | None = None,
        final: bool = False,
        on_lost: OnLost = "raise",
    ) -> Written | Refused[TaskT]:
        """Record a failed attempt: the task waits for the next one, or ends when none is left.

        See :meth:`.Queue.fail`.
        """
        return await self._run(
            session,
            operations.fail,
            claim,
            id=id,
            key=key,
            holder=holder,
            error=error,
            retry=retry,
            final=final,
            on_lost=on_lost,
        )

    async def release(
        self,
        session: AnySession,
        claim: Claim[TaskT] | None = None,
        *,
        id: Any = None,  # noqa: A002
        key: str | None = None,
        holder: Holder | str | None = None,
    ) -> Written | Refused[TaskT]:
        """Give a task back unworked: the attempt is not counted and ``run_at`` stays.

        See :meth:`.Queue.release`.
        """
        return await self._run(session, operations.release, claim, id=id, key=key, holder=holder)

    async def snooze(
        self,
        session: AnySession,
        claim: Claim[TaskT] | None = None,
        *,
        id: Any = None,  # noqa: A002
        key: str | None = None,
        holder: Holder | str | None = None,
        delay: timedelta,
        on_lost: OnLost = "raise",
    ) -> Written | Refused[TaskT]:
        """Put a task off for *delay*: the attempt is not counted.

        See :meth:`.Queue.snooze`.
        """
        return await self._run(
            session,
            operations.snooze,
            claim,
            id=id,
            key=key,
            holder=holder,
            delay=delay,
            on_lost=on_lost,
        )

    async def cancel(
        self,
        session: AnySession,
        *,
        id: Any = None,  # noqa: A002
        key: str | None = None,
        reason: str | None = None,
        actor: str | None = None,
    ) -> Written | Refused[TaskT]:
        """End a live task that is no longer wanted, whoever holds it.

        See :meth:`.Queue.cancel`.
        """
        return await self._run(
            session, operations.cancel, id=id, key=key, reason=reason, actor=actor
        )

    async def retry(
        self,
        session: AnySession,
        *,
        id: Any = None,  # noqa: A002
        key: str | None = None,
        actor: str | None = None,
    ) -> Written | Refused[TaskT]:
        """Queue a failed or cancelled task again: a new round, due at once, attempts from 0.

        See :meth:`.Queue.retry`.
        """
        return await self._run(session, operations.retry, id=id, key=key, actor=actor)

    async def reclaim(
        self,
        session: AnySession,
        *,
        stale_after: timedelta | None = None,
        limit: int | None = None,
    ) -> Reclaimed:
        """Take back tasks whose lease ran out, in batches that wait for no locked row.

        See :meth:`.Queue.reclaim`.
        """
        return await self._run(session, operations.reclaim, stale_after=stale_after, limit=limit)

    async def get(
        self,
        session: AnySession,
        *,
        id: Any = None,  # noqa: A002
        key: str | None = None,
    ) -> TaskT | None:
        """Return one task of the queue as it is now, or None.

        See :meth:`.Queue.get`.
        """
        task: TaskT | None = await self._run(session, operations.get, id=id, key=key)
        return task

    async def find(
        self,
        session: AnySession,
        *,
        state: States = None,
        name: str | None = None,
        holder: Holder | str | None = None,
        created_by: str | None = None,
        limit: int = 50,
        after: Any = None,
        content: bool = False,
    ) -> Page[TaskT]:
        """Return one page of tasks, newest key first; of all scopes unless some are bound.

        See :meth:`.Queue.find`.
        """
        return await self._run(
            session,
            operations.find,
            state=state,
            name=name,
            holder=holder,
            created_by=created_by,
            limit=limit,
            after=after,
            content=content,
        )

    async def history(
        self,
        session: AnySession,
        *,
        id: Any = None,  # noqa: A002
        key: str | None = None,
    ) -> list[Any]:
        """Return the events of one task, oldest first: entities of the host's event class.

        See :meth:`.Queue.history`.
        """
        return await self._run(session, operations.history, id=id, key=key)

    async def stats(self, session: AnySession) -> QueueStats:
        """Count the queue's tasks by state; of all scopes unless some are bound.

        See :meth:`.Queue.stats`.
        """
        return await self._run(session, operations.stats)

    def scope(self, **values: Any) -> AsyncQueue[TaskT]:
        """Return this queue with scope columns bound.

        See :meth:`.Queue.scope`.
        """
        bound = object.__new__(type(self))
        bound._core = self._core.scoped(values)
        return bound
