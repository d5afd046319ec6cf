"""A cancelled call of the asynchronous queue leaves nothing behind."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter

import pytest

from tests.behaviour.hosts import Base, Logged, committed, events, expire, queue_of

pytestmark = pytest.mark.parametrize("driver", ["psycopg-async", "asyncpg"], indirect=True)

ROUNDS = 300
POOL = 3


async def cut_short(call, seconds):
    """Start *call* as a task and cancel it after so many seconds; tell whether it was cut."""
    task = asyncio.ensure_future(call)
    timer = asyncio.get_running_loop().call_later(seconds, task.cancel)
    try:
        await task
    except asyncio.CancelledError:
        return True
    finally:
        timer.cancel()
    return False


async def settled(twin, engine):
    """Wait until the pool has everything back and no connection is in a transaction."""
    await twin.until(lambda: engine.pool.checkedout() == 0)
    await twin.until(lambda: all(other.state == "idle" for other in twin.database.others()))


@pytest.mark.slow
async def test_cancelled_calls_leave_no_transaction_and_no_lock(twin):
    """Calls cancelled at random moments leave pool, locks and rows as if they had not been."""
    twin.create(Base.metadata)
    engine = twin.new_engine(pool_size=POOL, max_overflow=0)
    queue = queue_of(twin, Logged)
    dice = random.Random(22)
    begun = time.monotonic()
    for number in range(10):
        await committed(twin, queue.enqueue, "ready", number, bind=engine)
    typical = (time.monotonic() - begun) / 10
    cut = Counter()

    async def one(session, kind, held):
        if kind == "enqueue":
            await queue.enqueue(session, "extra", key=str(dice.random()))
        elif kind == "claim" or held is None:
            await queue.claim(session, holder="w", limit=2)
        elif kind == "heartbeat":
            await queue.heartbeat(session, held)
        else:
            await queue.complete(session, held, on_lost="return")

    for number in range(ROUNDS):
        kind = dice.choice(["enqueue", "claim", "heartbeat", "complete"])
        held = None
        if kind in ("heartbeat", "complete"):
            claims = await committed(twin, queue.claim, holder="w", bind=engine)
            if not claims:
                await committed(twin, queue.enqueue, "ready", number, bind=engine)
                claims = await committed(twin, queue.claim, holder="w", bind=engine)
            [held] = claims
        call = committed(twin, one, kind, held, bind=engine)
        # From before its beginning to after its end.
        cut[kind, await cut_short(call, dice.uniform(0, 2 * typical))] += 1

    for kind in ("enqueue", "claim", "heartbeat", "complete"):
        assert cut[kind, True] > 0, cut
    assert sum(count for (_, was_cut), count in cut.items() if not was_cut) > 0, cut
    await settled(twin, engine)

    # Every row is whole: queued, claimed under a lease, or done.
    odd = twin.sql(
        "SELECT state, attempt, lease_token, lease_expires_at, finished_at FROM logged WHERE NOT"
        " CASE state"
        "  WHEN 'queued' THEN lease_token IS NULL AND attempt = 0 AND finished_at IS NULL"
        "  WHEN 'claimed' THEN attempt = 1 AND finished_at IS NULL"
        "   AND lease_expires_at > statement_timestamp() AND claimed_by = 'w'"
        "  WHEN 'done' THEN finished_at IS NOT NULL AND ended_token IS NOT NULL"
        "  ELSE false END"
    )
    assert odd == []
    # And each has exactly the events of what happened to it.
    recorded = Counter((one.task_id, one.type) for one in events(twin, Logged))
    expected = Counter()
    for row in twin.sql("SELECT id, state FROM logged"):
        expected[row.id, "created"] += 1
        expected[row.id, "claimed"] += row.state != "queued"
        expected[row.id, "completed"] += row.state == "done"
    assert recorded == +expected

    # No lock is left: whatever is live can be claimed, in one go.
    expire(twin, queue)
    live = twin.scalar("SELECT count(*) FROM logged WHERE state IN ('queued', 'claimed')")
    assert (await committed(twin, queue.reclaim, bind=engine)).failed == 0
    claims = await committed(twin, queue.claim, holder="last", limit=1_000, bind=engine)
    assert len(claims) == live > 0
    await settled(twin, engine)


async def test_a_cancelled_wait_for_a_lock_gives_everything_back(twin):
    """A call cancelled while it waits for another transaction's lock undoes itself."""
    twin.create(Base.metadata)
    engine = twin.new_engine(pool_size=POOL, max_overflow=0)
    queue = queue_of(twin, Logged)
    await committed(twin, queue.enqueue, "wanted", key="k")
    [claim] = await committed(twin, queue.claim, holder="w1")
    calls = {
        "complete": lambda session: queue.complete(session, claim),
        "heartbeat": lambda session: queue.heartbeat(session, claim),
        "fail": lambda session: queue.fail(session, claim),
        "claim_task": lambda session: queue.claim_task(session, id=claim.id, holder="w2"),
    }
    for name, call in calls.items():
        async with twin.begin() as holding:
            await queue.heartbeat(holding, claim)
            waiting = twin.spawn(committed, twin, call, bind=engine)
            await twin.until_waiting()
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
        await settled(twin, engine)
        assert twin.scalar("SELECT state FROM logged") == "claimed", name
    assert await committed(twin, queue.complete, claim, bind=engine)
    assert [one.type for one in events(twin, Logged)] == ["created", "claimed", "completed"]
