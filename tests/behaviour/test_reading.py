"""Reading: one task, pages of tasks and counts; the scope full, partial or none."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest
from sqlalchemy import inspect

from sqla_taskqueue import Holder, InvalidArgument, Limits, ScopeMissing, TaskState
from tests.behaviour.hosts import Base, Board, Logged, Pair, Task

SCOPE = {"project_hash": "9f2c", "role": "coder"}
OTHERS = ({"role": "tester"}, {"project_hash": "beef"})


def builds(twin, name="builds", **options):
    """Return a queue of `Task` in one scope."""
    twin.create(Base.metadata)
    return twin.queue(Task, name, **options).scope(**SCOPE)


async def spread(twin):
    """Enqueue one task in each of three scopes, and one in another queue; return their ids."""
    queue = builds(twin)
    ids = {}
    async with twin.begin() as session:
        ids["mine"] = (await queue.enqueue(session, "mine", key="k")).id
        ids["role"] = (await queue.scope(**OTHERS[0]).enqueue(session, "role", key="k")).id
        ids["project"] = (await queue.scope(**OTHERS[1]).enqueue(session, "project", key="k")).id
        other = twin.queue(Task, "tests").scope(**SCOPE)
        ids["queue"] = (await other.enqueue(session, "queue", key="l")).id
    return ids


SCOPES = [
    pytest.param(SCOPE, {"mine"}, id="full"),
    pytest.param({"project_hash": "9f2c"}, {"mine", "role"}, id="the first column"),
    pytest.param({"role": "coder"}, {"mine", "project"}, id="the second column"),
    pytest.param({}, {"mine", "role", "project"}, id="none"),
]


# --- get ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("scope", "seen"), SCOPES)
async def test_get_by_id_sees_what_the_scope_contains(twin, scope, seen):
    """By id the scope may be unbound in part or whole; other queues are never seen."""
    ids = await spread(twin)
    queue = twin.queue(Task, "builds").scope(**scope)
    async with twin.begin() as session:
        found = {name: await queue.get(session, id=id_) for name, id_ in ids.items()}
    assert {name for name, task in found.items() if task is not None} == seen
    assert all(task.name == name for name, task in found.items() if task is not None)


async def test_get_by_key_needs_the_scope(twin):
    """A key means something within its scope only."""
    ids = await spread(twin)
    async with twin.begin() as session:
        task = await builds_again(twin).get(session, key=" k ")
        assert task.id == ids["mine"]
        assert await builds_again(twin).get(session, key="l") is None
        with pytest.raises(ScopeMissing, match="project_hash"):
            await twin.queue(Task, "builds").scope(role="coder").get(session, key="k")


def builds_again(twin):
    """Return the queue of `builds` without emptying the tables."""
    return twin.queue(Task, "builds").scope(**SCOPE)


@pytest.mark.parametrize("model", [Task, Logged, Pair, Board])
async def test_get_returns_nothing_for_nothing(twin, model):
    """No such id: None."""
    twin.create(Base.metadata)
    queue = twin.queue(model)
    async with twin.begin() as session:
        assert await queue.get(session, id=(7, 41) if model is Pair else uuid4()) is None


async def test_get_refreshes_what_is_loaded(twin):
    """The entity is as it is now, also when the session has an older one."""
    queue = builds(twin)
    async with twin.begin() as session:
        sent = await queue.enqueue(session)
    async with twin.begin() as session:
        task = await session.get(Task, sent.id)
        twin.sql("UPDATE tasks SET name = 'changed'")
        assert await queue.get(session, id=sent.id) is task
        assert task.name == "changed"
        assert inspect(task).persistent


async def test_a_connection_reads_detached_entities(twin):
    """Through a connection, entities belong to no session and are complete."""
    queue = builds(twin)
    async with twin.begin_connection() as connection:
        sent = await queue.enqueue(connection, "a", {"n": 1})
        task = await queue.get(connection, id=sent.id)
        page = await queue.find(connection, content=True)
    assert inspect(task).detached
    assert (task.name, task.payload) == ("a", {"n": 1})
    assert inspect(page[0]).detached
    assert page[0].payload == {"n": 1}


# --- find --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("scope", "seen"), SCOPES)
async def test_find_sees_what_the_scope_contains(twin, scope, seen):
    """Of all scopes unless some are bound, newest key first."""
    await spread(twin)
    async with twin.begin() as session:
        page = await twin.queue(Task, "builds").scope(**scope).find(session)
    assert {task.name for task in page} == seen
    assert [task.id for task in page] == sorted((task.id for task in page), reverse=True)
    assert page.next is None


@pytest.mark.parametrize("model", [Task, Pair])
@pytest.mark.parametrize("size", [1, 3, 10, 200])
async def test_pages_cover_everything_once(twin, model, size):
    """Page by page every task is seen, none twice, whatever the size and the kind of key."""
    twin.create(Base.metadata)
    queue = twin.queue(model)
    async with twin.begin() as session:
        for number in range(10):
            if model is Pair:
                scoped = queue.scope(tenant_id=number % 3)
                await scoped.enqueue(session, id=number)
            else:
                await queue.scope(project_hash="p", role=f"{number % 3}").enqueue(session)
    seen, after, pages = [], None, 0
    async with twin.begin() as session:
        while True:
            page = await queue.find(session, limit=size, after=after)
            seen += [inspect(task).identity for task in page]
            pages += 1
            after = page.next
            if after is None:
                break
            assert len(page) == size
    assert len(seen) == len(set(seen)) == 10
    assert seen == sorted(seen, reverse=True)
    assert pages == -(-10 // size)


async def test_pages_are_not_disturbed_by_new_tasks(twin):
    """A task that comes in between is newer: it moves nothing on the pages that follow."""
    queue = builds(twin)
    async with twin.begin() as session:
        ids = [(await queue.enqueue(session)).id for _ in range(4)]
        page = await queue.find(session, limit=2)
        await queue.enqueue(session)
        rest = await queue.find(session, limit=2, after=page.next)
    assert [task.id for task in (*page, *rest)] == ids[::-1]


@pytest.mark.parametrize(("limit", "shown"), [(-5, 1), (0, 1), (1, 1), (3, 3), (10**9, 3)])
async def test_page_sizes_are_clamped(twin, limit, shown):
    """A page has at least one task and at most the queue's limit."""
    queue = builds(twin, limits=Limits(page=3))
    async with twin.begin() as session:
        for _ in range(5):
            await queue.enqueue(session)
        assert len(await queue.find(session, limit=limit)) == shown


async def test_find_filters(twin):
    """By state or states, name, holder and creator, and by several of them."""
    queue = builds(twin)
    async with twin.begin() as session:
        await queue.enqueue(session, "a", actor="ann", priority=1)
        await queue.enqueue(session, "b", actor="bob", priority=2)
        await queue.enqueue(session, "a", actor="bob", priority=3)
        await queue.enqueue(session, "c")
        claims = await queue.claim(session, holder="w", limit=2)
        assert [claim.name for claim in claims] == ["c", "a"]
        await queue.complete(session, claims[0])
        [other] = await queue.claim(session, holder=Holder("w", "s1"))
        assert other.name == "b"

        async def found(**filters):
            return sorted(
                (task.name, task.created_by) for task in await queue.find(session, **filters)
            )

        assert len(await found()) == 4
        assert await found(name="a") == [("a", "ann"), ("a", "bob")]
        assert await found(created_by="bob") == [("a", "bob"), ("b", "bob")]
        assert await found(name="a", created_by="bob") == [("a", "bob")]
        assert await found(state="queued") == [("a", "bob")]
        assert await found(state=TaskState.DONE) == [("c", None)]
        assert await found(state=["done", TaskState.QUEUED]) == [("a", "bob"), ("c", None)]
        assert await found(state=iter(["done"])) == [("c", None)]
        assert await found(holder="w") == [("a", "ann"), ("c", None)]
        assert await found(holder=Holder("w", "s1")) == [("b", "bob")]
        assert await found(holder="w", state="done") == [("c", None)]
        assert await found(holder="nobody") == []
        assert await found(name="") == []


@pytest.mark.parametrize("content", [True, False])
async def test_payloads_are_deferred_unless_asked_for(twin, content):
    """A page is light: payload and result are loaded only with `content=True`."""
    queue = builds(twin)
    async with twin.begin() as session:
        await queue.enqueue(session, "a", {"n": 1})
        await queue.complete(session, (await queue.claim(session, holder="w"))[0], result=[2])
    async with twin.begin() as session:
        [task] = await queue.find(session, content=content)
        assert ("payload" in inspect(task).unloaded) is not content
        assert ("result" in inspect(task).unloaded) is not content
        assert "state" not in inspect(task).unloaded
        await session.refresh(task, ["payload", "result"])
        assert (task.payload, task.result) == ({"n": 1}, [2])


async def test_a_page_does_not_unload_what_is_loaded(twin):
    """A deferred column that the session has already is still there afterwards."""
    queue = builds(twin)
    async with twin.begin() as session:
        sent = await queue.enqueue(session, "a", {"n": 1})
    async with twin.begin() as session:
        task = await session.get(Task, sent.id)
        [again] = await queue.find(session)
        assert again is task
        assert "payload" not in inspect(task).unloaded
        assert task.payload == {"n": 1}


@pytest.mark.parametrize("driver", ["psycopg2", "asyncpg"], indirect=True)
@pytest.mark.parametrize(
    ("filters", "problem"),
    [
        ({"state": "ready"}, "must be one or more of"),
        ({"state": ["done", "ready"]}, "must be one or more of"),
        ({"state": 5}, "must be one or more of"),
        ({"limit": True}, "whole number"),
        ({"limit": "5"}, "whole number"),
        ({"limit": None}, "whole number"),
        ({"name": 5}, "must be text"),
        ({"name": "a\x00"}, "NUL"),
        ({"created_by": "\ud800"}, "surrogate"),
        ({"holder": 5}, "must be text or a Holder"),
        ({"holder": ""}, "must not be empty"),
        ({"after": "x"}, "takes UUID"),
        ({"after": (uuid4(), uuid4())}, "takes UUID"),
    ],
)
async def test_bad_filters_are_refused(twin, filters, problem):
    """Each is a typed error before any SQL."""
    queue = builds(twin)
    async with twin.session() as session:
        with pytest.raises(InvalidArgument, match=problem):
            await queue.find(session, **filters)
        assert not session.in_transaction()


# --- stats -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("scope", "seen"), SCOPES)
async def test_stats_count_what_the_scope_contains(twin, scope, seen):
    """Of all scopes unless some are bound."""
    await spread(twin)
    async with twin.begin() as session:
        stats = await twin.queue(Task, "builds").scope(**scope).stats(session)
    assert (stats.queued, stats.due, stats.live, stats.ended) == (
        len(seen),
        len(seen),
        len(seen),
        0,
    )


async def test_stats_count_every_state(twin):
    """One statement counts all states, what is due, what ran out, and the oldest due time."""
    queue = builds(twin)
    early = datetime(2001, 1, 1, tzinfo=UTC)
    async with twin.begin() as session:
        empty = await queue.stats(session)
        assert empty.as_dict() == dict.fromkeys(TaskState, 0)
        assert (empty.due, empty.expired, empty.oldest_due_at) == (0, 0, None)
        assert empty.capped == frozenset()
        for number in range(21):
            await queue.enqueue(session, f"{number}", run_at=early + timedelta(seconds=number))
        await queue.enqueue(session, delay=timedelta(hours=1))
    counts = {"blocked": 1, "claimed": 3, "done": 4, "failed": 5, "cancelled": 6}
    first = 0
    for state, number in counts.items():
        twin.sql(
            "UPDATE tasks SET state = %(state)s,"
            " lease_token = CASE %(state)s WHEN 'claimed' THEN gen_random_uuid() END,"
            " claimed_at = '2001-01-01Z', heartbeat_at = '2001-01-01Z',"
            " lease_expires_at = CASE WHEN name::int %% 2 = 1 THEN '2001-01-01Z'::timestamptz"
            " ELSE '2999-01-01Z' END"
            " WHERE name <> '' AND name::int BETWEEN %(first)s AND %(last)s",
            state=state,
            first=first,
            last=first + number - 1,
        )
        first += number
    async with twin.begin() as session:
        stats = await queue.stats(session)
    assert stats.as_dict() == {**counts, "queued": 3}
    assert (stats.due, stats.live, stats.ended) == (2, 7, 15)
    assert stats.oldest_due_at == early + timedelta(seconds=19)
    assert stats.expired == 2
    assert stats.capped == frozenset()


async def test_ended_states_are_counted_up_to_a_limit(twin):
    """At the limit a count is exact, above it capped; live states are always exact."""
    queue = builds(twin, limits=Limits(counted=5))
    async with twin.begin() as session:
        for _ in range(21):
            await queue.enqueue(session)
    for state, number in (("done", 5), ("failed", 6), ("cancelled", 3)):
        twin.sql(
            "UPDATE tasks SET state = %(s)s WHERE id IN"
            " (SELECT id FROM tasks WHERE state = 'queued' LIMIT %(n)s)",
            s=state,
            n=number,
        )
    async with twin.begin() as session:
        stats = await queue.stats(session)
    assert (stats.done, stats.failed, stats.cancelled) == (5, 5, 3)
    assert stats.capped == {TaskState.FAILED}
    assert stats.queued == 7
    assert stats.ended == 13
