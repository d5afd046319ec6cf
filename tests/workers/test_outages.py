"""The worker goes on after whatever happens to its connections, and says so when it cannot."""

from __future__ import annotations

import asyncio
import logging
import random
from contextlib import asynccontextmanager, contextmanager
from datetime import timedelta

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from sqla_taskqueue import WorkerFailed
from sqla_taskqueue.worker import _lines, _upkeep
from tests.database import Database
from tests.proxy import proxy
from tests.servers import DRIVERS, restartable_server
from tests.surroundings.pgbouncer import pgbouncer
from tests.twin import Twin
from tests.workers.hosts import Base, Task
from tests.workers.working import MS, NEVER, SECOND, Works, running

of_each_kind = pytest.mark.parametrize(
    "driver", ["psycopg2", "psycopg-async", "asyncpg"], indirect=True
)
LISTENING = "LISTEN%"


def counted(works):
    """Register a handler that notes its argument; return the notes."""

    @works.handlers.handler
    async def work(n: int) -> None:
        works.started.append(n)

    return works.started


@contextmanager
def through_proxy(works):
    """Yield a proxy and an engine that goes through it."""
    with proxy(works.twin.database.url) as between:
        yield between, works.new_engine(url=between.url)


async def until_listening(works, but=()):
    """Wait for a listening connection that is none of those; return its pid."""

    def found():
        return [pid for pid in works.backends(LISTENING) if pid not in but]

    [pid] = await works.twin.until(found)
    return pid


# --- The listener ------------------------------------------------------------------------------


async def test_a_lost_listener_is_replaced(works):
    """B18: five times in a row; each time a task that is announced is worked on, unpolled."""
    started = counted(works)
    before = []
    async with works.worker():
        for n in range(5):
            before.append(await until_listening(works, before))
            await works.send("work", {"n": n})
            await works.until(done=n + 1)
            works.twin.database.terminate(before[-1])
        await until_listening(works, before)
        assert len(works.backends(LISTENING)) == 1
    assert started == [*range(5)]


async def test_what_is_announced_to_nobody_is_found(works):
    """B19: while the listener cannot come back, a task is enqueued; it is found once it is back."""
    started = counted(works)
    with through_proxy(works) as (between, engine):
        async with works.worker(engine=engine):
            pid = await until_listening(works)
            await works.send("work", {"n": 0})
            await works.until(done=1)
            between.hangs_up = True
            works.twin.database.terminate(pid)
            before = between.connections
            await works.twin.until(lambda: between.connections > before)
            await works.send("work", {"n": 1})
            await works.twin.until(lambda: between.connections > before + 2)
            between.hangs_up = False
            await works.until(done=2)
    assert started == [0, 1]


async def test_without_a_listener_the_worker_polls(works):
    """B19: whatever keeps it from listening, it looks once in a while, and connects at leisure."""
    started = counted(works)
    with through_proxy(works) as (between, engine):
        async with works.worker(engine=engine, poll=100 * MS):
            pid = await until_listening(works)
            await works.send("work", {"n": 0})
            await works.until(done=1)
            between.hangs_up = True
            works.twin.database.terminate(pid)
            before = between.connections
            for n in range(1, 11):
                await works.send("work", {"n": n})
                await works.until(done=n + 1)
            # Ten times within a second or so; a hot loop would connect hundreds of times.
            assert between.connections - before <= 20
            between.hangs_up = False
    assert started == [*range(11)]


# --- Connections that end ----------------------------------------------------------------------


@pytest.mark.slow
async def test_connections_end_at_random(works, monkeypatch):
    """B20: all of them, twenty times, and a sweep raises; then all is as if nothing had been."""
    started = counted(works)
    chance = random.Random(20)
    reclaim, raised = _upkeep.reclaim, []

    def reclaim_or_raise(*args, **kwargs):
        if not raised:
            raised.append(True)
            raise RuntimeError("a fault of our own")
        return reclaim(*args, **kwargs)

    monkeypatch.setattr(_upkeep, "reclaim", reclaim_or_raise)
    async with works.worker(poll=SECOND, sweep=50 * MS):
        sent = 0
        for _ in range(20):
            for _ in range(5):
                await works.send("work", {"n": sent})
                sent += 1
            await asyncio.sleep(chance.uniform(0, 0.2))
            works.twin.database.terminate(*works.backends())
        assert raised
        for _ in range(10):
            await works.send("work", {"n": sent})
            sent += 1
        await works.until(done=sent)
        [id_] = await works.send("abandoned", None, delay=NEVER)
        works.twin.sql(
            "UPDATE tasks SET state = 'claimed', attempt = 1, lease_token = gen_random_uuid(),"
            " lease_expires_at = '2000-01-01', heartbeat_at = '2000-01-01',"
            " claimed_at = '2000-01-01', claimed_by = 'gone', claimed_session = '',"
            " run_at = '2000-01-01'"
            " WHERE name = 'abandoned'"
        )
        # Reclaimed, claimed by the worker, which has no handler of that name, and tried again.
        await works.twin.until(
            lambda: works.twin.scalar(f"SELECT attempt FROM tasks WHERE id = '{id_}'") == 2
        )
    # A handler runs again only where its end could not be told from one that was never written.
    assert sorted(set(started)) == [*range(sent)]


@of_each_kind
@pytest.mark.slow
async def test_the_server_restarts(driver):
    """A task under way is ended; one that is enqueued afterwards is met without a poll."""
    async with server_of_its_own(driver) as (server, [works]):
        go = asyncio.Event()

        @works.handlers.handler
        async def work(n: int) -> None:
            works.started.append(n)
            if n == 0:
                await go.wait()

        async with works.worker(sweep=SECOND):
            await works.send("work", {"n": 0})
            await works.twin.until(lambda: works.started)
            await stopped(server, works)
            await asyncio.to_thread(server.start)
            go.set()
            await until_listening(works)
            await works.send("work", *({"n": n} for n in range(1, 11)))
            await works.until(done=11)
        assert sorted(works.started) == [*range(11)]
        assert works.twin.sql("SELECT DISTINCT attempt FROM tasks") == [(1,)]


@pytest.mark.slow
async def test_the_server_is_gone_for_thirty_seconds():
    """What was under way is ended once it is back, though its lease ran out meanwhile."""
    kinds = [
        driver for driver in DRIVERS if driver.name in ("psycopg2", "psycopg-async", "asyncpg")
    ]
    async with server_of_its_own(*kinds) as (server, all_works):
        gos = []
        for works in all_works:
            go = asyncio.Event()
            gos.append(go)

            def add(works=works, go=go):
                @works.handlers.handler
                async def work(n: int) -> None:
                    works.started.append(n)
                    if n == 0:
                        await go.wait()

            add()
        async with (
            all_works[0].worker(lease=10 * SECOND, sweep=NEVER),
            all_works[1].worker(lease=10 * SECOND, sweep=NEVER),
            all_works[2].worker(lease=10 * SECOND, sweep=NEVER),
        ):
            for works in all_works:
                await works.send("work", {"n": 0})
            for works in all_works:
                await works.twin.until(lambda works=works: works.started)
            await stopped(server, *all_works)
            await asyncio.sleep(15)
            for go in gos:
                go.set()  # the end has to wait
            await asyncio.sleep(15)
            await asyncio.to_thread(server.start)
            for works in all_works:
                await works.send("work", *({"n": n} for n in range(1, 6)))
            for works in all_works:
                await works.until(done=6)
        for works in all_works:
            assert sorted(works.started) == [*range(6)]
            assert works.twin.sql("SELECT DISTINCT attempt FROM tasks") == [(1,)]


async def stopped(server, *all_works):
    """Stop a server; what the tests themselves have to do with it is done anew afterwards."""
    for works in all_works:
        disposed = works.twin.engine.dispose()
        if works.twin.is_async:
            await disposed
        works.twin.database.close()
    await asyncio.to_thread(server.stop)


@asynccontextmanager
async def server_of_its_own(*drivers):
    """Yield a server that may be stopped, and for each driver what works in a database of its own."""
    with restartable_server() as server:
        databases, all_works = [], []
        for number, driver in enumerate(drivers):
            url = server.url.set(database=f"outage_{number}")
            administrator = Database(server.url)
            administrator.sql(f"CREATE DATABASE outage_{number} TEMPLATE template0")
            administrator.close()
            database = Database(url)
            databases.append(database)
            all_works.append(Works(Twin(database, driver)))
        try:
            yield server, all_works
        finally:
            for works in all_works:
                await works.twin.close()
            for database in databases:
                database.close()


@of_each_kind
async def test_the_table_is_changed_meanwhile(works):
    """Prepared statements lose their plans, and may not even return what they returned."""
    started = counted(works)
    try:
        async with works.worker(poll=50 * MS):
            for n in range(10):
                await works.send("work", {"n": n})
                await works.until(done=n + 1)
            works.twin.sql("ALTER TABLE tasks ADD COLUMN more integer")
            await works.send("work", {"n": 10})
            await works.until(done=11)
            works.twin.sql("ALTER TABLE tasks ALTER COLUMN priority TYPE bigint")
            await works.send("work", {"n": 11})
            await works.until(done=12)
    finally:
        works.twin.database.reset()
    assert sorted(started) == [*range(12)]


@of_each_kind
async def test_the_database_is_read_only_for_a_while(works, caplog):
    """As after a failover to a replica: nothing can be claimed, until it can again."""
    started = counted(works)
    async with works.worker(poll=50 * MS, sweep=50 * MS):
        await works.send("work", {"n": 0})
        await works.until(done=1)
        name = works.twin.scalar("SELECT current_database()")
        works.twin.sql(f"ALTER DATABASE {name} SET default_transaction_read_only = on")
        try:
            works.twin.database.terminate(*works.backends())
            async with works.twin.begin() as session:
                await session.execute(text("SET TRANSACTION READ WRITE"))
                queue = works.twin.queue(Task, works.queue.name)
                await queue.enqueue(session, "work", {"n": 1})
            # It came back, and was refused.
            await works.twin.until(lambda: "read-only" in caplog.text)
        finally:
            works.twin.sql(f"ALTER DATABASE {name} RESET default_transaction_read_only")
        await works.until(done=2)
    assert started == [0, 1]


@of_each_kind
async def test_others_exhaust_the_pool(works):
    """The worker's connections are its own; only a handler that takes a session has to wait."""
    started = counted(works)
    if works.twin.is_async:

        @works.handlers.handler
        async def in_session(session: AsyncSession) -> None:
            await session.execute(text("SELECT 1"))
    else:

        @works.handlers.handler
        def in_session(session: Session) -> None:
            session.execute(text("SELECT 1"))

    engine = works.new_engine(pool_size=1, max_overflow=0, pool_timeout=0.1)
    async with works.worker(engine=engine):
        async with works.twin.connect(engine) as connection:
            await connection.execute(text("SELECT 1"))
            await works.send("in_session", None)
            await works.send("work", *({"n": n} for n in range(50)))
            await works.until(done=50, queued=1)
            # It was claimed, put off, and its attempt is not counted.
            await works.twin.until(
                lambda: (
                    works.twin.sql(
                        "SELECT attempt, error, run_at > created_at FROM tasks WHERE state = 'queued'"
                    )
                    == [(0, None, True)]
                )
            )
        await works.until(done=51)
    assert len(started) == 50


# --- Connections that say nothing --------------------------------------------------------------


@pytest.fixture
def impatient(monkeypatch):
    """A worker that gives up a silent connection after a second."""
    monkeypatch.setattr(_lines, "PATIENCE", 1.0)


@of_each_kind
@pytest.mark.usefixtures("impatient")
async def test_connections_stall(works):
    """Nothing arrives on them any more, in either direction: others are made in their stead."""
    started = counted(works)
    with through_proxy(works) as (between, engine):
        async with works.worker(engine=engine, poll=100 * MS):
            await works.send("work", {"n": 0})
            await works.until(done=1)
            between.stall()
            await works.send("work", *({"n": n} for n in range(1, 11)))
            await works.until(done=11)
            between.resume()
            await works.send("work", {"n": 11})
            await works.until(done=12)
    assert sorted(started) == [*range(12)]
    assert works.twin.sql("SELECT DISTINCT attempt FROM tasks") == [(1,)]


@of_each_kind
@pytest.mark.usefixtures("impatient")
async def test_the_answer_to_a_claim_is_lost(works, caplog):
    """The tasks were claimed, and the worker does not know: it finds them by its token."""
    started = counted(works)
    caplog.set_level(logging.INFO)
    with through_proxy(works) as (between, engine):
        async with works.worker(engine=engine, poll=100 * MS, listen=False):
            await works.send("work", {"n": 0})
            await works.until(done=1)
            between.mute()
            await works.send("work", *({"n": n} for n in range(1, 4)))
            await works.until(done=4)
    assert sorted(started) == [*range(4)]
    assert works.twin.sql("SELECT DISTINCT attempt FROM tasks") == [(1,)]
    assert any("whose answer was lost" in record.message for record in caplog.records)


@of_each_kind
@pytest.mark.usefixtures("impatient")
async def test_the_answer_to_an_end_is_lost(works, caplog):
    """The end was written, and the worker does not know: it looks, and finds its own token."""
    go = asyncio.Event()

    @works.handlers.handler
    async def work(n: int) -> int:
        works.started.append(n)
        await go.wait()
        return n

    with through_proxy(works) as (between, engine):
        async with works.worker(engine=engine):
            await works.send("work", *({"n": n} for n in range(3)))
            await works.twin.until(lambda: len(works.started) == 3)
            between.mute()
            go.set()
            await works.until(done=3)
            finished = works.twin.sql("SELECT id, finished_at FROM tasks ORDER BY id")
            between.cut()
            await works.send("work", {"n": 3})
            await works.until(done=4)
    assert sorted(works.started) == [*range(4)]
    assert set(finished) < set(works.twin.sql("SELECT id, finished_at FROM tasks"))
    assert not [record for record in caplog.records if "lease was lost" in record.message]


@of_each_kind
@pytest.mark.usefixtures("impatient")
async def test_a_worker_stops_though_nothing_answers(works, caplog):
    """Nor can it write what its handlers did: it says so, and leaves them to their leases."""
    go = asyncio.Event()

    @works.handlers.handler
    async def work() -> None:
        works.started.append(1)
        await go.wait()

    with through_proxy(works) as (between, engine):
        worker = works.new_worker(engine=engine, grace=timedelta(0))
        run = asyncio.create_task(worker.run())
        await works.send("work", None)
        await works.twin.until(lambda: works.started)
        between.stall()
        between.hangs_up = True
        worker.stop()
        async with asyncio.timeout(15):
            await run
    assert works.states() == {"claimed": 1}
    assert any("could not be written" in record.message for record in caplog.records)


# --- What no waiting cures ---------------------------------------------------------------------


@of_each_kind
@pytest.mark.parametrize("when", ["before", "meanwhile"])
async def test_a_table_that_is_missing_ends_the_worker(works, when):
    """It raises with the reason, instead of living on and doing nothing."""
    counted(works)
    if when == "before":
        works.twin.sql("DROP TABLE tasks")
    worker = works.new_worker(poll=50 * MS)
    run = asyncio.create_task(worker.run())
    if when == "meanwhile":
        await works.send("work", {"n": 0})
        await works.until(done=1)
        works.twin.sql("DROP TABLE tasks")
    with pytest.raises(WorkerFailed, match=r"cannot go on.*tasks") as caught:
        async with asyncio.timeout(15):
            await run
    assert caught.value.__cause__ is not None


@of_each_kind
async def test_a_database_that_does_not_exist_ends_the_worker(works):
    """So does a role without permission; no retry helps."""
    counted(works)
    url = works.twin.database.url.set(database="no_such_database")
    worker = works.new_worker(engine=works.new_engine(url=url))
    with pytest.raises(WorkerFailed, match="no_such_database"):
        async with asyncio.timeout(15):
            await worker.run()


# --- Poolers -----------------------------------------------------------------------------------


@of_each_kind
@pytest.mark.slow
async def test_behind_pgbouncer_workers_poll(works, caplog):
    """B21: four workers drain 500 tasks through two server connections, a reclaimed one among them."""
    works.twin.create(Base.metadata)
    started = counted(works)
    caplog.set_level(logging.WARNING)
    await works.send("work", *({"n": n} for n in range(500)))
    queue = works.twin.queue(Task, works.queue.name)
    async with works.twin.begin() as session:
        assert await queue.claim(session, holder="gone")
    works.twin.sql("UPDATE tasks SET lease_expires_at = '2000-01-01' WHERE state = 'claimed'")
    options = {
        "asyncpg": {
            "connect_args": {"statement_cache_size": 0, "prepared_statement_cache_size": 0}
        },
        "psycopg": {"connect_args": {"prepare_threshold": None}},
    }.get(works.twin.driver.name.partition("-")[0], {})
    with pgbouncer(works.twin.database.url) as url:

        def worker():
            engine = works.new_engine(url=url, **options)
            return works.new_worker(engine=engine, poll=100 * MS, sweep=100 * MS)

        async with (
            running(worker()),
            running(worker()),
            running(worker()),
            running(worker()),
        ):
            await works.until(done=500)
    assert sorted(started) == [*range(500)]
    assert any("pooler" in record.message for record in caplog.records)
