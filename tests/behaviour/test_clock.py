"""There is one clock, the database's, and it says when the statement began."""

from __future__ import annotations

import datetime as dt
import pkgutil
import sys
import time
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import text

import sqla_taskqueue
from sqla_taskqueue import Fixed
from tests.behaviour.hosts import (
    Base,
    Board,
    Logged,
    Task,
    committed,
    events,
    everything,
    expire,
    queue_of,
    row_of,
    send_and_take,
    take,
)

TEN = timedelta(seconds=10)
both_forms = pytest.mark.parametrize("model", [Task, Logged], ids=lambda model: model.__name__)


@pytest.fixture(autouse=True)
def tables(twin):
    """Every test of this module starts with the application's tables, empty."""
    twin.create(Base.metadata)


@pytest.fixture(params=[timedelta(hours=1), timedelta(hours=-1)], ids=["fast", "slow"])
def wrong_clock(request, monkeypatch):
    """Set this process's clock an hour ahead or behind, wherever the library might read it."""
    error = request.param
    seconds = error.total_seconds()
    now, now_ns = time.time, time.time_ns
    monkeypatch.setattr(time, "time", lambda: now() + seconds)
    monkeypatch.setattr(time, "time_ns", lambda: now_ns() + int(seconds) * 10**9)

    class AnyDatetime(type):
        def __instancecheck__(cls, instance):
            return isinstance(instance, dt.datetime)

    class Wrong(datetime, metaclass=AnyDatetime):
        @classmethod
        def now(cls, tz=None):
            return datetime.now(tz) + error

        @classmethod
        def utcnow(cls):
            return datetime.now(UTC).replace(tzinfo=None) + error

        @classmethod
        def today(cls):
            return cls.now()

    for module in pkgutil.walk_packages(sqla_taskqueue.__path__, "sqla_taskqueue."):
        loaded = sys.modules.get(module.name)
        if loaded is not None and getattr(loaded, "datetime", None) is datetime:
            monkeypatch.setattr(loaded, "datetime", Wrong)
    assert abs(time.time() - now() - seconds) < 60
    return error


async def timed(twin, call):
    """Run *call* and return its answer, with the database's time before and after."""
    before = twin.scalar("SELECT clock_timestamp()")
    answer = await call
    return answer, before, twin.scalar("SELECT clock_timestamp()")


# --- The process's clock is wrong --------------------------------------------------------------


@both_forms
async def test_a_live_lease_is_safe_from_a_wrong_clock(twin, model, wrong_clock):
    """A worker whose clock is an hour off neither gets nor takes back what another one holds."""
    queue = queue_of(twin, model)
    held = await send_and_take(twin, queue, "a", lease=timedelta(seconds=60))
    before = everything(twin)
    assert await committed(twin, queue.claim, holder="b", take_expired=True) == []
    assert not await committed(twin, queue.reclaim)
    assert not await committed(twin, queue.reclaim, stale_after=timedelta(seconds=60))
    assert not await committed(twin, queue.claim_task, id=held.id, holder="b")
    assert everything(twin) == before
    async with twin.begin() as session:
        stats = await queue.stats(session)
    assert (stats.claimed, stats.expired) == (1, 0)


async def test_an_expired_lease_is_taken_back_by_any_clock(twin, wrong_clock):
    """A lease that ran out by the database's clock is over, however slow the worker's."""
    queue = queue_of(twin, Logged)
    await send_and_take(twin, queue, "a")
    expire(twin, queue)
    assert (await committed(twin, queue.reclaim)).requeued == 1
    assert (await take(twin, queue, "b")).attempt == 2


@both_forms
async def test_stored_times_are_the_databases(twin, model, wrong_clock):
    """Delays, backoff, leases and stamps count from the database's clock."""
    queue = queue_of(twin, model)

    call = committed(twin, queue.enqueue, delay=TEN)
    _, before, after = await timed(twin, call)
    row = row_of(twin, queue)
    assert before + TEN <= row.run_at <= after + TEN
    assert before <= row.created_at == row.updated_at <= after
    assert await committed(twin, queue.claim, holder="b") == []
    twin.sql(f"UPDATE {model.__tablename__} SET run_at = statement_timestamp()")

    call = take(twin, queue, "b", lease=timedelta(seconds=60))
    claim, before, after = await timed(twin, call)
    row = row_of(twin, queue)
    assert before <= row.claimed_at == row.heartbeat_at <= after
    minute = timedelta(seconds=60)
    assert before + minute <= row.lease_expires_at == claim.lease.expires_at <= after + minute

    lease, before, after = await timed(twin, committed(twin, queue.heartbeat, claim))
    row = row_of(twin, queue)
    assert before <= row.heartbeat_at <= after
    assert before + minute <= row.lease_expires_at == lease.expires_at <= after + minute

    call = committed(twin, queue.fail, claim, error="no", retry=Fixed(TEN))
    written, before, after = await timed(twin, call)
    row = row_of(twin, queue)
    assert before + TEN <= row.run_at == written.run_at <= after + TEN
    assert before <= row.updated_at <= after
    assert await committed(twin, queue.claim, holder="b") == []
    twin.sql(f"UPDATE {model.__tablename__} SET run_at = statement_timestamp()")

    claim = await take(twin, queue, "b")
    _, before, after = await timed(twin, committed(twin, queue.snooze, claim, delay=TEN))
    assert before + TEN <= row_of(twin, queue).run_at <= after + TEN
    twin.sql(f"UPDATE {model.__tablename__} SET run_at = statement_timestamp()")

    claim = await take(twin, queue, "b")
    _, before, after = await timed(twin, committed(twin, queue.complete, claim))
    row = row_of(twin, queue)
    assert before <= row.finished_at == row.updated_at <= after
    if model is Logged:
        now = twin.scalar("SELECT clock_timestamp()")
        for event in events(twin, model):
            assert row.created_at <= event.created_at <= now, event.type


async def test_a_task_that_is_due_is_due_for_every_clock(twin, wrong_clock):
    """A slow worker gets a task that is due, and a fast one does not get it early."""
    queue = queue_of(twin, Task)
    await committed(twin, queue.enqueue, "due")
    await committed(twin, queue.enqueue, "later", delay=timedelta(minutes=30))
    claims = await committed(twin, queue.claim, holder="b", limit=10)
    assert [claim.name for claim in claims] == ["due"]


# --- The transaction is old --------------------------------------------------------------------


async def old(session):
    """Begin the session's transaction, and return the time that `now()` has in it."""
    return (await session.execute(text("SELECT now()"))).scalar_one()


@pytest.mark.parametrize("model", [Task, Logged, Board], ids=lambda model: model.__name__)
async def test_leases_count_from_the_statement(twin, model):
    """In an old transaction a lease begins with the claim, not with the transaction."""
    queue = queue_of(twin, model)
    async with twin.begin() as session:
        began = await old(session)
        await queue.enqueue(session, "here")
        # Due although it was made after the transaction's own time.
        [claim] = await queue.claim(session, holder="w1")
        beaten = await queue.heartbeat(session, claim)
        renewed = await queue.claim_task(session, id=claim.id, holder="w1")
        snoozed = await queue.snooze(session, renewed, delay=timedelta(0))
        [again] = await queue.claim(session, holder="w1")
        await queue.complete(session, again)
    row = row_of(twin, queue)
    duration = claim.lease.duration
    starts = [
        row.created_at,
        claim.lease.expires_at - duration,
        beaten.expires_at - duration,
        renewed.lease.expires_at - duration,
        snoozed.run_at,
        again.lease.expires_at - duration,
        row.finished_at,
    ]
    assert began < starts[0]
    assert starts == sorted(set(starts))
    if model is not Task:
        times = [event.created_at for event in events(twin, model)]
        assert len(times) == len(set(times))
        assert times == sorted(times)
        assert times[0] > began


async def test_an_old_transaction_sees_leases_that_ran_out_since(twin):
    """A sweep in an old transaction judges leases by the time of the sweep."""
    queue = queue_of(twin, Logged)
    await send_and_take(twin, queue)
    async with twin.begin() as session:
        began = await old(session)
        twin.sql("UPDATE logged SET lease_expires_at = clock_timestamp()")
        assert row_of(twin, queue).lease_expires_at > began
        assert (await queue.reclaim(session)).requeued == 1


async def test_an_old_transaction_fails_and_takes_over_by_the_statement(twin):
    """Backoff and takeovers of an old transaction count from their own statements."""
    queue = queue_of(twin, Logged)
    claim = await send_and_take(twin, queue, "w1")
    async with twin.begin() as session:
        began = await old(session)
        twin.sql("UPDATE logged SET lease_expires_at = clock_timestamp()")
        taken = await queue.claim_task(session, id=claim.id, holder="w2")
        assert taken.attempt == 2
        written = await queue.fail(session, taken, retry=Fixed(TEN))
    assert written.run_at > began + TEN
