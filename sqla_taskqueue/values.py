"""The plain values that cross the API: what a call takes and what it answers.

Every success is truthy, every :class:`Refused` is falsy and reads as a sentence.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Generic, Literal, TypeVar, final, overload
from uuid import UUID

from . import checks
from .errors import InvalidArgument
from .payloads import JSONValue
from .states import ENDED, TaskState

TaskT = TypeVar("TaskT")
EventT = TypeVar("EventT")


@dataclass(frozen=True, slots=True)
class Holder:
    """Who holds a task: a worker, and a session of it.

    Two sessions of one worker never both hold a task. A plain ``str`` given as ``holder=`` means
    ``Holder(worker)``, the session shared by all that name none.
    """

    worker: str
    session: str = ""

    @classmethod
    def of(cls, holder: Holder | str, limit: int) -> Holder:
        """Return *holder* checked: the names not longer than *limit* bytes, the worker's not ''.

        Raises:
            InvalidArgument: It is neither text nor a :class:`Holder`, or out of range.
        """
        if isinstance(holder, str):
            return cls(checks.text("holder", holder, size=limit))
        if not isinstance(holder, cls):
            raise InvalidArgument(
                "holder", holder, f"must be text or a Holder, not {type(holder).__name__}"
            )
        return cls(
            checks.text("holder", holder.worker, size=limit),
            checks.text("holder.session", holder.session, size=limit, empty=True),
        )

    def __str__(self) -> str:
        return f"{self.worker} (session {self.session})" if self.session else self.worker


@final
@dataclass(frozen=True, slots=True)
class Lease:
    """The right to work on a task until a time of the database's clock.

    Attributes:
        token: Random proof of this very claim; a later claim of the task has another one.
        holder: Who holds it.
        expires_at: Until when, by the database's clock. Compare it with nothing else.
        duration: Its length; a heartbeat uses it again.
    """

    token: UUID
    holder: Holder
    expires_at: datetime
    duration: timedelta


@final
@dataclass(frozen=True, slots=True, eq=False)
class Claim(Generic[TaskT]):
    """A task that the caller holds now; every later write about it takes this value.

    Attributes:
        id: The primary key as ``Session.get`` takes it: a value, or a tuple if composite.
        queue: The queue's name.
        scope: Values of the scope columns.
        name: Which kind of task it is; may be ''.
        payload: What was enqueued.
        attempt: Which execution this is, within its round; 1 for the first.
        max_attempts: How many there may be; None for no limit.
        key: Its key, if it has one.
        lease: The lease that fences every write.
        task: The host's entity: in the caller's session, or detached when the claim was made
            through a ``Connection``.
    """

    id: Any
    queue: str
    scope: dict[str, Any]
    name: str
    payload: JSONValue
    attempt: int
    max_attempts: int | None
    key: str | None
    lease: Lease
    task: TaskT = field(repr=False)


MaxAttempts = int | Literal["default"] | None
"""A number of attempts, ``None`` for no limit, or ``"default"`` for the queue's own."""


@dataclass(frozen=True, slots=True)
class TaskSpec:
    """A task to be enqueued: what ``enqueue`` takes, as a value for ``enqueue_many``.

    Attributes:
        name: Which kind of task.
        payload: What its handler is given; JSON.
        values: Mapped attributes of the host's own, by name.
        id: A primary key made by the host.
        key: Lasting identity within the key scope.
        unique_key: At most one live task of the queue and scope has it.
        priority: The smaller runs sooner.
        run_at: Not before this time.
        delay: Not before this long from now.
        max_attempts: At least 1, None for no limit, ``"default"`` for the queue's default.
    """

    name: str = ""
    payload: Any = None
    _: KW_ONLY
    values: Mapping[str, Any] | None = None
    id: Any = None
    key: str | None = None
    unique_key: str | None = None
    priority: int = 0
    run_at: datetime | None = None
    delay: timedelta | None = None
    max_attempts: MaxAttempts = "default"


@dataclass(frozen=True, slots=True)
class Enqueued:
    """What ``enqueue`` says: readable at any time, in or after the transaction.

    Attributes:
        id: The primary key as ``Session.get`` takes it.
        created: False when the task existed already; then nothing was changed.
        state: The task's state.
    """

    id: Any
    created: bool
    state: TaskState


@final
@dataclass(frozen=True, slots=True)
class Written:
    """A write happened; this is what the row says now.

    Attributes:
        id: The primary key as ``Session.get`` takes it.
        state: The state.
        attempt: Attempts that count, within the round.
        run_at: From when it can be claimed (meaningful while queued).
    """

    id: Any
    state: TaskState
    attempt: int
    run_at: datetime


@dataclass(frozen=True, slots=True)
class Reclaimed:
    """How many leases that had run out were taken back; falsy when none.

    Attributes:
        requeued: Tasks that can be claimed again.
        failed: Tasks whose attempts were used up.
    """

    requeued: int = 0
    failed: int = 0

    @property
    def total(self) -> int:
        """How many rows were changed."""
        return self.requeued + self.failed

    def __bool__(self) -> bool:
        return self.total > 0


class RefusalReason(StrEnum):
    """Why nothing was written: a closed set."""

    GONE = "gone"
    """There is no such task in this queue and scope."""
    FINISHED = "finished"
    """It is done, failed or cancelled."""
    REQUEUED = "requeued"
    """It is queued: the lease ran out and was taken back, or it was never claimed."""
    HELD = "held"
    """Somebody else holds it."""
    HELD_BY_OTHER_SESSION = "held_by_other_session"
    """Another session of the same worker holds it."""
    BLOCKED = "blocked"
    """It waits for other tasks."""
    NOT_DUE = "not_due"
    """Its time has not come."""
    KEY_TAKEN = "key_taken"
    """A live task has the same ``unique_key``."""
    BUSY = "busy"
    """Another transaction has locked the row."""


@dataclass(frozen=True, slots=True, eq=False)
class Refused(Generic[TaskT]):
    """Nothing was written, and why. Falsy; ``str()`` is a sentence for a person.

    Attributes:
        reason: One of a closed set.
        subject: How the caller named the task.
        task: The host's entity as it is now; None when there is none.
        state: Its state.
        holder: Who holds it, or who held it when it ended.
        lease_seconds_remaining: How long the holder's lease runs on; negative once it ran out.
        due_in_seconds: How long until it can be claimed, for ``NOT_DUE``.
        blocked_by: Keys (or ids, as text) of the tasks it waits for.
    """

    reason: RefusalReason
    subject: str
    task: TaskT | None = field(default=None, repr=False)
    state: TaskState | None = None
    holder: Holder | None = None
    lease_seconds_remaining: float | None = None
    due_in_seconds: float | None = None
    blocked_by: tuple[str, ...] = ()

    def __bool__(self) -> Literal[False]:
        return False

    def __str__(self) -> str:
        return f"{self.subject} {self._what()}"

    def _what(self) -> str:
        match self.reason:
            case RefusalReason.GONE:
                return "does not exist in this queue and scope"
            case RefusalReason.FINISHED:
                return f"is already {self.state}"
            case RefusalReason.REQUEUED:
                return "is queued and held by nobody; claim it to work on it"
            case RefusalReason.HELD:
                return f"is held by {self.holder}{self._remaining()}"
            case RefusalReason.HELD_BY_OTHER_SESSION:
                return (
                    f"is held by your own session {self._session()}{self._remaining()}: "
                    "continue there, or wait for the lease to run out and claim it here"
                )
            case RefusalReason.BLOCKED:
                waits = ", ".join(self.blocked_by) or "other tasks"
                return f"is blocked: it waits for {waits}"
            case RefusalReason.NOT_DUE:
                return f"is not due for another {_seconds(self.due_in_seconds)}"
            case RefusalReason.KEY_TAKEN:
                return "cannot be queued again: a live task has the same unique_key"
            case RefusalReason.BUSY:
                return "is locked by another transaction: try again"

    def _session(self) -> str:
        return repr(self.holder.session) if self.holder and self.holder.session else "''"

    def _remaining(self) -> str:
        if self.lease_seconds_remaining is None:
            return ""
        if self.lease_seconds_remaining <= 0:
            return ", whose lease ran out but was not taken back yet"
        return f" for another {_seconds(self.lease_seconds_remaining)}"


def _seconds(seconds: float | None) -> str:
    if seconds is None:
        return "unknown time"
    if seconds < 1:
        return "moment"
    whole = round(seconds)
    return f"{whole} second" if whole == 1 else f"{whole:,} seconds"


@dataclass(frozen=True, slots=True, eq=False)
class Page(Sequence[TaskT]):
    """Some of the tasks that ``find`` found: a sequence of the host's entities.

    Attributes:
        tasks: The entities.
        next: What to give as ``after=`` for the following page; None on the last one.
    """

    tasks: tuple[TaskT, ...]
    next: Any = None

    def __len__(self) -> int:
        return len(self.tasks)

    def __iter__(self) -> Iterator[TaskT]:
        return iter(self.tasks)

    @overload
    def __getitem__(self, index: int) -> TaskT: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[TaskT, ...]: ...
    def __getitem__(self, index: int | slice) -> TaskT | tuple[TaskT, ...]:
        return self.tasks[index]


@dataclass(frozen=True, slots=True)
class QueueStats:
    """How many tasks a queue has in each state, as of one statement.

    Attributes:
        blocked: Exact.
        queued: Exact.
        claimed: Exact.
        done: Exact up to the limit ``counted``.
        failed: Exact up to the limit ``counted``.
        cancelled: Exact up to the limit ``counted``.
        capped: States of which there are more than was counted.
        due: How many of the queued ones could be claimed at once.
        expired: How many of the claimed ones have a lease that ran out.
        oldest_due_at: The earliest ``run_at`` among those that are due; None when none is.
    """

    blocked: int = 0
    queued: int = 0
    claimed: int = 0
    done: int = 0
    failed: int = 0
    cancelled: int = 0
    capped: frozenset[TaskState] = frozenset()
    due: int = 0
    expired: int = 0
    oldest_due_at: datetime | None = None

    def __getitem__(self, state: TaskState | str) -> int:
        count: int = getattr(self, TaskState(state).value)
        return count

    def as_dict(self) -> dict[TaskState, int]:
        """Return the counts by state."""
        return {state: self[state] for state in TaskState}

    @property
    def live(self) -> int:
        """Tasks that still have something to do."""
        return self.blocked + self.queued + self.claimed

    @property
    def ended(self) -> int:
        """Tasks that ended (a lower bound when ``capped``)."""
        return sum(self[state] for state in ENDED)
