"""Enqueueing through a handler: the same rows, in the caller's transaction, in either world."""

from __future__ import annotations

import inspect
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import Connection
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session, scoped_session

from sqla_taskqueue import (
    AsyncQueue,
    Claim,
    EnqueueConflict,
    InvalidArgument,
    Queue,
    ScopeMissing,
    TaskSpec,
    TaskState,
)
from sqla_taskqueue.handlers import Handlers
from tests.behaviour.hosts import SCOPES, Base, Logged, Pair, Task, committed, queue_of
from tests.behaviour.test_sessions import recording

HOUR = timedelta(hours=1)
SCOPE = SCOPES[Task]


def handlers(twin, model=Task, name="default", **options):
    """Return an empty registry for a queue of the twin's own kind, with its scope bound."""
    twin.create(Base.metadata)
    return Handlers(twin.raw(queue_of(twin, model, name)), **options)


async def answer(method, session, *args, **kwargs):
    """Call a method of a handler with the real session, and await what is to be awaited."""
    session = getattr(session, "raw", session)
    given = method(session, *args, **kwargs)
    at_once = isinstance(session, Session | scoped_session | Connection)
    assert inspect.iscoroutine(given) != at_once
    return given if at_once else await given


def rows(twin, columns="name, payload", table="tasks"):
    """Return the committed rows."""
    return twin.sql(f"SELECT {columns} FROM {table} ORDER BY id")


# --- One task ----------------------------------------------------------------------------------


async def test_a_handler_enqueues(twin):
    """The row is as if the queue had been given name and payload."""
    tasks = handlers(twin, name="emails")

    @tasks.handler(name="welcome", priority=-2, max_attempts=3)
    def send_welcome(user_id: int, session: Session, note: str = "hello"): ...

    async with twin.begin() as session:
        sent = await answer(send_welcome.enqueue, session, 7)
        assert (sent.created, sent.state) == (True, TaskState.QUEUED)
    columns = "id, queue, name, payload, priority, max_attempts, state, project_hash, role, key"
    assert rows(twin, columns) == [
        (sent.id, "emails", "welcome", {"user_id": 7}, -2, 3, "queued", *SCOPE.values(), None)
    ]


@pytest.mark.parametrize("through", ["session", "scoped", "connection"])
async def test_every_kind_of_caller(twin, through):
    """Sessions, scoped sessions and connections, each committed by the caller."""
    tasks = handlers(twin)

    @tasks.handler
    def work(user_id: int): ...

    opened = {"session": twin.session, "scoped": twin.scoped, "connection": twin.connect}
    async with opened[through]() as session:
        assert (await answer(work.enqueue, session, user_id=7)).created
        assert rows(twin) == []
        await session.commit()
    assert rows(twin) == [("work", {"user_id": 7})]


async def test_either_facade_serves_either_session(twin):
    """What the registry's queue is does not matter to who enqueues."""
    twin.create(Base.metadata)
    for number, facade in enumerate([Queue, AsyncQueue]):
        tasks = Handlers(facade(Logged))

        @tasks.handler
        async def work(number: int, session: AsyncSession): ...

        async with twin.begin() as session:
            await answer(work.enqueue, session, number)
            await answer(work.enqueue_many, session, [work.spec(number)])
    assert [row.payload["number"] for row in rows(twin, table="logged")] == [0, 0, 1, 1]
    assert {row.type for row in rows(twin, "type", "logged_events")} == {"created"}


async def test_an_answer_that_nobody_awaits(twin):
    """Is told by Python, under the name of the method."""
    if not twin.is_async:
        pytest.skip("the answer is there at once")
    work = handlers(twin).handler(name="work")(lambda number: number)
    async with twin.session() as session:
        for method, args in ((work.enqueue, (1,)), (work.enqueue_many, ([],))):
            forgotten = method(session, *args)
            assert forgotten.__qualname__ == f"Handler.{method.__name__}"
            forgotten.close()


async def test_a_rollback_leaves_nothing(twin):
    """It is the caller's transaction."""
    tasks = handlers(twin)

    @tasks.handler
    def work(user_id: int): ...

    with pytest.raises(ZeroDivisionError):
        async with twin.begin() as session:
            await answer(work.enqueue, session, 7)
            await answer(work.enqueue_many, session, [work.spec(8)])
            raise ZeroDivisionError
    assert rows(twin) == []


async def test_without_arguments_nothing_is_stored(twin):
    """The payload is NULL, as of an `enqueue` without one."""
    tasks = handlers(twin)

    @tasks.handler
    def work(note: str = "", *, claim: Claim[Task]): ...

    async with twin.begin() as session:
        await answer(work.enqueue, session)
    assert rows(twin, "payload IS NULL") == [(True,)]


async def test_what_is_claimed_is_what_was_sent(twin):
    """A stored payload fits the function that it was made for."""
    tasks = handlers(twin)

    @tasks.handler
    def work(a, b="default", /, c=None, *, claim: Claim[Task], **more):
        return a, b, c, claim, more

    async with twin.begin() as session:
        await answer(work.enqueue, session, [1, {"x": None}], c="ü", more=2.5)
    async with twin.begin() as session:
        [claim] = await queue_of(twin, Task).claim(session, holder="w1")
    handler = tasks.get(claim.queue, claim.name)
    assert handler is work
    called = handler.call(handler.arguments(claim.payload), claim=claim)
    assert called == ([1, {"x": None}], "default", "ü", claim, {"more": 2.5})


# --- Options -----------------------------------------------------------------------------------


async def test_a_key_is_idempotent(twin):
    """The second call finds what the first one made."""
    tasks = handlers(twin)

    @tasks.handler
    def work(user_id: int): ...

    once = work.options(key="k")
    first = await committed(twin, lambda session: answer(once.enqueue, session, 7))
    second = await committed(twin, lambda session: answer(once.enqueue, session, 8))
    assert (first.created, second.created) == (True, False)
    assert first.id == second.id
    assert rows(twin) == [("work", {"user_id": 7})]


async def test_every_option_reaches_the_row(twin):
    """And the handler's own, where nothing is said."""
    tasks = handlers(twin)

    @tasks.handler(priority=4, max_attempts=3)
    def work(user_id: int): ...

    at = datetime(2031, 5, 6, 7, tzinfo=UTC)
    special = work.options(
        key="k", unique_key="u", priority=0, run_at=at, max_attempts=None, values={"reviewer": "r"}
    )
    later = work.options(delay=HOUR)
    async with twin.begin() as session:
        await answer(special.enqueue, session, 1)
        await answer(later.enqueue, session, 2)
    columns = "key, unique_key, priority, run_at, max_attempts, reviewer"
    first, second = rows(twin, columns)
    assert first == ("k", "u", 0, at, None, "r")
    assert (second.key, second.priority, second.max_attempts) == (None, 4, 3)
    waits = twin.scalar("SELECT max(run_at - created_at) FROM tasks WHERE key IS NULL")
    assert abs(waits - HOUR) < timedelta(seconds=1)


async def test_an_id_of_the_hosts_own(twin):
    """Where the key is made by the host."""
    tasks = handlers(twin, Pair)

    @tasks.handler
    def work(): ...

    for created in (True, False):
        async with twin.begin() as session:
            sent = await answer(work.options(id=41).enqueue, session)
        assert (sent.id, sent.created) == ((7, 41), created)


async def test_the_scope_is_an_option(twin):
    """Handlers of a scoped class are defined once, and enqueue into any scope."""
    twin.create(Base.metadata)
    tasks = Handlers(Queue(Task))

    @tasks.handler
    def work(user_id: int): ...

    async with twin.begin() as session:
        for number in range(2):
            mine = work.options(scope={"project_hash": f"p{number}", "role": "coder"})
            await answer(mine.enqueue, session, number)
            await answer(mine.options(key="k").enqueue_many, session, [work.spec(number)])
        partly = work.options(scope={"project_hash": "p2"})
        await answer(partly.options(scope={"role": "coder"}).enqueue, session, 2)
        for unbound in (work, partly):
            with pytest.raises(ScopeMissing, match="role"):
                await answer(unbound.enqueue, session, 3)
    assert rows(twin, "project_hash, (payload->>'user_id')::int") == [
        ("p0", 0),
        ("p0", 0),
        ("p1", 1),
        ("p1", 1),
        ("p2", 2),
    ]


# --- Many tasks --------------------------------------------------------------------------------


async def test_many_tasks_in_order(twin):
    """One answer for each spec, in their order, whatever finds what exists."""
    tasks = handlers(twin)

    @tasks.handler(priority=1)
    def work(number: int): ...

    await committed(twin, lambda s: answer(work.options(key="5").enqueue, s, 5))
    specs = [work.options(key=str(9 - number)).spec(9 - number) for number in range(10)]
    async with twin.begin() as session:
        sent = await answer(work.enqueue_many, session, iter(specs))
    assert [one.created for one in sent] == [number != 4 for number in range(10)]
    by_id = {row.id: row.number for row in rows(twin, "id, (payload->>'number')::int AS number")}
    assert [by_id[one.id] for one in sent] == list(range(9, -1, -1))
    assert set(rows(twin, "priority, name")) == {(1, "work")}


async def test_no_tasks(twin):
    """Nothing to do is no error."""
    tasks = handlers(twin)
    work = tasks.handler(name="work")(lambda number: number)
    async with twin.begin() as session:
        assert await answer(work.enqueue_many, session, []) == []


# --- What is refused ---------------------------------------------------------------------------


async def test_bad_input_sends_nothing(twin):
    """Before any SQL, and the transaction goes on."""
    tasks = handlers(twin)

    @tasks.handler
    def work(user_id: int): ...

    async with twin.begin() as session:
        await answer(work.enqueue, session, 0)
        with recording(twin.engine) as sent:
            for args in ((), (1, 2)):
                with pytest.raises(TypeError, match=r"^work: "):
                    await answer(work.enqueue, session, *args)
            with pytest.raises(InvalidArgument, match=r"^payload\['user_id'\]="):
                await answer(work.enqueue, session, object())
            with pytest.raises(InvalidArgument, match=r"^key="):
                await answer(work.options(key="x" * 129).enqueue, session, 1)
            with pytest.raises(InvalidArgument, match=r"^specs\[1\]\.name="):
                await answer(work.enqueue_many, session, [work.spec(1), TaskSpec("other")])
            with pytest.raises(InvalidArgument, match=r"^specs\[0\]\.payload\['user_id'\]="):
                await answer(work.enqueue_many, session, [work.spec(object())])
        assert sent == []
    assert rows(twin) == [("work", {"user_id": 0})]


async def test_a_conflict_is_the_queues(twin):
    """What keeps a row out is told as by `enqueue`."""
    tasks = handlers(twin)

    @tasks.handler
    def work(): ...

    async with twin.begin() as session:
        first = await answer(work.enqueue, session)
        elsewhere = work.options(scope={"role": "reviewer"}, id=first.id)
        with pytest.raises(EnqueueConflict):
            await answer(elsewhere.enqueue, session)
    assert len(rows(twin)) == 1
