# pyright: strict, reportUnnecessaryTypeIgnoreComment=true
"""What Queue infers from the host's class. Checked, never run."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, assert_type

from sqlalchemy import Connection
from sqlalchemy.orm import Session, scoped_session

from sqla_taskqueue import (
    Claim,
    Enqueued,
    Fixed,
    Holder,
    Lease,
    Limits,
    Page,
    Queue,
    QueueStats,
    Reclaimed,
    RefusalReason,
    Refused,
    TaskState,
    Written,
)
from tests.typing.hosts import Board, Task, User

tasks = Queue(Task, "builds", limits=Limits(), retry=Fixed(), notify="off")
builds = tasks.scope(project="9f2c")
board = Queue(Board)

assert_type(tasks, Queue[Task])
assert_type(builds, Queue[Task])
assert_type(board.scope(team_id=7).scope(), Queue[Board])
assert_type(builds.scope_values, dict[str, Any])


def every_method(session: Session) -> None:
    """Each method names the host's class where it answers with it."""
    sent = builds.enqueue(session, "compile", {"ref": "main"}, key="k", values={"user_id": 7})
    assert_type(sent, Enqueued)
    assert_type(sent.id, Any)
    assert_type(sent.state, TaskState)

    claims = builds.claim(session, holder=Holder("w1", "s"), limit=10, lease=timedelta(1))
    assert_type(claims, list[Claim[Task]])
    assert_type(claims[0].task, Task)
    assert_type(claims[0].task.user, User | None)
    assert_type(claims[0].id, Any)
    assert_type(claims[0].lease, Lease)
    assert_type((board.claim(session, holder="w1"))[0].task.team_id, int)

    claim = claims[0]
    assert_type(builds.claim_task(session, id=1, holder="w1"), Claim[Task] | Refused[Task])
    assert_type(builds.heartbeat(session, claim), Lease | Refused[Task])
    assert_type(builds.complete(session, claim, result=[1]), Written | Refused[Task])
    assert_type(builds.fail(session, claim, error=ValueError()), Written | Refused[Task])
    assert_type(builds.release(session, key="k", holder="w1"), Written | Refused[Task])
    assert_type(
        builds.snooze(session, claim, delay=timedelta(1), on_lost="return"),
        Written | Refused[Task],
    )
    assert_type(builds.cancel(session, id=1, actor="me"), Written | Refused[Task])
    assert_type(builds.retry(session, id=1), Written | Refused[Task])
    assert_type(builds.reclaim(session), Reclaimed)
    assert_type(builds.history(session, id=1), list[Any])
    assert_type(builds.stats(session), QueueStats)

    task = builds.get(session, id=sent.id)
    assert_type(task, Task | None)


def pages(session: Session) -> None:
    """A page is a sequence of the host's class."""
    page = builds.find(session, state=TaskState.DONE)
    assert_type(page, Page[Task])
    assert_type(page[0], Task)
    assert_type(page[0].user, User | None)
    assert_type(page[1:], tuple[Task, ...])
    assert_type([task for task in page], list[Task])  # noqa: C416 - iterating is the point
    assert_type(list(reversed(page)), list[Task])
    assert_type(page.tasks, tuple[Task, ...])
    assert_type(page.next, Any)


def refusals(session: Session) -> None:
    """A refusal is falsy, which both checkers know: after the check there is a claim."""
    claim = builds.claim_task(session, key="k", holder="w1")
    if not claim:
        assert_type(claim, Refused[Task])
        assert_type(claim.task, Task | None)
        assert_type(claim.reason, RefusalReason)
        return
    assert_type(claim, Claim[Task])
    written = builds.complete(session, claim, on_lost="return")
    if isinstance(written, Refused):
        assert_type(written, Refused[Task])
    else:
        assert_type(written, Written)


def every_caller(scoped: scoped_session[Session], connection: Connection) -> None:
    """Scoped sessions and connections will do."""
    assert_type(builds.get(scoped, id=1), Task | None)
    assert_type(builds.get(connection, id=1), Task | None)
