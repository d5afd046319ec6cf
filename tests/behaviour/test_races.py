"""Many workers at once, as threads, asyncio tasks and processes: everything happens once."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from contextlib import AsyncExitStack

import psycopg
import pytest
from sqlalchemy.engine import make_url

from sqla_taskqueue import Claim, Holder, LeaseLost, RefusalReason
from tests.behaviour.hosts import (
    Base,
    Board,
    Logged,
    Pair,
    Task,
    committed,
    events,
    expire,
    named,
    queue_of,
    row_of,
    send_and_take,
    take,
)
from tests.database import Database
from tests.servers import DRIVERS, conninfo
from tests.twin import Twin

WORKERS = 50
PROCESSES = 10
TASKS = 100
CROWD = 20


@pytest.fixture(autouse=True)
def tables(twin):
    """Every test of this module starts with the application's tables, empty."""
    twin.create(Base.metadata)


@pytest.fixture
def turn(server_url):
    """Let one process at a time hold fifty connections: a server has a hundred by default."""
    with psycopg.connect(conninfo(server_url), autocommit=True) as admin:
        admin.execute("SELECT pg_advisory_lock(50)")
        yield


async def fill(twin, queue, count=TASKS):
    """Enqueue *count* tasks in one transaction and return their ids."""
    async with twin.begin() as session:
        sent = [
            await queue.enqueue(session, "race", number, **named(queue.model, number))
            for number in range(count)
        ]
    return [one.id for one in sent]


async def drain(twin, queue, holder, limit=1):
    """Claim and complete until nothing is left; return the ids that were claimed."""
    claimed = []
    while claims := await committed(twin, queue.claim, holder=holder, limit=limit):
        assert len(claims) <= limit
        for claim in claims:
            await committed(twin, queue.complete, claim, result=holder)
            claimed.append(claim.id)
    return claimed


def judge(twin, queue, sent, by_worker):
    """Check that every task went to exactly one worker, who alone has completed it."""
    counted = Counter(id_ for claimed in by_worker.values() for id_ in claimed)
    assert set(counted) == set(sent)
    assert set(counted.values()) == {1}
    assert sum(counted.values()) == TASKS
    rows = twin.sql(
        f"SELECT state, attempt, count(*) FROM {queue.model.__tablename__} GROUP BY 1, 2"
    )
    assert rows == [("done", 1, TASKS)]
    done_by = twin.sql(f"SELECT result #>> '{{}}' AS who FROM {queue.model.__tablename__}")
    assert Counter(row.who for row in done_by) == {
        worker: len(claimed) for worker, claimed in by_worker.items() if claimed
    }
    if queue.model in (Logged, Board):
        recorded = Counter(one.type for one in events(twin, queue.model))
        assert recorded == {"created": TASKS, "claimed": TASKS, "completed": TASKS}


# --- Fifty workers for a hundred tasks ---------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "limit"),
    [(Task, 1), (Board, 3)],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
async def test_threads_and_tasks_claim_each_task_once(twin, turn, model, limit):
    """Fifty threads, or asyncio tasks, race for a hundred tasks: each is claimed once."""
    queue = queue_of(twin, model)
    sent = await fill(twin, queue)
    start = twin.barrier(WORKERS)

    async def work(holder):
        async with twin.connect():
            await start.wait()
        return await drain(twin, queue, holder, limit)

    names = [f"w{number}" for number in range(WORKERS)]
    claimed = await asyncio.gather(*(twin.spawn(work, name) for name in names))
    judge(twin, queue, sent, dict(zip(names, claimed, strict=True)))


@pytest.mark.slow
async def test_processes_claim_each_task_once(twin, turn):
    """Ten processes with five workers each race for a hundred tasks: each is claimed once."""
    queue = queue_of(twin, Logged)
    sent = await fill(twin, queue)
    # Each is forked from a clean process that has imported what they need and nothing else.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    url = conninfo(twin.database.url)
    with ProcessPoolExecutor(
        PROCESSES, context, initializer=_meet, initargs=(context.Barrier(PROCESSES),)
    ) as pool:
        racers = [pool.submit(_race, url, twin.driver.name) for _ in range(PROCESSES)]
        by_worker = {
            worker: claimed
            for racer in racers
            for worker, claimed in racer.result(timeout=60).items()
        }
    assert len(by_worker) == WORKERS
    assert len({worker.partition("/")[0] for worker in by_worker} - {str(os.getpid())}) == 10
    judge(twin, queue, sent, by_worker)


_start = None


def _meet(barrier):
    """Take over the barrier in a racing process."""
    global _start  # noqa: PLW0603 - what a process is told when it begins
    _start = barrier


def _race(url, driver):
    """Drain the queue by five workers, once all the other processes are ready, too."""
    return asyncio.run(_racing(make_url(url), driver))


async def _racing(url, driver):
    database = Database(url)
    twin = Twin(database, next(one for one in DRIVERS if one.name == driver))
    queue = queue_of(twin, Logged)
    names = [f"{os.getpid()}/{number}" for number in range(WORKERS // PROCESSES)]
    try:
        async with AsyncExitStack() as stack:
            for _ in names:
                await stack.enter_async_context(twin.connect())
            _start.wait(60)
        drained = [twin.spawn(drain, twin, queue, name) for name in names]
        return dict(zip(names, await asyncio.gather(*drained), strict=True))
    finally:
        disposed = database.engine(twin.driver).dispose()
        if twin.is_async:
            await disposed


# --- Many for one task -------------------------------------------------------------------------


@pytest.mark.parametrize("model", [Pair, Board], ids=lambda model: model.__name__)
async def test_one_of_many_gets_a_named_task(twin, model):
    """Twenty workers ask for the same task: one gets it, the others hear that it is held."""
    queue = queue_of(twin, model)
    [id_] = await fill(twin, queue, 1)
    start = twin.barrier(CROWD)

    async def ask(holder):
        async with twin.begin() as session:
            await session.connection()
            await start.wait()
            return await queue.claim_task(session, id=id_, holder=holder)

    answers = await asyncio.gather(*(twin.spawn(ask, f"w{n}") for n in range(CROWD)))
    [won] = [one for one in answers if one]
    assert isinstance(won, Claim)
    lost = [one for one in answers if not one]
    assert len(lost) == CROWD - 1
    assert {one.reason for one in lost} == {RefusalReason.HELD}
    assert {one.holder for one in lost} == {won.lease.holder}
    row = row_of(twin, queue)
    assert (row.attempt, row.claimed_by) == (1, won.lease.holder.worker)
    assert await committed(twin, queue.complete, won)


@pytest.mark.parametrize("model", [Task, Logged], ids=lambda model: model.__name__)
async def test_one_of_many_gets_a_named_task_in_autocommit(twin, model):
    """Also without transactions exactly one worker gets the task, in one attempt."""
    queue = queue_of(twin, model)
    engine = twin.engine.execution_options(isolation_level="AUTOCOMMIT")
    [id_] = await fill(twin, queue, 1)
    start = twin.barrier(CROWD)

    async def ask(holder):
        async with twin.session(engine) as session:
            await session.connection()
            await start.wait()
            return await queue.claim_task(session, id=id_, holder=holder)

    answers = await asyncio.gather(*(twin.spawn(ask, f"w{n}") for n in range(CROWD)))
    [won] = [one for one in answers if one]
    assert {one.reason for one in answers if not one} <= {RefusalReason.HELD, RefusalReason.BUSY}
    assert row_of(twin, queue).attempt == 1
    assert await committed(twin, queue.complete, won)


@pytest.mark.parametrize("model", [Task, Logged], ids=lambda model: model.__name__)
async def test_one_of_many_takes_over_an_expired_lease(twin, model):
    """Twenty workers see the same lease run out: one takes it over, one attempt is counted."""
    queue = queue_of(twin, model)
    first = await send_and_take(twin, queue, "first")
    expire(twin, queue)
    start = twin.barrier(CROWD)

    async def ask(holder):
        async with twin.begin() as session:
            await session.connection()
            await start.wait()
            return await queue.claim_task(session, id=first.id, holder=holder)

    answers = await asyncio.gather(*(twin.spawn(ask, f"w{n}") for n in range(CROWD)))
    [won] = [one for one in answers if one]
    assert {one.reason for one in answers if not one} == {RefusalReason.HELD}
    assert row_of(twin, queue).attempt == won.attempt == 2


@pytest.mark.parametrize("by", ["key", "unique_key", "id"])
async def test_one_of_many_creates_a_task(twin, by):
    """Twenty enqueue the same key or id at once: one creates it, all name the same task."""
    queue = queue_of(twin, Logged)
    value = {"id": (await fill(twin, queue, 1))[0]}
    twin.sql("DELETE FROM logged")
    same = value if by == "id" else {by: "k"}
    start = twin.barrier(CROWD)

    async def ask(number):
        async with twin.begin() as session:
            await session.connection()
            await start.wait()
            return await queue.enqueue(session, "same", number, **same)

    answers = await asyncio.gather(*(twin.spawn(ask, number) for number in range(CROWD)))
    assert sum(one.created for one in answers) == 1
    assert len({one.id for one in answers}) == 1
    assert {one.state for one in answers} == {"queued"}
    [created] = [number for number, one in enumerate(answers) if one.created]
    row = row_of(twin, queue)
    assert (row.id, row.payload) == (answers[0].id, created)
    assert len(events(twin, Logged, "created")) == 1


async def test_racing_renewals_leave_one_claim_that_may_write(twin):
    """One holder renews from twenty places at once: only the newest claim may write."""
    queue = queue_of(twin, Task)
    [id_] = await fill(twin, queue, 1)
    start = twin.barrier(CROWD)
    who = Holder("agent", "s1")

    async def ask():
        async with twin.begin() as session:
            await session.connection()
            await start.wait()
            return await queue.claim_task(session, id=id_, holder=who)

    claims = await asyncio.gather(*(twin.spawn(ask) for _ in range(CROWD)))
    assert all(isinstance(one, Claim) for one in claims)
    assert {one.attempt for one in claims} == {1}
    assert len({one.lease.token for one in claims}) == CROWD
    beats = [await committed(twin, queue.heartbeat, one) for one in claims]
    [valid] = [one for one, beat in zip(claims, beats, strict=True) if beat]
    assert row_of(twin, queue).lease_token == valid.lease.token


# --- The end of a task and its return ----------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("model", [Task, Logged], ids=lambda model: model.__name__)
async def test_complete_races_reclaim(twin, model):
    """A task whose lease ran out is completed or taken back, never both and never neither."""
    queue = queue_of(twin, model)
    outcomes = Counter()
    for _ in range(15):
        twin.sql(f"DELETE FROM {model.__tablename__}")
        claim = await send_and_take(twin, queue)
        expire(twin, queue)
        start = twin.barrier(2)

        async def finish(claim=claim, start=start):
            async with twin.begin() as session:
                await session.connection()
                await start.wait()
                try:
                    return bool(await queue.complete(session, claim))
                except LeaseLost:
                    return False

        async def sweep(start=start):
            async with twin.begin() as session:
                await session.connection()
                await start.wait()
                return (await queue.reclaim(session)).total

        completed, taken_back = await asyncio.gather(twin.spawn(finish), twin.spawn(sweep))
        row = row_of(twin, queue)
        assert (completed, taken_back, row.state) in {(True, 0, "done"), (False, 1, "queued")}
        assert row.attempt == 1
        outcomes[row.state] += 1
        if model is Logged:
            [last] = {one.type for one in events(twin, model)} - {"created", "claimed"}
            assert last == {"done": "completed", "queued": "reclaimed"}[row.state]
    assert outcomes.total() == 15


@pytest.mark.slow
async def test_a_whole_crew_with_crashes_does_each_task_once(twin):
    """Workers that crash, a sweeper, and namesakes beside each other: every task is done once."""
    queue = queue_of(twin, Logged)
    sent = await fill(twin, queue, 40)
    start = twin.barrier(10)

    async def work(number):
        done = []
        async with twin.connect():
            await start.wait()
        while claims := await committed(twin, queue.claim, holder="pod", limit=3):
            for claim in claims:
                if claim.attempt == 1 and claim.payload % 3 == number % 3:
                    # A crash: its lease runs out, the sweeper comes, and it writes too late.
                    twin.sql(
                        "UPDATE logged SET lease_expires_at = statement_timestamp()"
                        " - interval '1 s' WHERE lease_token = %(t)s",
                        t=claim.lease.token,
                    )
                    await committed(twin, queue.reclaim)
                async with twin.begin() as session:
                    if await queue.complete(session, claim, result=number, on_lost="return"):
                        done.append(claim.id)
        return done

    done = await asyncio.gather(*(twin.spawn(work, number) for number in range(10)))
    while claims := await committed(twin, queue.claim, holder="pod", limit=40):
        for claim in claims:
            await committed(twin, queue.complete, claim)
            done.append([claim.id])
    assert Counter(id_ for ids in done for id_ in ids) == dict.fromkeys(sent, 1)
    assert len(events(twin, Logged, "completed")) == 40
    taken_back = len(events(twin, Logged, "reclaimed"))
    assert taken_back > 0
    assert len(events(twin, Logged, "claimed")) == 40 + taken_back


async def test_a_task_claimed_in_an_open_transaction_is_passed_over(twin):
    """Rows that another claim has locked are skipped without waiting for it."""
    queue = queue_of(twin, Task)
    first, second = await fill(twin, queue, 2)
    async with twin.begin() as session:
        [held] = await queue.claim(session, holder="w1")
        assert held.id == first
        assert (await take(twin, queue, "w2")).id == second
        assert await committed(twin, queue.claim, holder="w3") == []
        await session.rollback()
    assert (await take(twin, queue, "w3")).id == first
