"""The isolation level of the host's engine (B24): what passes through, and what a retry gets."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any, NamedTuple

import pytest
from sqlalchemy import func, select, update
from sqlalchemy.exc import DBAPIError

from sqla_taskqueue import Claim, Enqueued, Lease, Refused, TaskSpec, Written
from sqla_taskqueue._drivers import sqlstate
from tests.surroundings.kinds import Autocommit, RepeatableRead, Serializable, Surrounding, kinds
from tests.surroundings.life import crew

NOW = timedelta(0)

snapshots = kinds(RepeatableRead, Serializable)


# --- A row that has changed since the snapshot -------------------------------------------------


class Stale(NamedTuple):
    """What A does to a task after B has taken its snapshot, what B does, and what B must get."""

    prepare: Callable[..., Any]
    theirs: Callable[..., Any]
    ours: Callable[..., Any]
    answer: Any


async def queued(here):
    """Enqueue two tasks."""
    await here.do(here.queue.enqueue_many, [TaskSpec("work", n, key=f"k{n}") for n in range(2)])


async def claimed(here):
    """Claim one of two tasks."""
    await queued(here)
    return await here.do(here.queue.claim_task, key="k0", holder="b")


async def expired(here):
    """Let the lease of a claimed task run out."""
    claim = await claimed(here)
    tasks = here.base.Task.__table__
    ended = func.statement_timestamp() - timedelta(seconds=1)
    held = tasks.c.lease_token.is_not(None)
    await here.run(update(tasks).where(held).values(lease_expires_at=ended))
    return claim


async def cancelled(here):
    """Cancel a claimed task."""
    claim = await claimed(here)
    await here.do(here.queue.cancel, id=claim.id)
    return claim


def claims(q, s, _):
    """A claims the first task."""
    return q.claim_task(s, key="k0", holder="a")


def creates(q, s, _):
    """A enqueues a new key."""
    return q.enqueue(s, "work", 9, key="new")


def beats(q, s, claim):
    """The holder renews its lease, from another connection."""
    return q.heartbeat(s, claim)


def retries(q, s, claim):
    """An operator retries the task."""
    return q.retry(s, id=claim.id)


NEW, SOON = TaskSpec("work", 8, key="new"), timedelta(seconds=1)
STALE = {
    "enqueue": Stale(queued, creates, lambda q, s, _: q.enqueue(s, key="new"), "exists"),
    "enqueue_many": Stale(queued, creates, lambda q, s, _: q.enqueue_many(s, [NEW]), ["exists"]),
    "claim": Stale(queued, claims, lambda q, s, _: q.claim(s, holder="b"), [1]),
    "claim_task": Stale(
        queued, claims, lambda q, s, _: q.claim_task(s, key="k0", holder="b"), "held"
    ),
    "heartbeat": Stale(claimed, beats, lambda q, s, c: q.heartbeat(s, c), "lease"),
    "heartbeat_many": Stale(claimed, beats, lambda q, s, c: q.heartbeat_many(s, [c]), ["lease"]),
    "complete": Stale(claimed, beats, lambda q, s, c: q.complete(s, c), "done"),
    "complete_many": Stale(claimed, beats, lambda q, s, c: q.complete_many(s, [c]), ["done"]),
    "fail": Stale(claimed, beats, lambda q, s, c: q.fail(s, c), "queued"),
    "fail_many": Stale(
        claimed, beats, lambda q, s, c: q.fail_many(s, [c], errors=["no"]), ["queued"]
    ),
    "release": Stale(claimed, beats, lambda q, s, c: q.release(s, c), "queued"),
    "snooze": Stale(claimed, beats, lambda q, s, c: q.snooze(s, c, delay=SOON), "queued"),
    "cancel": Stale(claimed, beats, lambda q, s, c: q.cancel(s, id=c.id), "cancelled"),
    "retry": Stale(cancelled, retries, lambda q, s, c: q.retry(s, id=c.id), "requeued"),
    "reclaim": Stale(expired, beats, lambda q, s, _: q.reclaim(s), 0),
    "prune": Stale(cancelled, retries, lambda q, s, _: q.prune(s, older_than=NOW), 0),
}


def described(answer):
    """Return what an answer says in one word."""
    match answer:
        case list():
            return [described(one) for one in answer]
        case Claim():
            return answer.payload
        case Lease():
            return "lease"
        case Enqueued():
            return "created" if answer.created else "exists"
        case Written():
            return answer.state
        case Refused():
            return answer.reason
        case int():
            return answer
        case _:
            return answer.total


@pytest.mark.parametrize("case", STALE.values(), ids=STALE)
@snapshots
async def test_a_stale_snapshot_is_told_to_the_caller(here, case):
    """The database's 40001 passes through, in the caller's transaction; a retry gets it right."""
    q = here.queue
    claim = await case.prepare(here)
    async with here.begin() as session:
        await session.execute(select(1))  # B's snapshot is taken
        assert await here.do(lambda other: case.theirs(q, other, claim))
        with pytest.raises(DBAPIError) as caught:
            await case.ours(q, session, claim)
        assert sqlstate(caught.value) == sqlstate(caught.value.orig) == "40001"
        assert session.in_transaction()  # it is the caller's to roll back
        await session.rollback()
    assert described(await here.do(lambda again: case.ours(q, again, claim))) == case.answer


@snapshots
async def test_reads_are_of_the_snapshot(here):
    """What is only read is as it was, and never an error."""
    q = here.queue
    claim = await claimed(here)
    async with here.begin() as session:
        before = await q.stats(session)
        await here.do(q.complete, claim)
        assert await q.stats(session) == before
        assert (await q.get(session, id=claim.id)).state == "claimed"
        assert [task.state for task in await q.find(session, state="claimed")] == ["claimed"]
        assert [one.type for one in await q.history(session, id=claim.id)] == [
            "created",
            "claimed",
        ]
    assert (await here.do(q.get, id=claim.id)).state == "done"


@kinds(Serializable)
async def test_a_commit_may_be_refused(here):
    """At SERIALIZABLE two claims beside each other may not both commit: none of its tasks is lost."""
    q = here.queue
    await queued(here)
    with pytest.raises(DBAPIError) as caught:
        async with here.begin() as session:
            [lost] = await q.claim(session, holder="w1")
            [kept] = await here.do(q.claim, holder="w2")
    assert sqlstate(caught.value) == "40001"
    assert lost.id != kept.id
    assert not await here.do(q.complete, lost, on_lost="return")
    assert (await here.do(q.claim, holder="w1"))[0].id == lost.id


# --- A crew ------------------------------------------------------------------------------------


@kinds(Surrounding, RepeatableRead, Serializable, Autocommit)
async def test_a_crew_does_each_task_once(here):
    """Eight workers, some of them crash: each of 400 tasks is done, by one of them, once."""
    await crew(here, workers=8, tasks=400, crashes=10)
