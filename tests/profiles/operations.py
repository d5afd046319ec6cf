"""What is counted: every public operation, for one task and for batches.

An operation is made ready for a number of calls, through the synchronous queue whichever facade is
counted; each call is then given what it is about: claims, ids, specs.
"""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from sqlalchemy import update

from sqla_taskqueue import TaskSpec

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy.orm import Session

    from sqla_taskqueue import Claim, Queue

    Ready = Callable[[Queue, Session, int], list[Any]]

PAYLOAD = {"to": "ada@example.org", "language": "en", "attachments": [1, 2, 3]}
HOLDER = "worker-1"
DAY = timedelta(days=1)
SIZES = (1, 10, 100)


class Operation(NamedTuple):
    """One operation: how it is made ready for so many calls, and what one call of it is.

    *call* takes the queue, the caller's session and what the call is about, and returns the
    queue's method with its arguments: only that is counted.
    """

    name: str
    ready: Ready
    call: Callable[[Any, Any, Any], partial]
    kinds: tuple[str, ...] = ("plain", "logged")

    @property
    def method(self) -> str:
        """The queue's method, with which the name begins."""
        return self.name.replace(",", "").split()[0]

    def __str__(self) -> str:
        return self.name


# --- Made ready --------------------------------------------------------------------------------


def nothing(queue: Queue, session: Session, calls: int) -> list[None]:
    """Return nothing for each call."""
    return [None] * calls


def sent(queue: Queue, session: Session, calls: int, size: int = 1) -> list[list[Any]]:
    """Enqueue *size* tasks for each call and return their ids."""
    answers = queue.enqueue_many(session, specs(calls * size))
    return groups([answer.id for answer in answers], size)


def keyed(queue: Queue, session: Session, calls: int, size: int = 1) -> list[list[TaskSpec]]:
    """Enqueue *size* tasks with keys for each call and return the same specs."""
    made = [TaskSpec("work", PAYLOAD, key=f"key-{number}") for number in range(calls * size)]
    queue.enqueue_many(session, made)
    return groups(made, size)


def held(queue: Queue, session: Session, calls: int, size: int = 1) -> list[list[Claim]]:
    """Enqueue and claim *size* tasks for each call and return the claims."""
    sent(queue, session, calls, size)
    return [queue.claim(session, holder=HOLDER, limit=size) for _ in range(calls)]


def ended(queue: Queue, session: Session, calls: int, size: int = 1) -> list[list[Claim]]:
    """Claim *size* tasks for each call, let them fail, and return the claims."""
    made = held(queue, session, calls, size)
    for claims in made:
        queue.fail_many(session, claims, errors=["no"] * size, final=True)
    return made


def expired(queue: Queue, session: Session, calls: int, size: int = 1) -> list[list[Claim]]:
    """Claim *size* tasks for each call, under leases that ran out, and return the claims."""
    made = held(queue, session, calls, size)
    task = queue.model
    session.execute(update(task).values(lease_expires_at=task.claimed_at - DAY))
    return made


def specs(size: int) -> list[TaskSpec]:
    """Return so many tasks to be enqueued."""
    return [TaskSpec("work", PAYLOAD) for _ in range(size)]


def groups(items: list[Any], size: int) -> list[list[Any]]:
    """Return *items* in groups of *size*."""
    return [items[start : start + size] for start in range(0, len(items), size)]


# --- Operations --------------------------------------------------------------------------------

ONE = [
    Operation("enqueue", nothing, lambda q, s, _: partial(q.enqueue, s, "work", PAYLOAD)),
    Operation(
        "enqueue, there already",
        keyed,
        lambda q, s, specs: partial(q.enqueue, s, "work", PAYLOAD, key=specs[0].key),
    ),
    Operation("claim, nothing due", nothing, lambda q, s, _: partial(q.claim, s, holder=HOLDER)),
    Operation(
        "claim_task", sent, lambda q, s, ids: partial(q.claim_task, s, id=ids[0], holder=HOLDER)
    ),
    Operation("heartbeat", held, lambda q, s, claims: partial(q.heartbeat, s, *claims)),
    Operation(
        "complete", held, lambda q, s, claims: partial(q.complete, s, *claims, result=PAYLOAD)
    ),
    Operation(
        "complete, by id",
        held,
        lambda q, s, claims: partial(q.complete, s, id=claims[0].id, holder=HOLDER),
    ),
    Operation(
        "complete, lost",
        ended,
        lambda q, s, claims: partial(q.complete, s, *claims, on_lost="return"),
    ),
    Operation(
        "fail", held, lambda q, s, claims: partial(q.fail, s, *claims, error=ValueError("no"))
    ),
    Operation("release", held, lambda q, s, claims: partial(q.release, s, *claims)),
    Operation("snooze", held, lambda q, s, claims: partial(q.snooze, s, *claims, delay=DAY)),
    Operation("cancel", sent, lambda q, s, ids: partial(q.cancel, s, id=ids[0])),
    Operation("retry", ended, lambda q, s, claims: partial(q.retry, s, id=claims[0].id)),
    Operation("get", sent, lambda q, s, ids: partial(q.get, s, id=ids[0])),
    Operation(
        "history", sent, lambda q, s, ids: partial(q.history, s, id=ids[0]), kinds=("logged",)
    ),
    Operation("stats", sent, lambda q, s, _: partial(q.stats, s)),
    Operation("scope", nothing, lambda q, _, __: partial(q.scope, team_id=7)),
]


def many(size: int) -> list[Operation]:
    """Return the operations on *size* tasks at once."""
    batch = specs(size)
    return [
        Operation(
            f"enqueue_many of {size}",
            nothing,
            lambda q, s, _: partial(q.enqueue_many, s, batch),
        ),
        Operation(
            f"enqueue_many of {size}, there already",
            partial(keyed, size=size),
            lambda q, s, specs: partial(q.enqueue_many, s, specs),
        ),
        Operation(
            f"claim of {size}",
            partial(sent, size=size),
            lambda q, s, _: partial(q.claim, s, holder=HOLDER, limit=size),
        ),
        Operation(
            f"heartbeat_many of {size}",
            partial(held, size=size),
            lambda q, s, claims: partial(q.heartbeat_many, s, claims),
        ),
        Operation(
            f"complete_many of {size}",
            partial(held, size=size),
            lambda q, s, claims: partial(q.complete_many, s, claims, results=[PAYLOAD] * size),
        ),
        Operation(
            f"fail_many of {size}",
            partial(held, size=size),
            lambda q, s, claims: partial(q.fail_many, s, claims, errors=["no"] * size),
        ),
    ]


TEN = [
    Operation("reclaim, nothing expired", nothing, lambda q, s, _: partial(q.reclaim, s)),
    Operation(
        "reclaim of 10",
        partial(expired, size=10),
        lambda q, s, _: partial(q.reclaim, s, limit=10),
    ),
    Operation(
        "prune of 10",
        partial(ended, size=10),
        lambda q, s, _: partial(q.prune, s, older_than=timedelta(0), limit=10),
    ),
    Operation(
        "find of 10",
        partial(sent, size=10),
        lambda q, s, _: partial(q.find, s, state="queued", limit=10),
    ),
]

OPERATIONS = [*ONE, *(operation for size in SIZES for operation in many(size)), *TEN]
