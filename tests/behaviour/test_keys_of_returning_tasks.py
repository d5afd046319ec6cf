"""A task that goes back to the queue never meets its own key there, and stops no sweep (B28)."""

from __future__ import annotations

import pytest

from sqla_taskqueue import Fixed, RefusalReason, TaskSpec
from tests.behaviour.hosts import (
    Base,
    Board,
    Logged,
    Task,
    committed,
    events,
    expire,
    queue_of,
    send_and_take,
    take,
)

three_models = pytest.mark.parametrize(
    "model", [Task, Logged, Board], ids=lambda model: model.__name__
)
identities = pytest.mark.parametrize("identity", ["key", "unique_key"])
OTHERS = 20


@pytest.fixture(autouse=True)
def tables(twin):
    """Every test of this module starts with the application's tables, empty."""
    twin.create(Base.metadata)


def by_state(twin, model):
    """Return how many tasks there are in each state."""
    table = model.__tablename__
    return dict(twin.sql(f"SELECT state, count(*) FROM {table} GROUP BY state"))


@three_models
@identities
async def test_a_sweep_takes_back_the_keyed_and_all_others(twin, model, identity):
    """The key is taken while its task is claimed, so that going back meets nobody (B28)."""
    queue = queue_of(twin, model)
    first = await send_and_take(twin, queue, **{identity: "k"})
    again = await committed(twin, queue.enqueue, **{identity: "k"})
    assert (again.id, again.created, again.state) == (first.id, False, "claimed")
    await committed(twin, queue.enqueue_many, [TaskSpec() for _ in range(OTHERS)])
    assert len(await committed(twin, queue.claim, holder="w2", limit=100)) == OTHERS
    expire(twin, queue)
    taken_back = await committed(twin, queue.reclaim)
    assert (taken_back.requeued, taken_back.failed) == (OTHERS + 1, 0)
    assert by_state(twin, model) == {"queued": OTHERS + 1}
    again = await committed(twin, queue.enqueue, **{identity: "k"})
    assert (again.id, again.created, again.state) == (first.id, False, "queued")
    if model is not Task:
        assert len(events(twin, model, "reclaimed")) == OTHERS + 1


@three_models
@identities
@pytest.mark.parametrize("how", ["fail", "release"])
async def test_a_task_that_its_holder_gives_back_keeps_its_key(twin, model, identity, how):
    """The same by `fail`, which queues the next attempt, and by `release` (B28)."""
    queue = queue_of(twin, model)
    claim = await send_and_take(twin, queue, **{identity: "k"})
    assert not (await committed(twin, queue.enqueue, **{identity: "k"})).created
    options = {"retry": Fixed()} if how == "fail" else {}
    assert (await committed(twin, getattr(queue, how), claim, **options)).state == "queued"
    again = await committed(twin, queue.enqueue, **{identity: "k"})
    assert (again.id, again.created, again.state) == (claim.id, False, "queued")
    assert by_state(twin, model) == {"queued": 1}


@three_models
async def test_a_sweep_that_ends_a_task_frees_its_unique_key(twin, model):
    """The last attempt is over: the task ends, its key lasts, its unique key is free (B28)."""
    queue = queue_of(twin, model)
    claim = await send_and_take(twin, queue, key="k", unique_key="u", max_attempts=1)
    expire(twin, queue)
    assert (await committed(twin, queue.reclaim)).failed == 1
    again = await committed(twin, queue.enqueue, key="k")
    assert (again.id, again.created, again.state) == (claim.id, False, "failed")
    assert (await committed(twin, queue.enqueue, unique_key="u")).created


@three_models
async def test_a_retry_that_would_make_two_live_tasks_is_refused(twin, model):
    """An ended task may come back only while nobody live has its unique key (B28)."""
    queue = queue_of(twin, model)
    ended = await send_and_take(twin, queue, unique_key="u")
    await committed(twin, queue.fail, ended, final=True)
    live = await committed(twin, queue.enqueue, unique_key="u")
    async with twin.begin() as session:
        refused = await queue.retry(session, id=ended.id)
        assert refused.reason is RefusalReason.KEY_TAKEN
        assert (await queue.enqueue(session, unique_key="u")).id == live.id
    assert by_state(twin, model) == {"failed": 1, "queued": 1}
    assert await committed(twin, queue.complete, await take(twin, queue))
    assert await committed(twin, queue.retry, id=ended.id)
    assert by_state(twin, model) == {"done": 1, "queued": 1}
