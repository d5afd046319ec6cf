"""The queue, for synchronous applications. The reference documentation of every method is here.

Every method takes the caller's ``Session``, ``scoped_session`` or ``Connection`` first and runs in
its transaction: it flushes what is pending, and never commits, rolls back, closes or expires.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from . import _operations as operations
from ._core import DEFAULT_QUEUE, Notify, QueueCore
from ._operations import IfExists, MaxAttempts, OnLost, States
from ._sessions import Caller, caller
from .mixins import TaskMixin
from .retry import RetryPolicy
from .values import (
    Claim,
    Enqueued,
    Holder,
    Lease,
    Limits,
    Page,
    QueueStats,
    Reclaimed,
    Refused,
    Written,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sqlalchemy import Connection
    from sqlalchemy.orm import Session, scoped_session

    AnySession = Session | scoped_session[Any] | Connection

TaskT = TypeVar("TaskT", bound=TaskMixin)


class QueueSettings(Generic[TaskT]):
    """What both facades are: a class, a name, a scope and settings, but no engine.

    Make one at module level; it costs nothing until it is used.

    Args:
        model: The host's mapped class with :class:`~sqla_taskqueue.TaskMixin`.
        name: The queue's name, at most 100 bytes.
        limits: Bounds and defaults; :meth:`Limits.board` for classes with ``BoardMixin``.
        retry: How long a failed task waits; by default 5 s, doubled each time, at most an hour.
        notify: ``"transaction"`` wakes workers by NOTIFY when the caller commits, ``"off"``
            leaves it to their polling. A session that prepares its transaction (two-phase)
            never notifies.

    Raises:
        UnsupportedModel: The class cannot carry a queue.
        InvalidArgument: The name or a setting is out of range.
    """

    def __init__(
        self,
        model: type[TaskT],
        name: str = DEFAULT_QUEUE,
        *,
        limits: Limits | None = None,
        retry: RetryPolicy | None = None,
        notify: Notify = "transaction",
    ) -> None:
        self._core: QueueCore[TaskT] = QueueCore(
            model, name, limits=limits, retry=retry, notify=notify
        )

    @property
    def model(self) -> type[TaskT]:
        """The host's task class."""
        return self._core.model.cls

    @property
    def name(self) -> str:
        """The queue's name."""
        return self._core.name

    @property
    def limits(self) -> Limits:
        """Bounds and defaults."""
        return self._core.limits

    @property
    def scope_values(self) -> dict[str, Any]:
        """The scope columns that are bound, and their values."""
        return dict(self._core.scope)

    def __repr__(self) -> str:
        bound = "".join(f", {name}={value!r}" for name, value in self._core.scope.items())
        return f"<{type(self).__name__} {self.name!r} of {self.model.__name__}{bound}>"


class Queue(QueueSettings[TaskT]):
    """A queue of the host's own class, for synchronous sessions and connections."""

    def _caller(self, session: AnySession) -> Caller:
        return caller(session, self._core.model.mapper)

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
            session: The caller's session or connection.
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
        return operations.enqueue(
            self._caller(session),
            self._core,
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
            actor=actor,
            if_exists=if_exists,
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
            session: The caller's session or connection.
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
            session: The caller's session or connection.
            id: The primary key; or
            key: the key.
            holder: Who takes it.
            lease: How long.

        Returns:
            The claim, or a refusal: gone, finished, blocked, not due, or held by somebody.
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
            session: The caller's session or connection.
            claim: The claim; or
            id: the primary key with ``holder=``; or
            key: the key with ``holder=``.
            holder: Who holds it.
            lease: How long from now; by default as long as before.

        Returns:
            The extended lease, or a refusal, which means: stop working on the task.
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
        lost can be tried again.

        Args:
            session: The caller's session or connection.
            claim: The claim; or
            id: the primary key with ``holder=`` or ``force=True``; or
            key: the key, likewise.
            holder: Who holds it.
            result: JSON, at most 64 KiB; what JSON does not know is stored as text.
            force: End it from any live state, whoever holds it.
            actor: Who forces it, for the history.
            on_lost: With a claim that was lost, ``"raise"`` LeaseLost or ``"return"`` the refusal.

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
            session: The caller's session or connection.
            claim: The claim; or
            id: the primary key with ``holder=``; or
            key: the key with ``holder=``.
            holder: Who holds it.
            error: An exception or a text; cut at 1,000 characters in the row.
            retry: How long to wait; by default the queue's policy.
            final: End the task in ``failed`` whatever attempts are left.
            on_lost: With a claim that was lost, ``"raise"`` LeaseLost or ``"return"`` the refusal.

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

        Args:
            session: The caller's session or connection.
            claim: The claim; or
            id: the primary key with ``holder=``; or
            key: the key with ``holder=``.
            holder: Who holds it.

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
            session: The caller's session or connection.
            claim: The claim; or
            id: the primary key with ``holder=``; or
            key: the key with ``holder=``.
            holder: Who holds it.
            delay: How long from now.
            on_lost: With a claim that was lost, ``"raise"`` LeaseLost or ``"return"`` the refusal.

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
            session: The caller's session or connection.
            id: The primary key; or
            key: the key.
            reason: Stored as the row's ``error``; cut at 1,000 characters.
            actor: Who cancels, for the history.

        Returns:
            What the row says now, or a refusal: gone or finished.
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
            session: The caller's session or connection.
            id: The primary key; or
            key: the key.
            actor: Who retries, for the history.

        Returns:
            What the row says now, or a refusal: gone, done, still live, or its ``unique_key`` is
            taken by a live task.
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
            session: The caller's session or connection.
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

        Args:
            session: The caller's session or connection.
            id: The primary key; or
            key: the key.

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
            session: The caller's session or connection.
            state: One state or several; any by default.
            name: Only tasks of this kind.
            holder: Only tasks that this holder has, or had when they ended.
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

        Args:
            session: The caller's session or connection.
            id: The primary key; or
            key: the key.

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
