"""The queue, for synchronous applications. The reference documentation of every method is here.

Every method takes the caller's ``Session``, ``scoped_session`` or ``Connection`` first and runs in
its transaction: it flushes what is pending, and never commits, rolls back, closes or expires.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from . import _operations as operations
from ._batches import QueueBatches
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

    from sqlalchemy import Connection
    from sqlalchemy.orm import Session, scoped_session

    AnySession = Session | scoped_session[Any] | Connection


class Queue(QueueBatches[TaskT]):
    """A queue of the host's own class, for synchronous sessions and connections.

    What the methods have in common:

    *session* is the caller's ``Session``, ``scoped_session`` or ``Connection``.

    One task is named by *id*, its primary key (a tuple if composite), or by *key*. A holder names
    it by the *claim* that it got, or by id or key together with *holder*: a worker's name, or a
    :class:`Holder` with a session. Claims are the strict form: their token tells two claims of
    one holder apart.

    A write that finds the task gone, ended or held by somebody else writes nothing and returns a
    falsy :class:`Refused` that says why. With a claim, ``complete``, ``fail`` and ``snooze`` raise
    :class:`LeaseLost` instead, so that the caller's transaction rolls back, unless
    ``on_lost="return"``.
    """

    def enqueue(
        self,
        session: AnySession,
        name: str = "",
        payload: Any = None,
        *,
        values: Mapping[str, Any] | None = None,
        id: Any = None,  # noqa: A002 - the public word
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

        An existing task is left as it is, whatever its state. Two transactions that enqueue the
        same key wait for each other: when the first rolls back, the second inserts. At
        REPEATABLE READ and above a key that was committed after the snapshot is the database's
        serialization failure (SQLSTATE 40001): retry the transaction.

        Args:
            name: Which kind of task, at most 100 bytes.
            payload: JSON: None, bool, int, float, str, list, or dict with text keys; at most
                1 MiB encoded.
            values: Mapped attributes of the host's own, by name.
            id: A primary key made by the host; a tuple if composite. Idempotent like a key.
            key: Lasting identity within the key scope, across queues: 1 to 128 characters,
                trimmed. Free again only when the row is deleted.
            unique_key: At most one live task of this queue and scope has it; free once it ends.
            priority: The smaller runs sooner; -32,768 to 32,767.
            run_at: Not before this time, which must know its zone.
            delay: Not before this long from now, by the database's clock.
            max_attempts: At least 1, or None for no limit; by default ``limits.max_attempts``.
            actor: Who enqueues, for ``created_by`` and the history.
            if_exists: ``"raise"`` makes an existing task an error.

        Returns:
            The id, whether it was created, and the state.

        Raises:
            InvalidArgument: An argument is out of range; InvalidPayload for the payload.
            ScopeMissing: A scope column has no value; use :meth:`scope`.
            TaskExists: It exists and ``if_exists="raise"``.
            EnqueueConflict: A unique constraint of the host's own, or a row of another scope,
                keeps it out.
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
        return operations.enqueue(
            self._caller(session), self._core, spec, actor=actor, if_exists=if_exists
        )

    def claim(
        self,
        session: AnySession,
        *,
        holder: Holder | str,
        limit: int = 1,
        lease: timedelta | None = None,
        take_expired: bool | None = None,
    ) -> list[Claim[TaskT]]:
        """Take up to *limit* due tasks under a lease, in order of (priority, run_at, key).

        Each task goes to exactly one claimer; rows that others have locked are passed over. The
        claims count once the caller commits: until then nobody else sees or gets the tasks.

        Args:
            holder: Who takes them: a worker's name, or :class:`Holder` with a session.
            limit: 1 to 1,000.
            lease: How long, within ``limits``; by default ``limits.lease``.
            take_expired: Whether to take back leases that ran out first. The default for board
                classes; otherwise :meth:`reclaim` does.

        Returns:
            The claims, in claim order; an empty list when nothing is due.

        Raises:
            InvalidArgument: The holder or limit is out of range.
            ScopeMissing: A scope column has no value.
        """
        return operations.claim(
            self._caller(session),
            self._core,
            holder=holder,
            limit=limit,
            lease=lease,
            take_expired=take_expired,
        )

    def claim_task(
        self,
        session: AnySession,
        *,
        id: Any = None,  # noqa: A002
        key: str | None = None,
        holder: Holder | str,
        lease: timedelta | None = None,
    ) -> Claim[TaskT] | Refused[TaskT]:
        """Take the one named task: if it is due, if its lease ran out, or to renew one's own.

        Claiming what the same holder (worker and session) has already renews it: the same
        attempt under a new token, so that an earlier claim can no longer write.

        Args:
            lease: How long.

        Returns:
            The claim, or a refusal (gone, finished, blocked, not due, or held by somebody).
        """
        return operations.claim_task(
            self._caller(session), self._core, id=id, key=key, holder=holder, lease=lease
        )

    def heartbeat(
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

        Args:
            lease: How long from now; by default as long as before.

        Returns:
            The extended lease, or a refusal; then stop working on the task.
        """
        return operations.heartbeat(
            self._caller(session),
            self._core,
            claim,
            id=id,
            key=key,
            holder=holder,
            lease=lease,
        )

    def complete(
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

        Repeating it with the claim that ended the task is a success: a commit whose answer was
        lost can be tried again. If that transaction held effects too, look at ``ended_token``
        before repeating it: they would be there twice.

        Args:
            result: JSON, at most 64 KiB; what JSON does not know is stored as text.
            force: End it from any live state, whoever holds it.
            actor: Who forces it, for the history.

        Returns:
            What the row says now, or a refusal.

        Raises:
            LeaseLost: The claim no longer holds the task; nothing was written.
            InvalidPayload: The result is too large.
        """
        return operations.complete(
            self._caller(session),
            self._core,
            claim,
            id=id,
            key=key,
            holder=holder,
            result=result,
            force=force,
            actor=actor,
            on_lost=on_lost,
        )

    def fail(
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

        Args:
            error: An exception or a text; cut at 1,000 characters in the row.
            retry: How long to wait; by default the queue's policy.
            final: End the task in ``failed`` whatever attempts are left.

        Returns:
            What the row says now (``queued`` or ``failed``), or a refusal.

        Raises:
            LeaseLost: The claim no longer holds the task; nothing was written.
        """
        return operations.fail(
            self._caller(session),
            self._core,
            claim,
            id=id,
            key=key,
            holder=holder,
            error=error,
            retry=retry,
            final=final,
            on_lost=on_lost,
        )

    def release(
        self,
        session: AnySession,
        claim: Claim[TaskT] | None = None,
        *,
        id: Any = None,  # noqa: A002
        key: str | None = None,
        holder: Holder | str | None = None,
    ) -> Written | Refused[TaskT]:
        """Give a task back unworked: the attempt is not counted and ``run_at`` stays.

        Returns:
            What the row says now, or a refusal.
        """
        return operations.release(
            self._caller(session), self._core, claim, id=id, key=key, holder=holder
        )

    def snooze(
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

        Args:
            delay: How long from now.

        Returns:
            What the row says now, or a refusal.

        Raises:
            LeaseLost: The claim no longer holds the task; nothing was written.
        """
        return operations.snooze(
            self._caller(session),
            self._core,
            claim,
            id=id,
            key=key,
            holder=holder,
            delay=delay,
            on_lost=on_lost,
        )

    def cancel(
        self,
        session: AnySession,
        *,
        id: Any = None,  # noqa: A002
        key: str | None = None,
        reason: str | None = None,
        actor: str | None = None,
    ) -> Written | Refused[TaskT]:
        """End a live task that is no longer wanted, whoever holds it.

        Args:
            reason: Stored as the row's ``error``; cut at 1,000 characters.
            actor: Who cancels, for the history.

        Returns:
            What the row says now, or a refusal (gone or finished).
        """
        return operations.cancel(
            self._caller(session), self._core, id=id, key=key, reason=reason, actor=actor
        )

    def retry(
        self,
        session: AnySession,
        *,
        id: Any = None,  # noqa: A002
        key: str | None = None,
        actor: str | None = None,
    ) -> Written | Refused[TaskT]:
        """Queue a failed or cancelled task again: a new round, due at once, attempts from 0.

        Args:
            actor: Who retries, for the history.

        Returns:
            What the row says now, or a refusal (gone, done, still live, or its ``unique_key`` is
            taken by a live task).
        """
        return operations.retry(self._caller(session), self._core, id=id, key=key, actor=actor)

    def reclaim(
        self,
        session: AnySession,
        *,
        stale_after: timedelta | None = None,
        limit: int | None = None,
    ) -> Reclaimed:
        """Take back tasks whose lease ran out, in batches that wait for no locked row.

        They keep ``run_at`` and their attempts; those on their last attempt end in ``failed``.
        Of all scopes, unless the queue has some bound.

        Args:
            stale_after: Go by the age of the last heartbeat instead of the lease.
            limit: Take back at most this many; by default all.

        Returns:
            How many were requeued and how many failed.
        """
        return operations.reclaim(
            self._caller(session), self._core, stale_after=stale_after, limit=limit
        )

    def get(
        self,
        session: AnySession,
        *,
        id: Any = None,  # noqa: A002
        key: str | None = None,
    ) -> TaskT | None:
        """Return one task of the queue as it is now, or None.

        By id the scope may be unbound; by key it must be complete.

        Returns:
            The host's entity, refreshed; detached when read through a ``Connection``.
        """
        task: TaskT | None = operations.get(self._caller(session), self._core, id=id, key=key)
        return task

    def find(
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

        Args:
            state: One state or several; any by default.
            name: Only tasks of this kind.
            created_by: Only tasks that this actor enqueued.
            limit: Size of the page, clamped to 1 to 200.
            after: ``next`` of the page before.
            content: Load payload and result too; otherwise they are deferred.

        Returns:
            A sequence of the host's entities; ``next`` is None on the last page.
        """
        return operations.find(
            self._caller(session),
            self._core,
            state=state,
            name=name,
            holder=holder,
            created_by=created_by,
            limit=limit,
            after=after,
            content=content,
        )

    def history(
        self,
        session: AnySession,
        *,
        id: Any = None,  # noqa: A002
        key: str | None = None,
    ) -> list[Any]:
        """Return the events of one task, oldest first: entities of the host's event class.

        Raises:
            UnsupportedModel: The host has no event class for its task class.
        """
        return operations.history(self._caller(session), self._core, id=id, key=key)

    def stats(self, session: AnySession) -> QueueStats:
        """Count the queue's tasks by state; of all scopes unless some are bound.

        Live states are exact; ended ones up to ``limits.counted``, then marked as capped.
        """
        return operations.stats(self._caller(session), self._core)

    def scope(self, **values: Any) -> Queue[TaskT]:
        """Return this queue with scope columns bound: ``builds.scope(project="9f2c")``.

        Claims and writes need all of them, ``reclaim``, ``find``, ``get`` and ``stats`` take any
        part. A scoped queue is cheap and shares everything with this one.

        Raises:
            InvalidArgument: A name is no scope column of the class, or a value is None.
        """
        bound = object.__new__(type(self))
        bound._core = self._core.scoped(values)
        return bound
