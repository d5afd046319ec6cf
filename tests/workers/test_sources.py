"""One worker for many queues, classes and scopes: each gets its turn."""

from __future__ import annotations

import asyncio

import pytest

from sqla_taskqueue import Handlers, Queue, Worker
from sqla_taskqueue.errors import InvalidArgument, ScopeMissing
from tests.workers.hosts import Logged, Task, Tenanted
from tests.workers.working import MS, NEVER, SECOND, Works, running

TENANTS = Queue(Tenanted, "work")


@pytest.fixture
def tenants(twin):
    """A registry of a class with a scope."""
    return Works(twin, TENANTS)


def noting(works):
    """Register a handler that notes whose task it is, and its number; return the notes."""

    @works.handlers.handler
    async def note(whose: str, n: int) -> None:
        works.started.append((whose, n))
        await asyncio.sleep(0)

    return works.started


async def fill(works, whose, number):
    """Enqueue tasks of a tenant."""
    await works.send(
        "note", *({"whose": whose, "n": n} for n in range(number)), scope={"tenant": whose}
    )


async def test_several_queues_and_classes(works):
    """Two queues of one class, one of another with events; a task that is enqueued wakes its queue."""
    twin = works.twin
    done = []

    def registry(model, name):
        handlers = Handlers(Queue(model, name))

        @handlers.handler
        async def note(n: int) -> int:
            done.append((name, n))
            return n

        return handlers

    places = [(Task, "first"), (Task, "second"), (Logged, "third")]
    registries = [registry(*place) for place in places]
    worker = Worker(works.new_engine(), *registries, poll=NEVER, sweep=NEVER, concurrency=5)
    async with running(worker):
        await twin.until(lambda: works.backends("LISTEN%"))
        for model, name in places * 2:
            queue = twin.queue(model, name)
            async with twin.begin() as session:
                for n in range(20):
                    await queue.enqueue(session, "note", {"n": n})
            table = model.__tablename__
            await twin.until(
                lambda table=table, name=name: (
                    twin.scalar(
                        f"SELECT count(*) FROM {table} WHERE queue = '{name}' AND state <> 'done'"
                    )
                    == 0
                )
            )
    assert sorted(done) == sorted((name, n) for _, name in places * 2 for n in range(20))
    assert twin.scalar("SELECT count(*) FROM logged_events WHERE type = 'completed'") == 40


async def test_only_the_queues_that_were_named(works):
    """Handlers of the others wait for another worker."""
    twin = works.twin
    noted = []
    first, second = Handlers(Queue(Task, "first")), Handlers(Queue(Task, "second"))
    for handlers in (first, second):

        @handlers.handler
        async def note() -> None:
            noted.append(1)

    async with twin.begin() as session:
        for name in ("first", "second"):
            await twin.queue(Task, name).enqueue(session, "note")
    engine = works.new_engine()
    async with running(Worker(engine, first, second, queues=["second"], sweep=NEVER)):
        await twin.until(lambda: noted)
    assert twin.sql("SELECT queue, state FROM tasks ORDER BY queue") == [
        ("first", "queued"),
        ("second", "done"),
    ]
    with pytest.raises(InvalidArgument, match=r"third.*first, second"):
        Worker(engine, first, second, queues=["third"])


@pytest.mark.parametrize("how", ["given", "found"])
async def test_no_scope_starves_another(tenants, how):
    """One has a thousand tasks, two have a few: these are done among the first."""
    started = noting(tenants)
    await fill(tenants, "a", 1_000)
    await fill(tenants, "b", 20)
    await fill(tenants, "c", 20)
    scopes = None if how == "found" else [{"tenant": tenant} for tenant in "abc"]
    async with tenants.worker(scopes=scopes, concurrency=10):
        await tenants.until(done=1_040)
    few = [place for place, (whose, _) in enumerate(started) if whose != "a"]
    assert max(few) < 200
    # In each, in order.
    for tenant in "abc":
        numbers = [n for whose, n in started if whose == tenant]
        assert numbers == [*range(len(numbers))]


async def test_only_the_scopes_that_were_given(tenants):
    """The others are left alone."""
    started = noting(tenants)
    for tenant in "abc":
        await fill(tenants, tenant, 3)
    async with tenants.worker(scopes=[{"tenant": "a"}, {"tenant": "c"}]):
        await tenants.until(done=6, queued=3)
    assert {whose for whose, _ in started} == {"a", "c"}


async def test_new_scopes_are_found(tenants):
    """At once when a task is announced, else with the next poll."""
    started = noting(tenants)
    async with tenants.worker():
        await tenants.twin.until(lambda: tenants.backends("LISTEN%"))
        for number, tenant in enumerate("abcd", 1):
            await fill(tenants, tenant, 2)
            await tenants.until(done=2 * number)
    async with tenants.worker(listen=False, poll=50 * MS):
        await fill(tenants, "e", 2)
        await tenants.until(done=10)
    assert len(started) == 10


async def test_a_delayed_task_in_a_scope_that_has_no_other(tenants):
    """It is met though nobody announces it."""
    noting(tenants)
    await tenants.send("note", {"whose": "a", "n": 1}, scope={"tenant": "a"}, delay=SECOND / 2)
    async with tenants.worker():
        await tenants.until(done=1)


async def test_scopes_must_be_whole(tenants):
    """A scope without its values, or with others, is refused when the worker is made."""
    noting(tenants)
    for wrong, error in [
        ([{}], ScopeMissing),
        ([{"team": 1}], InvalidArgument),
        ([], InvalidArgument),
        (["a"], InvalidArgument),
    ]:
        with pytest.raises(error):
            tenants.new_worker(scopes=wrong)


async def test_a_registry_of_one_scope(tenants):
    """A queue that is bound to a scope gives a worker for it."""
    started = []
    handlers = Handlers(TENANTS.scope(tenant="b"))

    @handlers.handler
    async def note(whose: str, n: int) -> None:
        started.append(whose)

    for tenant in "abc":
        await fill(tenants, tenant, 2)
    async with running(Worker(tenants.new_engine(), handlers, poll=NEVER, sweep=NEVER)):
        await tenants.until(done=2, queued=4)
    assert started == ["b", "b"]
    # Two of them in one worker would leave one out.
    with pytest.raises(InvalidArgument, match="give the worker its scopes"):
        Worker(tenants.new_engine(), handlers, Handlers(TENANTS.scope(tenant="c")))
