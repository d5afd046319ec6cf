"""Exactly-once effects: whatever ends in the middle, what a handler wrote is there once."""

from __future__ import annotations

import asyncio
import random
import signal
import sys
from collections import Counter
from contextlib import asynccontextmanager

import pytest

from sqla_taskqueue import Fixed
from tests.proxy import proxy
from tests.workers.program import POINTS, Meeting, work_async, work_sync
from tests.workers.working import MS, SECOND

of_each_kind = pytest.mark.parametrize(
    "driver", ["psycopg2", "psycopg-async", "asyncpg"], indirect=True
)
in_processes = pytest.mark.parametrize("driver", ["psycopg2", "asyncpg"], indirect=True)


def counted(works):
    """Return how often the tasks that are done have had an effect, and how many tasks each time."""
    times = dict(works.twin.sql("SELECT number, count(*) FROM effects GROUP BY 1"))
    done = works.twin.sql("SELECT (payload ->> 'number')::int FROM tasks WHERE state = 'done'")
    return Counter(times.pop(number, 0) for (number,) in done) + Counter(times.values())


@pytest.fixture
def effective(works):
    """The registry with the program's handler."""
    work = work_async if works.twin.is_async else work_sync
    works.handlers.handler(name="work", retry=Fixed(20 * MS))(work)
    return works


def payloads(points=POINTS):
    """Return the payload of a task for each point."""
    return [{"number": number, "point": point} for number, point in enumerate(points)]


def attempts(works):
    """Return how many attempts were counted of the task of each point."""
    return dict(works.twin.sql("SELECT payload ->> 'point', attempt FROM tasks"))


@asynccontextmanager
async def process(works, *options):
    """Run the program; kill it at the end, if the test has not."""
    url = works.twin.driver.url(works.twin.database.url).render_as_string(hide_password=False)
    running = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.workers.program", url, *options,
        stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        yield running
    finally:
        if running.returncode is None:
            running.kill()
        await running.wait()
        # The transport of the pipe ends with the loop only, and complains.
        running._transport.close()


@in_processes
@pytest.mark.slow
async def test_a_process_is_killed_at_any_point(effective):
    """SIGKILL: what was not committed is undone, done again, and counted once."""
    await effective.send("work", *payloads())
    async with process(effective) as running:
        met = set()
        async with asyncio.timeout(30):
            while len(met) < len(POINTS):
                met.add((await running.stdout.readline()).decode().strip())
        assert met == {*POINTS}
        running.send_signal(signal.SIGKILL)
        await running.wait()
    async with effective.worker(sweep=50 * MS):
        await effective.until(done=len(POINTS))
    assert counted(effective) == {2: len(POINTS)}
    assert attempts(effective) == {
        point: 1 if point == "after the commit" else 2 for point in POINTS
    }


@of_each_kind
async def test_a_connection_is_terminated_at_any_point(effective):
    """pg_terminate_backend: as for a process that is killed; the worker itself goes on."""
    engine = effective.new_engine()

    def terminate(point, connection):
        if connection is not None:
            pid = connection.connection.driver_connection
            pid = pid.get_server_pid() if hasattr(pid, "get_server_pid") else pid.info.backend_pid
            effective.twin.database.terminate(pid)

    meeting = Meeting(engine, terminate)
    try:
        await effective.send("work", *payloads())
        async with effective.worker(engine=engine, concurrency=len(POINTS)):
            await effective.until(done=len(POINTS))
    finally:
        meeting.close()
    assert counted(effective) == {2: len(POINTS)}
    assert attempts(effective) == {
        point: 1 if point == "after the commit" else 2 for point in POINTS
    }


@of_each_kind
async def test_the_answer_to_a_commit_is_lost(effective, caplog):
    """It was committed, and nobody knows: the worker looks, and finds its token on a done task."""
    with proxy(effective.twin.database.url) as between:
        engine = effective.new_engine(url=between.url)
        meeting = Meeting(engine, lambda point, connection: between.mute())
        try:
            await effective.send("work", {"number": 1, "point": "before the commit"})
            async with effective.worker(engine=engine):
                await effective.until(done=1)
                between.cut()
                await effective.send("work", {"number": 2})
                await effective.until(done=2)
        finally:
            meeting.close()
    assert counted(effective) == {2: 2}
    assert effective.twin.sql("SELECT DISTINCT attempt FROM tasks") == [(1,)]
    assert "answer to its commit was lost" in caplog.text
    assert "lease was lost" not in caplog.text


@in_processes
@pytest.mark.slow
async def test_a_process_is_killed_every_second(effective):
    """20,000 tasks, four processes, one of them killed each second: no effect is lost or doubled."""
    number = 20_000
    effective.twin.sql(
        "INSERT INTO tasks (id, queue, name, payload, max_attempts)"
        " SELECT gen_random_uuid(), 'work', 'work', jsonb_build_object('number', i), 1000"
        " FROM generate_series(1, %(number)s) AS i",
        number=number,
    )
    effective.twin.sql("ANALYZE tasks")
    chance = random.Random(20_000)
    options = ("--concurrency", "20", "--lease", "2")
    killed = 0
    processes = []

    async def replace(index):
        manager = process(effective, *options)
        running = await manager.__aenter__()
        if index is None:
            processes.append((manager, running))
        else:
            before, _ = processes[index]
            processes[index] = (manager, running)
            await before.__aexit__(None, None, None)

    try:
        for _ in range(4):
            await replace(None)
        async with asyncio.timeout(240):
            while effective.states() != {"done": number}:
                await asyncio.sleep(SECOND.total_seconds())
                index = chance.randrange(4)
                processes[index][1].send_signal(signal.SIGKILL)
                killed += 1
                await replace(index)
    finally:
        for manager, _ in processes:
            await manager.__aexit__(None, None, None)
    assert killed > 4
    assert counted(effective) == {2: number}
    # Some were under way in a process that was killed.
    assert effective.twin.scalar("SELECT count(*) FROM tasks WHERE attempt > 1") > 0
