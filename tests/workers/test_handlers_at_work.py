"""A worker with handlers of every kind: what they return, raise and are given."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from sqla_taskqueue import Cancel, Claim, Fixed, Queue, Retry, Snooze, should_stop
from tests.workers.hosts import Effect, Logged, Task
from tests.workers.working import MS, NEVER, SECOND, Works, running

SOON = 10 * MS


def noted(works, kind):
    """Register a handler `note` of either kind that notes its argument and returns it."""
    if kind == "coroutine":

        @works.handlers.handler
        async def note(n: int) -> Any:
            works.started.append(n)
            await asyncio.sleep(0)
            return {"n": n}
    else:

        @works.handlers.handler
        def note(n: int) -> Any:
            works.started.append(n)
            return {"n": n}

    return note


kinds = pytest.mark.parametrize("kind", ["coroutine", "function"])


@kinds
async def test_tasks_are_worked_on_and_their_results_kept(works, kind):
    """Those that wait already, and those that come later: the notification wakes the worker."""
    note = noted(works, kind)
    await works.send("note", *({"n": n} for n in range(25)))
    async with works.worker():
        await works.until(done=25)
        await works.send("note", {"n": 25})
        await works.until(done=26)
        async with works.twin.begin() as session:
            sent = note.enqueue(session.raw, n=26)
            sent = await sent if works.twin.is_async else sent
            assert sent.created
        await works.until(done=27)
    assert sorted(works.started) == [*range(27)]
    assert works.twin.sql("SELECT DISTINCT attempt, error, result IS NULL FROM tasks") == [
        (1, None, False)
    ]
    stored = works.twin.sql("SELECT payload, result FROM tasks")
    assert all(row.payload == row.result for row in stored)


@kinds
@pytest.mark.parametrize("how", ["raised", "returned"])
async def test_directives(works, kind, how):
    """Retry counts, Snooze does not, Cancel ends; raised and returned alike."""
    directives = {"retry": Retry(SOON), "snooze": Snooze(SOON), "cancel": Cancel("not wanted")}

    def act(what, claim):
        works.started.append((what, claim.attempt))
        if sum(one == what for one, _ in works.started) > 1:
            return None
        if how == "raised":
            raise directives[what]
        return directives[what]

    if kind == "coroutine":

        @works.handlers.handler
        async def follow(what: str, claim: Claim) -> Any:
            return act(what, claim)
    else:

        @works.handlers.handler
        def follow(what: str, claim: Claim) -> Any:
            return act(what, claim)

    await works.send("follow", *({"what": what} for what in directives))
    async with works.worker():
        await works.until(done=2, cancelled=1)
    assert sorted(works.started) == [
        ("cancel", 1),
        ("retry", 1),
        ("retry", 2),
        ("snooze", 1),
        ("snooze", 1),
    ]
    rows = works.twin.sql("SELECT payload->>'what', attempt, error FROM tasks ORDER BY 1")
    assert rows == [("cancel", 1, "not wanted"), ("retry", 2, None), ("snooze", 1, None)]


@kinds
async def test_a_handler_that_fails_is_tried_again_until_no_attempt_is_left(works, kind):
    """Whatever it raises, SystemExit included; the last error stays on the row."""
    errors = [ValueError("first"), SystemExit(3), KeyboardInterrupt("third")]

    def act(claim):
        works.started.append(claim.attempt)
        raise errors[claim.attempt - 1]

    if kind == "coroutine":

        @works.handlers.handler(max_attempts=3, retry=Fixed(SOON))
        async def failing(claim: Claim) -> None:
            act(claim)
    else:

        @works.handlers.handler(max_attempts=3, retry=Fixed(SOON))
        def failing(claim: Claim) -> None:
            act(claim)

    await works.send("failing", None, max_attempts=3)
    async with works.worker():
        await works.until(failed=1)
    assert works.started == [1, 2, 3]
    assert works.twin.sql("SELECT attempt, error FROM tasks") == [(3, "KeyboardInterrupt: third")]


async def test_tasks_that_no_handler_fits_wait_and_harm_nobody(works):
    """An unknown name, unfit arguments, and payloads of another form count as failed attempts."""
    noted(works, "coroutine")
    works.queue._core.retry = Fixed(NEVER)
    await works.send("unheard of", {"n": 1})
    await works.send("note", {"m": 1}, {}, [1], "text", None)
    await works.send("note", {"n": 7})
    async with works.worker():
        await works.until(done=1, queued=6)
    assert works.started == [7]
    errors = works.twin.sql("SELECT error FROM tasks WHERE state = 'queued' ORDER BY error")
    assert all("note" in error or "unheard of" in error for (error,) in errors)
    assert works.twin.sql("SELECT DISTINCT attempt FROM tasks") == [(1,)]


@pytest.fixture(autouse=True)
def _same_queue():
    """Give the shared queue its policy back."""
    from tests.workers.working import QUEUE

    before = QUEUE._core.retry
    yield
    QUEUE._core.retry = before


async def test_the_claim_and_the_task_are_given_to_those_who_ask(works):
    """The host's entity is loaded for them only, and detached."""
    seen = []

    @works.handlers.handler
    async def ask(task: Task, claim: Claim) -> None:
        seen.append((task.id, task.payload, task.state, claim.id, claim.payload, claim.attempt))

    [id_] = await works.send("ask", {"any": ["thing"]})
    async with works.worker():
        await works.until(done=1)
    thing = {"any": ["thing"]}
    assert seen == [(id_, thing, "claimed", id_, thing, 1)]


def effects(works, act):
    """Register a handler `effect` that writes a row through a session, then acts."""
    if works.twin.is_async:

        @works.handlers.handler(retry=Fixed(SOON))
        async def effect(session: AsyncSession, n: int, claim: Claim) -> Any:
            session.add(Effect(number=n))
            await session.flush()
            return await act(claim)
    else:

        @works.handlers.handler(retry=Fixed(SOON))
        def effect(session: Session, n: int, claim: Claim) -> Any:
            session.add(Effect(number=n))
            session.flush()
            return asyncio.run(act(claim))

    return effect


def counted(works):
    """Return how often each effect is there."""
    return dict(works.twin.sql("SELECT number, count(*) FROM effects GROUP BY 1"))


async def test_effects_are_committed_with_the_end_of_their_task(works):
    """A failed attempt leaves none, a directive leaves them when it is returned."""

    async def act(claim):
        n = claim.payload["n"]
        if claim.attempt == 1 and n == 1:
            raise ValueError("once")
        if claim.attempt == 1 and n == 2:
            raise Retry(SOON)
        if claim.attempt == 1 and n == 3:
            return Retry(SOON)
        return n

    effects(works, act)
    await works.send("effect", *({"n": n} for n in range(4)))
    async with works.worker():
        await works.until(done=4)
    assert counted(works) == {0: 1, 1: 1, 2: 1, 3: 2}
    results = works.twin.sql("SELECT result, attempt FROM tasks ORDER BY payload->'n'")
    assert results == [(0, 1), (1, 2), (2, 2), (3, 2)]


async def test_effects_go_with_the_lease(works):
    """A handler whose task somebody else has taken writes nothing, though it ran to its end."""
    taken = []

    async def act(claim):
        if not taken:
            taken.append(claim.id)
            # Behind the worker's back: as if the lease had run out and been taken.
            works.twin.database.sql(
                "UPDATE tasks SET lease_token = gen_random_uuid(), claimed_by = 'other'"
                " WHERE id = %(id)s",
                id=claim.id,
            )

    effects(works, act)
    [id_] = await works.send("effect", {"n": 1})
    async with works.worker() as worker:
        await works.twin.until(lambda: taken)
        await works.send("effect", {"n": 2})
        await works.until(done=1, claimed=1)
        assert worker.name != "other"
    assert counted(works) == {2: 1}
    assert works.twin.sql("SELECT id, claimed_by FROM tasks WHERE state = 'claimed'") == [
        (id_, "other")
    ]


async def test_no_transaction_is_open_while_a_handler_runs(works):
    """B23: nor is a connection checked out for it; what it does later is still recorded."""
    go, begun = threading.Event(), threading.Event()

    def work(claim):
        begun.set()
        go.wait(15)
        raise ValueError(f"late: {claim.payload}")

    if works.twin.is_async:

        @works.handlers.handler(retry=Fixed(NEVER))
        async def wait(task: Task) -> None:
            await asyncio.to_thread(work, task)
    else:

        @works.handlers.handler(retry=Fixed(NEVER))
        def wait(task: Task) -> None:
            work(task)

    await works.send("wait", None)
    engine = works.twin.new_engine()
    async with works.worker(engine=engine):
        await asyncio.to_thread(begun.wait, 15)
        await works.twin.until(
            lambda: {other.state for other in works.twin.database.others()} <= {"idle"}
        )
        assert engine.pool.checkedout() == 0
        go.set()
        await works.until(queued=1)
    assert works.twin.sql("SELECT attempt, error FROM tasks") == [(1, "ValueError: late: None")]


async def test_a_task_is_never_claimed_without_a_free_slot(works):
    """Three handlers at once at most, and no row beyond them is taken."""
    go = asyncio.Event()

    @works.handlers.handler
    async def hold(n: int) -> None:
        works.started.append(n)
        await go.wait()

    await works.send("hold", *({"n": n} for n in range(10)))
    async with works.worker(concurrency=3):
        await works.twin.until(lambda: len(works.started) == 3)
        await works.send("hold", {"n": 10})  # a wake-up
        await works.until(claimed=3, queued=8)
        go.set()
        await works.until(done=11)


async def test_tasks_run_in_the_order_of_their_priority(works):
    """The smaller number first, then the older one."""
    noted(works, "coroutine")
    for n, priority in enumerate([5, 0, 3, 0, -1]):
        await works.send("note", {"n": n}, priority=priority)
    async with works.worker(concurrency=1):
        await works.until(done=5)
    assert works.started == [4, 1, 3, 2, 0]


async def test_a_delayed_task_is_met_though_nobody_announces_it(works):
    """The worker knows when the next one is due; its poll is a day away."""
    noted(works, "coroutine")
    async with works.worker():
        await works.send("note", {"n": 1}, delay=300 * MS)
        await works.until(done=1)


async def test_polling_only(works):
    """Without listening a worker finds what comes at its next poll."""
    noted(works, "coroutine")
    async with works.worker(listen=False, poll=50 * MS):
        await works.send("note", {"n": 1})
        await works.until(done=1)
    assert works.backends("LISTEN%") == []


async def test_events_say_what_the_queue_itself_would_say(twin):
    """Created, claimed, retried, claimed, completed: by the worker, attempt by attempt."""
    works = Works(twin, Queue(Logged, "work"))

    @works.handlers.handler(retry=Fixed(SOON))
    async def flaky(claim: Claim) -> None:
        if claim.attempt == 1:
            raise ValueError("once")

    await works.send("flaky", None)
    async with works.worker(name="w1"):
        await works.until(done=1)
    events = twin.sql("SELECT type, actor, attempt FROM logged_events ORDER BY created_at, id")
    assert events == [
        ("created", None, 0),
        ("claimed", "w1", 1),
        ("retried", "w1", 1),
        ("claimed", "w1", 2),
        ("completed", "w1", 2),
    ]
    [(detail,)] = twin.sql("SELECT detail FROM logged_events WHERE type = 'retried'")
    assert detail["error"] == "ValueError: once"
    assert "flaky" in detail["traceback"]


async def test_a_time_limit_ends_a_coroutine(works):
    """It is cancelled, and the attempt has failed."""

    @works.handlers.handler(time_limit=50 * MS, retry=Fixed(NEVER))
    async def slow() -> None:
        works.started.append(1)
        await asyncio.Event().wait()

    await works.send("slow", None)
    async with works.worker():
        await works.twin.until(
            lambda: works.twin.sql("SELECT 1 FROM tasks WHERE error IS NOT NULL")
        )
    [(state, attempt, error)] = works.twin.sql("SELECT state, attempt, error FROM tasks")
    assert (state, attempt) == ("queued", 1)
    assert error == "TimeLimitExceeded: it took longer than its time limit of 0:00:00.050000"


async def test_a_time_limit_tells_a_thread(works):
    """It cannot be ended from without: it is asked to, and what it did counts."""

    @works.handlers.handler(time_limit=50 * MS)
    def slow() -> str:
        works.started.append(should_stop())
        while not should_stop():
            threading.Event().wait(0.005)
        return "ended by itself"

    await works.send("slow", None)
    async with works.worker():
        await works.until(done=1)
    assert works.started == [False]
    assert works.twin.sql("SELECT result FROM tasks") == [("ended by itself",)]
    assert should_stop() is False


async def test_two_workers_share_the_tasks(works):
    """Each is done once."""
    noted(works, "function")
    await works.send("note", *({"n": n} for n in range(300)))
    async with works.worker(), running(works.new_worker(listen=False, poll=SECOND)):
        await works.until(done=300)
    assert sorted(works.started) == [*range(300)]
