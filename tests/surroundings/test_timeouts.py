"""Timeouts of the host's, and rows that somebody else has locked."""

from __future__ import annotations

from contextlib import asynccontextmanager
from datetime import timedelta

import psycopg
import pytest
from sqlalchemy import select
from sqlalchemy.exc import DBAPIError

from sqla_taskqueue import RefusalReason, TaskSpec
from sqla_taskqueue._drivers import sqlstate
from tests.servers import conninfo
from tests.surroundings.kinds import Timeouts, connect_args, kinds

# Name, and the SQLSTATE of what it interrupts.
TIMEOUTS = {"lock_timeout": "55P03", "statement_timeout": "57014"}

SOON = timedelta(seconds=1)
NOW = timedelta(0)

# Writes to one task, which wait for whoever has locked it.
WAITING = {
    "claim_task": lambda q, s, claim: q.claim_task(s, id=claim.id, holder="w1"),
    "heartbeat": lambda q, s, claim: q.heartbeat(s, claim),
    "complete": lambda q, s, claim: q.complete(s, claim),
    "complete by holder": lambda q, s, claim: q.complete(s, id=claim.id, holder="w1"),
    "complete by force": lambda q, s, claim: q.complete(s, id=claim.id, force=True),
    "fail": lambda q, s, claim: q.fail(s, claim),
    "fail by holder": lambda q, s, claim: q.fail(s, id=claim.id, holder="w1"),
    "release": lambda q, s, claim: q.release(s, claim),
    "snooze": lambda q, s, claim: q.snooze(s, claim, delay=SOON),
    "cancel": lambda q, s, claim: q.cancel(s, id=claim.id),
}


@asynccontextmanager
async def locked(here, where="true", count=1):
    """Lock so many tasks in a transaction of somebody else's."""
    with psycopg.connect(conninfo(here.twin.database.url), application_name="locker") as other:
        rows = other.execute(f"SELECT id FROM tasks WHERE {where} FOR UPDATE").fetchall()
        assert len(rows) == count
        yield


@asynccontextmanager
async def impatient(here, timeout):
    """Open a session whose connection waits for 20 ms at most."""
    engine = here.twin.new_engine(connect_args=connect_args(here.twin.driver, **{timeout: "20ms"}))
    async with here.twin.session(engine) as session:
        yield session


async def claims_of(here, number):
    """Enqueue and claim so many tasks."""
    await here.do(
        here.queue.enqueue_many, [TaskSpec("work", n, key=f"k{n}") for n in range(number)]
    )
    return await here.do(here.queue.claim, holder="w1", limit=number)


@pytest.mark.parametrize("operation", WAITING.values(), ids=WAITING)
@pytest.mark.parametrize("timeout", TIMEOUTS)
@kinds(Timeouts)
async def test_a_write_that_waits_too_long_says_so(here, timeout, operation):
    """The database's error passes through; the transaction is the caller's, and so is a retry."""
    [claim] = await claims_of(here, 1)
    async with impatient(here, timeout) as session, locked(here):
        with pytest.raises(DBAPIError) as caught:
            await operation(here.queue, session, claim)
        assert sqlstate(caught.value) == sqlstate(caught.value.orig) == TIMEOUTS[timeout]
        assert session.in_transaction()
        await session.rollback()
    assert await here.do(lambda again: operation(here.queue, again, claim))


@pytest.mark.parametrize("timeout", TIMEOUTS)
@kinds(Timeouts)
async def test_a_retry_that_waits_too_long_says_so(here, timeout):
    """As any write; its savepoint hides no error but a unique key that is taken."""
    [claim] = await claims_of(here, 1)
    await here.do(here.queue.cancel, id=claim.id)
    async with impatient(here, timeout) as session, locked(here):
        with pytest.raises(DBAPIError) as caught:
            await here.queue.retry(session, id=claim.id)
        assert sqlstate(caught.value) == TIMEOUTS[timeout]
        assert session.in_transaction()
        await session.rollback()


@pytest.mark.parametrize("timeout", TIMEOUTS)
@pytest.mark.parametrize("many", [False, True], ids=["enqueue", "enqueue_many"])
@kinds(Timeouts)
async def test_a_key_that_is_being_enqueued_is_waited_for(here, timeout, many):
    """Whether the key is taken is known when the other transaction ends; too late is an error."""
    q = here.queue
    async with impatient(here, timeout) as session, here.begin() as other:
        await q.enqueue(other, key="k")
        with pytest.raises(DBAPIError) as caught:
            await (
                q.enqueue_many(session, [TaskSpec(key="k")])
                if many
                else q.enqueue(session, key="k")
            )
        assert sqlstate(caught.value) == TIMEOUTS[timeout]
        await session.rollback()
    assert not (await here.do(q.enqueue, key="k")).created


@kinds(Timeouts)
async def test_what_takes_many_never_waits(here):
    """Claims, sweeps and batch forms pass over rows that others have locked, and say so."""
    q = here.queue
    claims = await claims_of(here, 3)
    await here.do(q.complete, claims[2])
    await here.do(q.enqueue, "work", 3, key="k3")
    async with impatient(here, "lock_timeout") as session, locked(here, count=4):
        assert await q.claim(session, holder="w2", limit=9) == []
        for answers in (
            await q.heartbeat_many(session, claims[:2]),
            await q.complete_many(session, claims[:2]),
            await q.fail_many(session, claims[:2], errors=["no", "no"]),
        ):
            assert [answer.reason for answer in answers] == [RefusalReason.BUSY] * 2
        assert not await q.reclaim(session, stale_after=NOW)
        assert await q.claim(session, holder="w2", take_expired=True) == []
        assert await q.prune(session, older_than=NOW) == 0
        assert not (await q.enqueue(session, key="k0")).created
        assert [one.created for one in await q.enqueue_many(session, [TaskSpec(key="k1")])] == [
            False
        ]
        assert (await q.stats(session)).live == 3
        assert len(await q.find(session)) == 4
        assert (await q.get(session, key="k0")).state == "claimed"
        assert len(await q.history(session, key="k0")) == 2
        await session.execute(select(1))  # the transaction is usable
        await session.rollback()


@kinds(Timeouts)
async def test_what_is_not_locked_is_written_beside_what_is(here):
    """A batch writes what it can; what was busy is sent again."""
    q = here.queue
    claims = await claims_of(here, 3)
    async with impatient(here, "lock_timeout") as session:
        async with locked(here, "key = 'k1'"):
            done = await q.complete_many(session, claims)
            await session.commit()
        assert [bool(answer) for answer in done] == [True, False, True]
        assert all(await q.complete_many(session, claims))
        await session.commit()
