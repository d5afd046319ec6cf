"""Workers stop in order: nothing new is begun, what runs may end, the rest is given back (B12)."""

from __future__ import annotations

import asyncio
import logging
import signal
import threading
from datetime import timedelta

import pytest

from sqla_taskqueue import TaskSpec, should_stop
from sqla_taskqueue.worker._executor import Executor
from sqla_taskqueue.worker._sources import Source
from tests.workers.working import MS, NEVER, SECOND, running

AT_ONCE = timedelta(0)
LONG = 60 * SECOND

held = "SELECT lease_token IS NOT NULL FROM tasks WHERE name = %(name)s"


async def test_what_runs_may_end_and_the_rest_is_given_back(works, caplog):
    """B12: one ends within the grace period, one never, one in a thread neither; others wait."""
    go, release = asyncio.Event(), threading.Event()
    seen = []

    @works.handlers.handler
    async def short() -> None:
        works.started.append("short")
        await go.wait()

    @works.handlers.handler
    async def endless() -> None:
        works.started.append("endless")
        try:
            await asyncio.Event().wait()
        finally:
            seen.append(should_stop())

    @works.handlers.handler
    def thread() -> None:
        works.started.append("thread")
        release.wait(60)

    @works.handlers.handler
    async def other() -> None:
        works.started.append("other")

    worker = works.new_worker(concurrency=3, grace=SECOND)
    for name in ("short", "endless", "thread"):
        await works.send(name, None, priority=-1)
    await works.send("other", *[None] * 5)
    try:
        async with running(worker) as run:
            await works.twin.until(lambda: len(works.started) == 3)
            worker.stop()
            go.set()
            async with asyncio.timeout(15):
                await run
        assert works.states() == {"done": 1, "queued": 6, "claimed": 1}
        assert sorted(works.started) == ["endless", "short", "thread"]
        assert seen == [True]
        # Given back, the attempt with it; the thread's task is left to its lease, and named.
        rows = works.twin.sql("SELECT attempt, lease_token, error FROM tasks WHERE name='endless'")
        assert rows == [(0, None, None)]
        assert works.twin.sql(held, name="thread") == [(True,)]
        [id_] = works.twin.sql("SELECT id FROM tasks WHERE name = 'thread'")[0]
        assert any(str(id_) in r.message and "runs on" in r.message for r in caplog.records)
    finally:
        release.set()


async def test_what_is_given_back_is_announced(works):
    """Another worker, which only listens, begins with it at once."""
    go = asyncio.Event()
    began = []

    @works.handlers.handler
    async def work() -> None:
        began.append(1)
        await go.wait()

    first = works.new_worker(grace=AT_ONCE)
    async with running(first):
        await works.send("work", None)
        await works.twin.until(lambda: began)
        async with works.worker():
            await works.twin.until(lambda: len(works.backends("LISTEN%")) == 2)
            first.stop()
            await works.twin.until(lambda: len(began) == 2)
            go.set()
            await works.until(done=1)
    assert works.twin.sql("SELECT attempt FROM tasks") == [(1,)]


async def test_what_is_claimed_in_the_moment_of_the_stop_is_given_back(works, monkeypatch):
    """The claim was under way when the worker was stopped: no handler is begun."""
    began = []

    @works.handlers.handler
    async def work() -> None:
        began.append(1)

    worker = works.new_worker(grace=LONG)
    await works.send("work", *[None] * 3)
    learn = Source.learn

    def stop_and_learn(*args, **kwargs):
        worker._run._turn.stop_claiming()  # as stop() does, in the same moment
        worker.stop()
        return learn(*args, **kwargs)

    monkeypatch.setattr(Source, "learn", stop_and_learn)
    async with running(worker) as run, asyncio.timeout(15):
        await run
    assert began == []
    assert works.twin.sql("SELECT DISTINCT state, attempt FROM tasks") == [("queued", 0)]


async def test_a_coroutine_that_has_not_begun_is_given_back(works, monkeypatch):
    """It was told to end in the moment of its start: its handler is not called, its slot is free."""
    began = []

    @works.handlers.handler
    async def work() -> None:
        began.append(1)

    worker = works.new_worker(grace=LONG)
    await works.send("work", *[None] * 3)
    start = Executor.start

    def start_and_tell(executor, jobs):
        start(executor, jobs)
        for job in jobs:
            executor.tell(job, "stopping")
        worker._run._turn.stop_claiming()
        worker.stop()

    monkeypatch.setattr(Executor, "start", start_and_tell)
    async with running(worker) as run, asyncio.timeout(15):
        await run
    assert began == []
    assert works.twin.sql("SELECT DISTINCT state, attempt FROM tasks") == [("queued", 0)]


async def test_cancelling_ends_the_worker_at_once(works):
    """What it had is given back without any grace; the cancellation comes out."""
    began = []

    @works.handlers.handler
    async def work() -> None:
        began.append(1)
        await asyncio.Event().wait()

    run = asyncio.create_task(works.new_worker(grace=LONG).run())
    await works.send("work", None)
    await works.twin.until(lambda: began)
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        async with asyncio.timeout(15):
            await run
    assert works.twin.sql("SELECT state, attempt FROM tasks") == [("queued", 0)]


async def test_a_handler_that_ends_during_the_grace_period_counts(works):
    """Its result is written; a failure is a failure."""
    go = asyncio.Event()
    began = []

    @works.handlers.handler
    async def work(fail: bool) -> str:
        began.append(1)
        await go.wait()
        if fail:
            raise ValueError("no")
        return "yes"

    worker = works.new_worker(grace=LONG)
    await works.send("work", {"fail": False}, {"fail": True})
    async with running(worker):
        await works.twin.until(lambda: len(began) == 2)
        worker.stop()
        go.set()
    assert works.twin.sql("SELECT state, attempt, result, error FROM tasks ORDER BY state") == [
        ("done", 1, "yes", None),
        ("queued", 1, None, "ValueError: no"),
    ]


async def test_leases_are_kept_during_the_grace_period(works):
    """However long it is: another worker that sweeps all the time does not get the task."""
    go = asyncio.Event()
    began = []

    @works.handlers.handler
    async def work() -> None:
        began.append(1)
        await go.wait()

    lease = 600 * MS
    worker = works.new_worker(grace=LONG, lease=lease)
    await works.send("work", None)
    async with running(worker):
        await works.twin.until(lambda: began)
        async with works.worker(sweep=10 * MS, poll=10 * MS):
            worker.stop()
            before = works.twin.scalar("SELECT heartbeat_at FROM tasks")
            await works.twin.until(
                lambda: works.twin.scalar("SELECT heartbeat_at FROM tasks") > before + 3 * lease
            )
            go.set()
            await works.until(done=1)
    assert began == [1]
    assert works.twin.sql("SELECT attempt FROM tasks") == [(1,)]


async def test_a_handler_that_ignores_its_cancellation_is_left(works, caplog):
    """The worker ends all the same, and says which task it was."""
    began, go = [], asyncio.Event()

    @works.handlers.handler
    async def stubborn() -> None:
        began.append(1)
        while not go.is_set():
            try:
                await go.wait()
            except asyncio.CancelledError:
                continue

    worker = works.new_worker(grace=AT_ONCE)
    [id_] = await works.send("stubborn", None)
    async with running(worker):
        await works.twin.until(lambda: began)
        worker.stop()
    assert any(str(id_) in r.message and "does not end" in r.message for r in caplog.records)
    assert works.states() == {"claimed": 1}
    go.set()


async def test_an_idle_worker_stops(works):
    """Also one that was never given anything; all its connections end."""
    worker = works.new_worker()
    async with running(worker):
        await works.twin.until(lambda: works.backends("LISTEN%"))
        worker.stop()
    await works.twin.until(lambda: works.backends() == [])
    assert [t.name for t in threading.enumerate() if t.name == "taskqueue leases"] == []


async def test_a_worker_runs_again(works):
    """After its end; not twice at once."""
    began = []

    @works.handlers.handler
    async def work() -> None:
        began.append(1)

    worker = works.new_worker()
    for n in range(1, 3):
        async with running(worker):
            await works.send("work", None)
            await works.until(done=n)
            with pytest.raises(RuntimeError, match="runs already"):
                await worker.run()
    worker.stop()  # nothing happens
    assert began == [1, 1]


async def test_a_worker_in_another_thread(works):
    """With a loop of its own; stopped from here. The process's signal handlers stay as they were."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    began = []

    @works.handlers.handler
    def work() -> None:
        began.append(threading.current_thread().name)

    worker = works.new_worker()
    thread = threading.Thread(target=lambda: asyncio.run(worker.run()))
    thread.start()
    try:
        await works.send("work", None)
        await works.until(done=1)
        assert {number: signal.getsignal(number) for number in before} == before
    finally:
        worker.stop()
        await asyncio.to_thread(thread.join, 15)
    assert not thread.is_alive()
    assert began[0].startswith("taskqueue handler")


async def test_stopping_before_anything_could_begin(works):
    """A worker that is stopped in the same moment."""
    worker = works.new_worker()
    run = asyncio.create_task(worker.run())
    await asyncio.sleep(0)
    worker.stop()
    async with asyncio.timeout(15):
        await run


async def test_a_large_payload_of_a_task_with_a_name_of_emojis(works, caplog):
    """B17: wake-ups carry the queue's name only; 5,000 tasks in one transaction wake once."""
    caplog.set_level(logging.WARNING)
    name = "🐘" * 20

    @works.handlers.handler(name=name)
    async def big(text: str) -> int:
        return len(text)

    async with works.worker(concurrency=100, poll=NEVER):
        await works.twin.until(lambda: works.backends("LISTEN%"))
        await works.send(name, {"text": "é" * 500_000})
        await works.until(done=1)
        queue = works.twin.queue(works.queue.model, works.queue.name)
        async with works.twin.begin() as session:
            specs = [TaskSpec(name, {"text": str(n)}) for n in range(5_000)]
            await queue.enqueue_many(session, specs)
        await works.until(done=5_001)
    assert works.twin.sql("SELECT DISTINCT attempt FROM tasks") == [(1,)]
    assert works.twin.scalar("SELECT max(result::text::int) FROM tasks") == 500_000
