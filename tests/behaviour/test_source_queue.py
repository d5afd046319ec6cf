"""The first source system, a work queue of `(project, role)` pairs, call by call."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest

from sqla_taskqueue import EnqueueConflict, Limits, TaskState
from tests.behaviour.hosts import Base, Task, everything

STALE = timedelta(seconds=300)


_queues = {}


def unlimited(twin):
    """Return the facade's queue without a limit of attempts; made once, as applications do."""
    if twin.is_async not in _queues:
        _queues[twin.is_async] = twin.queue(Task, "work", limits=Limits(max_attempts=None))
    return _queues[twin.is_async]


@dataclass
class Work:
    """What the source system's claim returns."""

    task_id: UUID
    payload: Any


class WorkQueue:
    """The source system's interface, made of nothing but the public API.

    Its calls name a task and a worker; the pair, which is the scope here, is read off the task.
    """

    def __init__(self, twin):
        self.twin = twin
        self.tasks = unlimited(twin)

    def pair(self, project_hash, role):
        return self.tasks.scope(project_hash=project_hash, role=role)

    async def enqueue(self, task_id, project_hash, role, payload=None):
        async with self.twin.begin() as session:
            sent = await self.pair(project_hash, role).enqueue(
                session, "task", payload, id=task_id
            )
            return sent.created

    async def claim(self, project_hash, role, worker_id):
        async with self.twin.begin() as session:
            claims = await self.pair(project_hash, role).claim(session, holder=worker_id)
            return Work(claims[0].id, claims[0].payload) if claims else None

    async def heartbeat(self, task_id, worker_id):
        return await self._by_holder("heartbeat", task_id, worker_id)

    async def complete(self, task_id, worker_id, result=None):
        return await self._by_holder("complete", task_id, worker_id, result=result)

    async def fail(self, task_id, worker_id, reason):
        return await self._by_holder("fail", task_id, worker_id, error=reason, final=True)

    async def _by_holder(self, method, task_id, worker_id, **options):
        async with self.twin.begin() as session:
            task = await self.tasks.get(session, id=task_id)
            if task is None:
                return None
            pair = self.pair(task.project_hash, task.role)
            return await getattr(pair, method)(session, id=task_id, holder=worker_id, **options)

    async def sweep(self):
        async with self.twin.begin() as session:
            return (await self.tasks.reclaim(session, stale_after=STALE)).total

    async def stats(self, project_hash=None):
        queue = self.tasks
        if project_hash is not None:
            queue = queue.scope(project_hash=project_hash)
        async with self.twin.begin() as session:
            return await queue.stats(session)

    async def get(self, task_id):
        async with self.twin.begin() as session:
            return await self.tasks.get(session, id=task_id)


@pytest.fixture
def work(twin):
    """The source system on an empty table."""
    twin.create(Base.metadata)
    return WorkQueue(twin)


def silence(twin, task_id, seconds):
    """Move a task's last heartbeat into the past; its lease stays."""
    twin.sql(
        "UPDATE tasks SET heartbeat_at = statement_timestamp() - make_interval(secs => %(s)s)"
        " WHERE id = %(id)s",
        s=seconds,
        id=task_id,
    )


# --- Enqueue -----------------------------------------------------------------------------------


async def test_enqueue_says_whether_it_inserted(work, twin):
    """The second enqueue of a task id says no and changes nothing."""
    task_id = uuid4()
    assert await work.enqueue(task_id, "p1", "coder", {"n": 1}) is True
    before = everything(twin)
    assert await work.enqueue(task_id, "p1", "coder", {"n": 2}) is False
    assert everything(twin) == before
    assert (await work.get(task_id)).payload == {"n": 1}


@pytest.mark.parametrize("end", ["claimed", "done", "failed"])
async def test_a_known_id_is_never_started_again(work, twin, end):
    """Enqueueing an id that is worked on or ended says no and leaves its state alone."""
    task_id = uuid4()
    await work.enqueue(task_id, "p1", "coder")
    await work.claim("p1", "coder", "w1")
    if end == "done":
        await work.complete(task_id, "w1")
    elif end == "failed":
        await work.fail(task_id, "w1", "broken")
    before = everything(twin)
    assert await work.enqueue(task_id, "p1", "coder") is False
    assert everything(twin) == before
    assert (await work.get(task_id)).state == end


async def test_an_id_of_another_pair_is_a_conflict(work, twin):
    """An id that another project has is a typed error, never a false answer about its task."""
    task_id = uuid4()
    await work.enqueue(task_id, "p1", "coder")
    before = everything(twin)
    with pytest.raises(EnqueueConflict) as raised:
        await work.enqueue(task_id, "p2", "coder")
    assert raised.value.constraint == "tasks_pkey"
    assert everything(twin) == before


# --- Claim -------------------------------------------------------------------------------------


async def test_the_oldest_task_is_claimed_first(work, twin):
    """Claims follow the time of enqueueing, not the order of ids."""
    ids = [uuid4() for _ in range(4)]
    for task_id in ids:
        await work.enqueue(task_id, "p1", "coder", str(task_id))
    for age, task_id in zip((20, 40, 10, 30), ids, strict=True):
        twin.sql(
            "UPDATE tasks SET run_at = run_at - make_interval(secs => %(a)s) WHERE id = %(id)s",
            a=age,
            id=task_id,
        )
    claimed = [await work.claim("p1", "coder", "w1") for _ in ids]
    assert [one.task_id for one in claimed] == [ids[1], ids[3], ids[0], ids[2]]
    assert [one.payload for one in claimed] == [str(one.task_id) for one in claimed]


async def test_no_claim_reaches_another_pair(work):
    """A worker gets tasks of its own project and role only, whatever waits elsewhere."""
    mine, *others = [uuid4() for _ in range(4)]
    await work.enqueue(others[0], "p1", "reviewer")
    await work.enqueue(others[1], "p2", "coder")
    await work.enqueue(others[2], "", "coder")
    await work.enqueue(mine, "p1", "coder")
    assert (await work.claim("p1", "coder", "w1")).task_id == mine
    assert await work.claim("p1", "coder", "w1") is None
    assert await work.claim("p2", "reviewer", "w1") is None
    for task_id, pair in zip(
        others, [("p1", "reviewer"), ("p2", "coder"), ("", "coder")], strict=True
    ):
        assert (await work.claim(*pair, "w1")).task_id == task_id


async def test_an_empty_queue_has_nothing_to_claim(work):
    """Claiming from a queue without tasks says so at once."""
    assert await work.claim("p1", "coder", "w1") is None


# --- Heartbeat, complete, fail: by task id and worker -------------------------------------------

CALLS = {
    "heartbeat": lambda work, task_id, worker: work.heartbeat(task_id, worker),
    "complete": lambda work, task_id, worker: work.complete(task_id, worker, {"ok": True}),
    "fail": lambda work, task_id, worker: work.fail(task_id, worker, "no"),
}
calls = pytest.mark.parametrize("call", CALLS)


@calls
async def test_the_worker_that_holds_a_task_may_write(work, twin, call):
    """Heartbeat, complete and fail are true for the worker that holds the task."""
    task_id = uuid4()
    await work.enqueue(task_id, "p1", "coder")
    await work.claim("p1", "coder", "w1")
    assert await CALLS[call](work, task_id, "w1")
    task = await work.get(task_id)
    assert task.state == {"heartbeat": "claimed", "complete": "done", "fail": "failed"}[call]
    assert task.claimed_by == "w1"
    assert task.result == ({"ok": True} if call == "complete" else None)
    assert task.error == ("no" if call == "fail" else None)


@calls
@pytest.mark.parametrize("situation", ["other worker", "done", "failed", "requeued", "unclaimed"])
async def test_nobody_else_may_write(work, twin, call, situation):
    """For anybody else, and once the task is no longer held, they are false and write nothing."""
    task_id = uuid4()
    await work.enqueue(task_id, "p1", "coder")
    worker = "w1"
    if situation != "unclaimed":
        await work.claim("p1", "coder", "w1")
    if situation == "other worker":
        worker = "w2"
    elif situation == "done":
        assert await work.complete(task_id, "w1")
    elif situation == "failed":
        assert await work.fail(task_id, "w1", "first reason")
    elif situation == "requeued":
        silence(twin, task_id, 301)
        assert await work.sweep() == 1
    before = everything(twin)
    assert not await CALLS[call](work, task_id, worker)
    assert everything(twin) == before


@calls
async def test_an_unknown_task_is_nobodys(work, twin, call):
    """For an id that does not exist they are false."""
    await work.enqueue(uuid4(), "p1", "coder")
    await work.claim("p1", "coder", "w1")
    before = everything(twin)
    assert not await CALLS[call](work, uuid4(), "w1")
    assert everything(twin) == before


async def test_a_heartbeat_is_noted_and_extends_the_lease(work, twin):
    """A heartbeat sets the time of the last sign of life, and moves the deadline."""
    task_id = uuid4()
    await work.enqueue(task_id, "p1", "coder")
    await work.claim("p1", "coder", "w1")
    silence(twin, task_id, 200)
    twin.sql("UPDATE tasks SET lease_expires_at = heartbeat_at + interval '300 s'")
    [before] = twin.sql("SELECT * FROM tasks")
    assert await work.heartbeat(task_id, "w1")
    [after] = twin.sql("SELECT * FROM tasks")
    assert after.heartbeat_at - before.heartbeat_at >= timedelta(seconds=200)
    assert after.lease_expires_at - after.heartbeat_at == timedelta(seconds=300)
    assert (after.claimed_at, after.attempt) == (before.claimed_at, before.attempt)


# --- Failures ----------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [0, 1, 999, 1_000, 1_001, 50_000])
async def test_reasons_are_cut_at_1000_characters(work, length):
    """A failure's reason is kept up to 1,000 characters, also where they take several bytes."""
    task_id = uuid4()
    reason = "é" * length
    await work.enqueue(task_id, "p1", "coder")
    await work.claim("p1", "coder", "w1")
    assert await work.fail(task_id, "w1", reason)
    stored = (await work.get(task_id)).error
    assert len(stored) == min(length, 1_000)
    assert stored[:999] == reason[:999]


async def test_a_failed_task_keeps_its_retry_count(work, twin):
    """The count of executions outlives the failure."""
    task_id = uuid4()
    await work.enqueue(task_id, "p1", "coder")
    for _ in range(3):
        await work.claim("p1", "coder", "w1")
        silence(twin, task_id, 301)
        assert await work.sweep() == 1
    await work.claim("p1", "coder", "w1")
    assert await work.fail(task_id, "w1", "gave up")
    task = await work.get(task_id)
    assert (task.state, task.attempt, task.error) == ("failed", 4, "gave up")


# --- The sweep ---------------------------------------------------------------------------------


async def test_the_sweep_requeues_silent_claims_and_counts_them(work, twin):
    """Claims whose last heartbeat is older than 300 s are requeued, all others stay."""
    ids = {name: uuid4() for name in ("silent", "also silent", "fresh", "just in time", "queued")}
    for task_id in ids.values():
        await work.enqueue(task_id, "p1", "coder")
    for _ in range(4):
        await work.claim("p1", "coder", "w1")
    silence(twin, ids["silent"], 301)
    silence(twin, ids["also silent"], 100_000)
    silence(twin, ids["just in time"], 290)
    # The sweep goes by the heartbeat alone.
    twin.sql("UPDATE tasks SET lease_expires_at = lease_expires_at - interval '1 day'")
    kept = [task_id for name, task_id in ids.items() if "silent" not in name]
    rows = "SELECT t.ctid::text, t.*::text FROM tasks AS t WHERE id = ANY(%(k)s) ORDER BY id"
    before = twin.sql(rows, k=kept)
    assert await work.sweep() == 2
    assert await work.sweep() == 0
    assert twin.sql(rows, k=kept) == before
    states = {name: (await work.get(task_id)).state for name, task_id in ids.items()}
    assert states == {
        "silent": "queued",
        "also silent": "queued",
        "fresh": "claimed",
        "just in time": "claimed",
        "queued": "queued",
    }


async def test_a_heartbeat_keeps_the_sweep_away(work, twin):
    """A worker that gives a sign of life in time is not swept, however old its claim."""
    task_id = uuid4()
    await work.enqueue(task_id, "p1", "coder")
    await work.claim("p1", "coder", "w1")
    twin.sql("UPDATE tasks SET claimed_at = claimed_at - interval '1 day'")
    silence(twin, task_id, 301)
    assert await work.heartbeat(task_id, "w1")
    assert await work.sweep() == 0
    assert await work.complete(task_id, "w1")


async def test_a_silent_task_goes_to_the_next_worker(work, twin):
    """A swept task is claimed again in its old place, and its first worker has lost it."""
    first, second = uuid4(), uuid4()
    await work.enqueue(first, "p1", "coder")
    await work.enqueue(second, "p1", "coder")
    await work.claim("p1", "coder", "w1")
    silence(twin, first, 301)
    assert await work.sweep() == 1
    assert (await work.claim("p1", "coder", "w2")).task_id == first
    assert not await work.heartbeat(first, "w1")
    assert not await work.complete(first, "w1", "late")
    assert await work.complete(first, "w2", "in time")
    task = await work.get(first)
    assert (task.state, task.result, task.attempt) == ("done", "in time", 2)


# --- Stats and look-up -------------------------------------------------------------------------


async def test_stats_count_one_project_or_all(work):
    """Tasks are counted by state, for all projects or for one with all its roles."""
    pairs = [
        ("p1", "coder"),
        ("p1", "coder"),
        ("p1", "coder"),
        ("p1", "reviewer"),
        ("p2", "coder"),
    ]
    for project, role in pairs:
        await work.enqueue(uuid4(), project, role)
    done = await work.claim("p1", "coder", "w1")
    await work.complete(done.task_id, "w1")
    failed = await work.claim("p1", "coder", "w1")
    await work.fail(failed.task_id, "w1", "no")
    await work.claim("p2", "coder", "w1")

    def counted(stats):
        return {str(state): count for state, count in stats.as_dict().items() if count}

    assert counted(await work.stats()) == {"queued": 2, "claimed": 1, "done": 1, "failed": 1}
    assert counted(await work.stats("p1")) == {"queued": 2, "done": 1, "failed": 1}
    assert counted(await work.stats("p2")) == {"claimed": 1}
    assert counted(await work.stats("p3")) == {}
    assert (await work.stats("p1"))[TaskState.DONE] == 1


async def test_a_task_is_looked_up_by_id(work):
    """A task is found by its id alone; an unknown id is None."""
    task_id = uuid4()
    await work.enqueue(task_id, "p1", "coder", {"ref": "main"})
    task = await work.get(task_id)
    assert isinstance(task, Task)
    assert (task.id, task.project_hash, task.role) == (task_id, "p1", "coder")
    assert (task.state, task.payload, task.attempt) == ("queued", {"ref": "main"}, 0)
    assert await work.get(uuid4()) is None
