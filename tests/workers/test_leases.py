"""Leases are never lost while the worker lives, and a handler that lost one is told (B04-B08)."""

from __future__ import annotations

import asyncio
import logging
import random
import threading
import time

import pytest
from sqlalchemy import text

from sqla_taskqueue import Fixed, should_stop
from sqla_taskqueue.worker import _upkeep
from tests.workers.working import MS, NEVER, SECOND, running

LEASE = 300 * MS
SWEPT = 600 * MS
"""Long enough for a busy machine, where another worker takes at once what ran out."""

# Every write of a heartbeat is written down by the database, whoever made it.
WRITE_DOWN = """
CREATE TABLE beats (id uuid, state text, token uuid, at timestamptz);
CREATE FUNCTION write_down() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
  INSERT INTO beats VALUES (NEW.id, NEW.state, NEW.lease_token, NEW.heartbeat_at); RETURN NEW;
END $$;
CREATE TRIGGER write_down AFTER UPDATE ON tasks FOR EACH ROW
  WHEN (OLD.heartbeat_at IS DISTINCT FROM NEW.heartbeat_at) EXECUTE FUNCTION write_down();
"""

one_driver_each = pytest.mark.parametrize("driver", ["psycopg2", "asyncpg"], indirect=True)


def blocking_loop():
    """Lets nothing else in the event loop run: a fault that is made often."""
    time.sleep(10 * SWEPT.total_seconds())


def spinning():
    """Computes in Python, and gives the interpreter's lock away only when it is taken from it."""
    until = time.monotonic() + 10 * SWEPT.total_seconds()
    while time.monotonic() < until:
        sum(range(1_000))


@pytest.mark.slow
@one_driver_each
@pytest.mark.parametrize(
    ("kind", "block"),
    [("coroutine", blocking_loop), ("coroutine", spinning), ("function", spinning)],
)
async def test_a_handler_that_blocks_for_ten_leases_runs_once(works, block, kind):
    """B08: it stops the event loop, or computes all the time; another worker waits for its task."""
    if kind == "coroutine":

        @works.handlers.handler
        async def greedy() -> None:
            works.started.append(threading.get_ident())
            block()
    else:

        @works.handlers.handler
        def greedy() -> None:
            works.started.append(threading.get_ident())
            block()

    # The other one lives in a thread with a loop of its own, and sweeps all the time.
    other = works.new_worker(lease=SWEPT, poll=20 * MS, sweep=20 * MS, listen=False)
    end = threading.Event()

    async def sweep_elsewhere():
        run = asyncio.create_task(other.run())
        await asyncio.to_thread(end.wait)
        other.stop()
        await run

    worker = works.new_worker(lease=SWEPT)
    thread = threading.Thread(target=lambda: asyncio.run(sweep_elsewhere()))
    async with running(worker):
        await works.send("greedy", None)
        await works.twin.until(lambda: works.started)
        thread.start()
        try:
            await works.until(done=1)
        finally:
            end.set()
            await asyncio.to_thread(thread.join)
    assert len(works.started) == 1
    assert works.twin.sql("SELECT attempt, claimed_by FROM tasks") == [(1, worker.name)]


@pytest.mark.slow
@one_driver_each
async def test_leases_are_renewed_in_time(works):
    """B07: a handler awaits four leases long, and more than two heartbeats come in each."""
    lease = SECOND

    @works.handlers.handler
    async def wait() -> None:
        works.started.append(1)
        await asyncio.sleep(4 * lease.total_seconds())

    works.twin.sql(WRITE_DOWN)
    try:
        await works.send("wait", *[None] * 5)
        async with (
            works.worker(lease=lease),
            works.worker(lease=lease, sweep=20 * MS, poll=20 * MS),
        ):
            await works.until(done=5)
        assert len(works.started) == 5
        beats = works.twin.sql("SELECT id, count(*) FROM beats GROUP BY id")
        assert len(beats) == 5
        # The claim's own, and more than two in each lease.
        assert all(count > 2 * 4 for _, count in beats)
        assert works.twin.sql("SELECT DISTINCT attempt FROM tasks") == [(1,)]
    finally:
        works.twin.database.reset()


@one_driver_each
async def test_heartbeats_and_ends_do_not_disturb_each_other(works, caplog):
    """B04 b: 200 handlers of 0 to 100 ms with heartbeats every 33 ms."""
    caplog.set_level(logging.WARNING)

    @works.handlers.handler
    async def work(seconds: float) -> None:
        await asyncio.sleep(seconds)

    works.twin.sql(WRITE_DOWN)
    try:
        chance = random.Random(4)
        await works.send("work", *({"seconds": chance.uniform(0, 0.1)} for _ in range(200)))
        # Nobody sweeps: on a busy machine a lease as short as that may run out, which is no harm.
        async with works.worker(lease=100 * MS, concurrency=20):
            await works.until(done=200)
        assert works.twin.sql("SELECT DISTINCT attempt FROM tasks") == [(1,)]
        # Nothing was renewed that had ended.
        assert works.twin.scalar("SELECT count(*) FROM beats WHERE state <> 'claimed'") == 0
        assert [r.message for r in caplog.records if "lost" in r.message] == []
    finally:
        works.twin.database.reset()


@pytest.mark.parametrize("kind", ["coroutine", "function"])
async def test_a_handler_whose_lease_is_lost_is_told(works, kind, caplog):
    """A coroutine is cancelled, a thread sees the flag; nothing of it is written, and it is logged."""
    told = []

    if kind == "coroutine":

        @works.handlers.handler
        async def work() -> None:
            works.started.append(1)
            try:
                await asyncio.Event().wait()
            finally:
                told.append(should_stop())
    else:

        @works.handlers.handler
        def work() -> None:
            works.started.append(1)
            while not should_stop():
                threading.Event().wait(0.005)
            told.append(should_stop())

    [id_] = await works.send("work", None)
    async with works.worker(lease=LEASE):
        await works.twin.until(lambda: works.started)
        works.twin.sql(
            "UPDATE tasks SET lease_token = gen_random_uuid(), claimed_by = 'other',"
            " lease_expires_at = lease_expires_at + interval '1 day'"
        )
        await works.twin.until(lambda: told)
    assert told == [True]
    assert works.twin.sql("SELECT state, claimed_by, error FROM tasks") == [
        ("claimed", "other", None)
    ]
    assert any(str(id_) in r.message and "lease was lost" in r.message for r in caplog.records)


async def test_a_task_that_is_cancelled_under_way_tells_its_handler(works):
    """An operator's cancel() is a lost lease, too."""
    told = asyncio.Event()

    @works.handlers.handler
    async def work() -> None:
        works.started.append(1)
        try:
            await asyncio.Event().wait()
        finally:
            told.set()

    [id_] = await works.send("work", None)
    queue = works.twin.queue(works.queue.model, works.queue.name)
    async with works.worker(lease=LEASE):
        await works.twin.until(lambda: works.started)
        async with works.twin.begin() as session:
            assert await queue.cancel(session, id=id_, reason="enough")
        async with asyncio.timeout(15):
            await told.wait()
    assert works.twin.sql("SELECT state, error FROM tasks") == [("cancelled", "enough")]


async def test_a_lease_that_only_ran_out_is_no_loss(works):
    """As long as nobody took the task, the next heartbeat renews it."""
    go = asyncio.Event()

    @works.handlers.handler
    async def work() -> None:
        works.started.append(1)
        await go.wait()

    await works.send("work", None)
    async with works.worker(lease=LEASE):
        await works.twin.until(lambda: works.started)
        works.twin.sql("UPDATE tasks SET lease_expires_at = '2000-01-01'")
        await works.twin.until(
            lambda: works.twin.scalar("SELECT lease_expires_at > now() FROM tasks")
        )
        go.set()
        await works.until(done=1)
    assert works.started == [1]


async def test_a_locked_row_stalls_nothing_else(works):
    """A host's transaction locks one claimed task: its heartbeat and end wait, all others go on."""
    go = asyncio.Event()

    @works.handlers.handler
    async def work(n: int) -> None:
        works.started.append(n)
        if n == 0:
            await go.wait()

    [id_] = await works.send("work", {"n": 0})
    async with works.worker(lease=LEASE):
        await works.twin.until(lambda: works.started)
        async with works.twin.begin() as session:
            connection = (await session.connection()) if works.twin.is_async else session
            await connection.execute(
                text("SELECT 1 FROM tasks WHERE id = :id FOR UPDATE"), {"id": id_}
            )
            go.set()
            await works.send("work", *({"n": n} for n in range(1, 200)))
            await works.until(done=199, claimed=1)
        await works.until(done=200)
    assert len(works.started) == 200


async def test_leases_that_ran_out_are_swept(works):
    """What a worker left that crashed is worked on by another; on the last attempt it fails."""

    @works.handlers.handler
    async def work() -> None:
        works.started.append(1)

    ids = await works.send("work", None, max_attempts=2)
    ids += await works.send("work", None, max_attempts=1)
    queue = works.twin.queue(works.queue.model, works.queue.name)
    async with works.twin.begin() as session:
        assert len(await queue.claim(session, holder="crashed", limit=2)) == 2
    works.twin.sql("UPDATE tasks SET lease_expires_at = '2000-01-01'")
    async with works.worker(sweep=20 * MS):
        await works.until(done=1, failed=1)
    error = works.twin.scalar("SELECT error FROM tasks WHERE state = 'failed'")
    assert error == "lease expired on the last attempt; last held by crashed"
    assert works.started == [1]


async def test_sweeps_that_begin_at_the_oldest_claim_find_what_comes_later(works, monkeypatch):
    """All but the first look at a part only; what a crashed worker left meanwhile is in it."""
    monkeypatch.setattr(_upkeep, "_FULL_SHARE", 1e9)
    begun = []
    asked = []
    learn = _upkeep.Sweep.learn

    def note(sweep, oldest, now, seconds, *, full):
        asked.append(full)
        learn(sweep, oldest, now, seconds, full=full)

    monkeypatch.setattr(_upkeep.Sweep, "learn", note)

    @works.handlers.handler
    async def work() -> None:
        begun.append(1)

    queue = works.twin.queue(works.queue.model, works.queue.name)
    async with works.worker(sweep=20 * MS):
        for n in range(1, 4):
            await works.twin.until(lambda n=n: len(asked) > 2 * n)
            [id_] = await works.send("work", None, delay=NEVER)
            works.twin.sql(
                "UPDATE tasks SET run_at = now(), queue = 'aside' WHERE state = 'queued'"
            )
            aside = works.twin.queue(works.queue.model, "aside")
            async with works.twin.begin() as session:
                assert await aside.claim(session, holder="crashed")
            works.twin.sql(
                "UPDATE tasks SET queue = %(queue)s, lease_expires_at = '2000-01-01'"
                " WHERE id = %(id)s",
                queue=queue.name,
                id=id_,
            )
            await works.until(done=n)
    assert asked.count(True) == 1
    assert len(begun) == 3


async def test_ended_tasks_are_pruned(works):
    """By age and state, on the side; younger ones and others stay."""

    @works.handlers.handler(retry=Fixed(NEVER), max_attempts=1)
    async def work(fail: bool) -> None:
        if fail:
            raise ValueError

    await works.send("work", {"fail": False}, {"fail": False}, {"fail": True}, max_attempts=1)
    async with works.worker():
        await works.until(done=2, failed=1)
    works.twin.sql("UPDATE tasks SET finished_at = finished_at - interval '2 days'")
    await works.send("work", {"fail": False})
    async with works.worker(sweep=10 * MS, prune={"done": NEVER}):
        await works.until(done=1, failed=1)
