"""The caller's session: its transaction, its wake-ups, its routing and its listeners (B17, B25)."""

from __future__ import annotations

from collections import Counter
from contextlib import asynccontextmanager, contextmanager
from datetime import timedelta

import pytest
from sqlalchemy import Delete, Insert, Update, event, inspect, select, text
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from sqla_taskqueue import EnqueueConflict, Limits, RefusalReason
from tests.behaviour.hosts import Base, Board, Logged, Task
from tests.twin import SessionAdapter, TwinAsyncSession

SCOPE = {"project_hash": "9f2c", "role": "coder"}
KINDS = ("session", "scoped", "connection")
every_kind = pytest.mark.parametrize("kind", KINDS)


def builds(twin, name="builds", **options):
    """Return a queue of `Task` in one scope."""
    twin.create(Base.metadata)
    return twin.queue(Task, name, **options).scope(**SCOPE)


@asynccontextmanager
async def opened(twin, kind):
    """Open a session, a scoped session or a connection, not begun."""
    how = {"session": twin.session, "scoped": twin.scoped, "connection": twin.connect}[kind]
    async with how() as session:
        yield session


def sync_engine(engine):
    """Return the engine that events are listened to on."""
    return getattr(engine, "sync_engine", engine)


@contextmanager
def recording(*engines):
    """Collect (number of the engine, statement) for every statement within the block."""
    sent = []

    def recorder(number):
        def record(connection, cursor, statement, parameters, context, executemany):
            sent.append((number, statement))

        return record

    listeners = [(sync_engine(engine), recorder(i)) for i, engine in enumerate(engines)]
    for engine, listener in listeners:
        event.listen(engine, "before_cursor_execute", listener)
    try:
        yield sent
    finally:
        for engine, listener in listeners:
            event.remove(engine, "before_cursor_execute", listener)


def count(twin, table="tasks"):
    """Return how many committed rows there are."""
    return twin.scalar(f"SELECT count(*) FROM {table}")


# --- The caller's transaction, and wake-ups (B25) ----------------------------------------------


@every_kind
async def test_a_rollback_undoes_an_enqueue(twin, kind):
    """(a) Rolled back: no row, no wake-up."""
    queue = builds(twin)
    async with twin.listening(queue._core.channel) as listener:
        async with opened(twin, kind) as session:
            await queue.enqueue(session)
            await session.rollback()
        assert await listener.so_far() == []
    assert count(twin) == 0


@every_kind
async def test_a_savepoint_undoes_an_enqueue(twin, kind):
    """(b) What a savepoint rolled back is gone, what came after it is there: one wake-up."""
    queue = builds(twin)
    async with twin.listening(queue._core.channel) as listener:
        async with opened(twin, kind) as session, session.begin():
            savepoint = await session.begin_nested()
            undone = await queue.enqueue(session, "undone")
            await savepoint.rollback()
            kept = await queue.enqueue(session, "kept")
            assert await listener.so_far() == []
        assert [n.payload for n in await listener.so_far()] == ["builds"]
    assert twin.sql("SELECT id, name FROM tasks") == [(kept.id, "kept")]
    assert undone.created


@every_kind
async def test_an_error_of_the_host_undoes_an_enqueue(twin, kind):
    """(c) The host's own exception takes the task with it: no row, no wake-up."""
    queue = builds(twin)
    async with twin.listening(queue._core.channel) as listener:
        with pytest.raises(ZeroDivisionError):
            async with opened(twin, kind) as session, session.begin():
                await queue.enqueue(session)
                if kind != "connection":
                    await session.flush()
                raise ZeroDivisionError
        assert await listener.so_far() == []
    assert count(twin) == 0


@every_kind
async def test_a_commit_makes_one_row_and_one_wake_up(twin, kind):
    """(d) Nothing is heard or seen before the commit, one wake-up after it."""
    queue = builds(twin)
    async with twin.listening(queue._core.channel) as listener:
        async with opened(twin, kind) as session:
            sent = await queue.enqueue(session)
            assert await listener.so_far() == []
            assert count(twin) == 0
            await session.commit()
        assert [n.payload for n in await listener.so_far()] == ["builds"]
    assert twin.sql("SELECT id FROM tasks") == [(sent.id,)]
    assert sent.created


@every_kind
async def test_many_tasks_of_one_transaction_wake_once(twin, kind):
    """Fifty tasks of a queue are one wake-up; a second queue in the transaction is another."""
    queue = builds(twin)
    other = twin.queue(Task, "tests").scope(**SCOPE)
    async with twin.listening(queue._core.channel) as listener:
        async with opened(twin, kind) as session:
            for _ in range(50):
                await queue.enqueue(session)
            await other.enqueue(session)
            await session.commit()
        heard = await listener.so_far()
    assert sorted(n.payload for n in heard) == ["builds", "tests"]
    assert count(twin) == 51


async def test_every_scope_of_a_table_shares_a_channel(twin):
    """A wake-up names the queue, not the scope: two scopes in one transaction wake once."""
    queue = builds(twin)
    async with twin.listening(queue._core.channel) as listener:
        async with twin.begin() as session:
            await queue.enqueue(session)
            await queue.scope(role="tester").enqueue(session)
        assert len(await listener.so_far()) == 1


async def test_a_wake_up_is_small(twin):
    """A megabyte of payload and a name of emoji do not get into the notification (B17)."""
    name = "😀" * 25
    queue = builds(twin, name)
    async with twin.listening(queue._core.channel) as listener:
        async with twin.begin() as session:
            await queue.enqueue(session, name, {"x": "y" * 1_000_000}, key="é" * 128)
        [heard] = await listener.so_far()
    assert heard.payload == name
    assert len(heard.payload.encode()) <= 200


@pytest.mark.parametrize("identity", ["key", "unique_key"])
async def test_an_existing_task_wakes_nobody(twin, identity):
    """Only a new task is news."""
    queue = builds(twin)
    async with twin.begin() as session:
        await queue.enqueue(session, **{identity: "k"})
    async with twin.listening(queue._core.channel) as listener:
        async with twin.begin() as session:
            assert not (await queue.enqueue(session, **{identity: "k"})).created
        assert await listener.so_far() == []


async def test_what_can_be_claimed_again_wakes(twin):
    """Release, retry and reclaim wake workers; claims, heartbeats and ends do not."""
    queue = builds(twin)
    async with twin.begin() as session:
        for _ in range(4):
            await queue.enqueue(session)
    async with twin.listening(queue._core.channel) as listener:

        async def heard_of(operation, *args, **kwargs):
            async with twin.begin() as session:
                answer = await getattr(queue, operation)(session, *args, **kwargs)
                assert answer
            return answer, [n.payload for n in await listener.so_far()]

        claims, heard = await heard_of("claim", holder="w", limit=4)
        assert heard == []
        assert (await heard_of("heartbeat", claims[0]))[1] == []
        assert (await heard_of("complete", claims[0]))[1] == []
        assert (await heard_of("fail", claims[1], final=True))[1] == []
        assert (await heard_of("retry", id=claims[1].id))[1] == ["builds"]
        assert (await heard_of("release", claims[2]))[1] == ["builds"]
        twin.sql("UPDATE tasks SET lease_expires_at = '2001-01-01Z' WHERE state = 'claimed'")
        assert (await heard_of("reclaim"))[1] == ["builds"]
        assert (await heard_of("cancel", id=claims[2].id))[1] == []


@every_kind
async def test_wake_ups_can_be_off(twin, kind):
    """With `notify="off"` nothing is sent, not even a statement."""
    queue = builds(twin, notify="off")
    async with twin.listening(queue._core.channel) as listener:
        with recording(twin.engine) as sent:
            async with opened(twin, kind) as session:
                await queue.enqueue(session)
                await session.commit()
        assert await listener.so_far() == []
    assert not any("pg_notify" in statement for _, statement in sent)
    assert count(twin) == 1


async def test_a_prepared_transaction_does_not_notify(twin):
    """PostgreSQL refuses to prepare a transaction that has notified: none of ours has."""
    queue = builds(twin)
    with recording(twin.engine) as sent:
        async with twin.session(twophase=True) as session:
            await queue.enqueue(session)
            if twin.scalar("SELECT current_setting('max_prepared_transactions')::int"):
                await session.run_sync(lambda sync: sync.prepare())
                await session.commit()
                assert count(twin) == 1
            else:
                await session.rollback()
    assert not any("pg_notify" in statement for _, statement in sent)
    assert any("INSERT" in statement for _, statement in sent)


# --- Never more than asked ---------------------------------------------------------------------


async def work_through(queue, session):
    """Run every operation once on one session, with successes and refusals."""
    await queue.enqueue(session, key="k")
    await queue.enqueue(session, key="k")
    for number in range(6):
        await queue.enqueue(session, f"{number}")
    a, b, c, d, e = await queue.claim(session, holder="w", limit=5)
    assert await queue.heartbeat(session, a)
    assert await queue.complete(session, a)
    assert await queue.fail(session, b)
    assert await queue.fail(session, c, final=True)
    assert await queue.release(session, d)
    assert await queue.snooze(session, e, delay=timedelta(hours=1))
    assert not await queue.complete(session, d, on_lost="return")
    assert not await queue.heartbeat(session, d)
    assert not await queue.release(session, d)
    assert await queue.retry(session, id=c.id)
    assert not await queue.retry(session, id=c.id)
    f = await queue.claim_task(session, id=c.id, holder="w")
    assert f
    assert not await queue.claim_task(session, id=c.id, holder="other")
    assert await queue.fail(session, id=c.id, holder="w")
    assert await queue.cancel(session, id=c.id, reason="no more")
    assert not await queue.cancel(session, id=c.id)
    assert not await queue.reclaim(session)


async def read_through(queue, session):
    """Run every reading operation once."""
    task = await queue.get(session, key="k")
    assert task is not None
    assert len(await queue.find(session, content=True)) > 3
    assert (await queue.stats(session)).live > 0


@every_kind
async def test_the_library_does_not_end_the_transaction(twin, kind):
    """No operation commits, rolls back or closes: one rollback of the caller's undoes them all."""
    queue = builds(twin)
    async with opened(twin, kind) as session:
        with recording(twin.engine) as sent:
            await work_through(queue, session)
            await read_through(queue, session)
        inner = twin.raw(session)() if kind == "scoped" else session
        assert inner.in_transaction()
        assert not any(s.upper().startswith(("COMMIT", "BEGIN")) for _, s in sent)
        assert count(twin) == 0
        await session.rollback()
    assert count(twin) == 0


async def test_the_library_expires_nothing(twin):
    """What the host loaded before stays loaded, through every operation."""
    queue = builds(twin)
    twin.sql(
        "INSERT INTO logged (id, name, payload) VALUES (gen_random_uuid(), 'host''s', '{\"a\": 1}')"
    )
    twin.sql(
        "INSERT INTO tasks (id, project_hash, role, name)"
        " VALUES (gen_random_uuid(), 'other', 'x', 'host''s')"
    )
    async with twin.session() as session:
        theirs = (await session.scalars(select(Logged))).one()
        also = (await session.scalars(select(Task))).one()
        ended = []
        for name in ("after_commit", "after_rollback", "after_soft_rollback", "before_commit"):
            event.listen(session.sync_session, name, lambda *args, name=name: ended.append(name))
        await work_through(queue, session)
        await read_through(queue, session)
        for entity in (theirs, also):
            assert not inspect(entity).expired
            assert not inspect(entity).expired_attributes
            assert not inspect(entity).unloaded
            assert entity in session
        assert theirs.payload == {"a": 1}
        assert ended == []
        await session.rollback()


@pytest.mark.parametrize("operation", ["enqueue", "claim"])
@pytest.mark.parametrize("autoflush", [True, False])
async def test_what_is_pending_is_flushed_once(twin, operation, autoflush):
    """A task may point at a pending row, and a pending task can be claimed, without autoflush."""
    queue = builds(twin, "default")
    async with twin.begin(autoflush=autoflush) as session:
        flushes = []
        event.listen(session.sync_session, "after_flush", lambda *args: flushes.append(1))
        task = Task(**SCOPE, name="pending")
        session.add(task)
        if operation == "enqueue":
            await queue.enqueue(session)
        else:
            [claim] = await queue.claim(session, holder="w")
            assert claim.task is task
        assert flushes == [1]
        assert not session.sync_session.new
    assert count(twin) == (2 if operation == "enqueue" else 1)


async def test_changes_of_a_claimed_task_are_written_before_its_end(twin):
    """What the host changed on `claim.task` is flushed, not overwritten, by the library's write."""
    queue = builds(twin)
    async with twin.begin(autoflush=False) as session:
        await queue.enqueue(session)
        [claim] = await queue.claim(session, holder="w")
        claim.task.reviewer = "bob"
        await queue.complete(session, claim)
    assert twin.sql("SELECT reviewer, state FROM tasks") == [("bob", "done")]


# --- The first argument ------------------------------------------------------------------------


def wrong_arguments(twin):
    """Return what is not a session of this facade, with what the error must say."""
    shared = [(None, "NoneType"), ("session", "str"), (Task, "DeclarativeAttributeIntercept")]
    own = twin.new_engine()
    engine = sync_engine(own)
    if twin.is_async:
        return [
            *shared,
            (own, "AsyncEngine: open one"),
            (engine, "Engine: open one"),
            (async_sessionmaker(twin.engine), "async_sessionmaker: open one"),
            (sessionmaker(engine), "sessionmaker: open one"),
            (Session(engine), "Session: use Queue"),
            (scoped_session(sessionmaker(engine)), "scoped_session: use Queue"),
        ]
    return [
        *shared,
        (engine, "Engine: open one"),
        (sessionmaker(engine), "sessionmaker: open one"),
        (AsyncSession(), "AsyncSession: use AsyncQueue"),
        (async_sessionmaker(), "async_sessionmaker: open one"),
    ]


async def test_other_first_arguments_are_refused(twin):
    """Anything but a session or connection of the facade is a TypeError that names its type."""
    queue = builds(twin)
    for value, said in wrong_arguments(twin):
        for call in (
            lambda value=value: queue.enqueue(value),
            lambda value=value: queue.claim(value, holder="w"),
            lambda value=value: queue.stats(value),
        ):
            with pytest.raises(TypeError, match="the first argument must be") as caught:
                await call()
            assert said in str(caught.value)


async def test_a_connection_that_has_not_begun_is_begun(twin):
    """The library begins, and the caller alone commits."""
    queue = builds(twin)
    async with twin.connect() as connection:
        assert not connection.in_transaction()
        await queue.enqueue(connection)
        assert connection.in_transaction()
        assert count(twin) == 0
    assert count(twin) == 0
    async with twin.connect() as connection:
        assert await queue.claim(connection, holder="w") == []
        await queue.enqueue(connection)
        await connection.commit()
        assert not connection.in_transaction()
        assert await queue.stats(connection)
        assert connection.in_transaction()
    assert count(twin) == 1


@every_kind
async def test_autocommit_writes_at_once(twin, kind):
    """Where every statement commits by itself, so do the library's, refusals and all."""
    queue = builds(twin)
    engine = twin.new_engine(isolation_level="AUTOCOMMIT")
    async with (twin.connect if kind == "connection" else twin.session)(engine) as session:
        await work_through(queue, session)
        assert count(twin) == 7
        with pytest.raises(EnqueueConflict, match="tasks_pkey"):
            id_ = twin.scalar("SELECT min(id::text)::uuid FROM tasks")
            await queue.scope(role="tester").enqueue(session, id=id_)
        await session.rollback()
    assert count(twin) == 7


# --- Routing -----------------------------------------------------------------------------------


async def test_each_class_has_its_own_engine(twin):
    """With several binds every statement of every operation goes to the task's engine."""
    queue = builds(twin)
    default, tasks = twin.new_engine(), twin.new_engine()
    with recording(default, tasks) as sent:
        async with twin.begin(default, binds={Task: tasks}) as session:
            await work_through(queue, session)
            await read_through(queue, session)
    assert {number for number, _ in sent} == {1}
    assert count(twin) == 7


async def test_events_go_where_the_task_is(twin):
    """A history is written and read with its task, whatever the event class is bound to."""
    twin.create(Base.metadata)
    queue = twin.queue(Logged)
    default, tasks = twin.new_engine(), twin.new_engine()
    with recording(default, tasks) as sent:
        async with twin.begin(default, binds={Logged: tasks}) as session:
            await work_through(queue, session)
            assert await queue.history(session, key="k")
    assert {number for number, _ in sent} == {1}
    assert count(twin, "logged_events") > 10


class Routing(Session):
    """As in SQLAlchemy's documentation: writes to the primary, the rest to a replica."""

    def get_bind(self, mapper=None, *, clause=None, **options):
        primary, replica = self.info["engines"]
        if self._flushing or isinstance(clause, Insert | Update | Delete):
            return primary
        return replica


@asynccontextmanager
async def routed(twin, primary, replica):
    """Open a session with a primary and a replica."""
    info = {"engines": (sync_engine(primary), sync_engine(replica))}
    if twin.is_async:
        session = TwinAsyncSession(sync_session_class=Routing, info=info, expire_on_commit=False)
    else:
        session = SessionAdapter(Routing(info=info, expire_on_commit=False))
    async with session:
        yield session


@pytest.mark.parametrize("model", [Task, Logged, Board])
async def test_writes_go_to_the_primary(twin, model):
    """With reads on a replica, every statement of a write goes to the primary, its reads too."""
    twin.create(Base.metadata)
    limits = Limits()
    queue = {
        Task: lambda: twin.queue(Task).scope(**SCOPE),
        Logged: lambda: twin.queue(Logged),
        Board: lambda: twin.queue(Board, limits=limits).scope(team_id=7),
    }[model]()
    primary, replica = twin.new_engine(), twin.new_engine()
    with recording(primary, replica) as sent:
        async with routed(twin, primary, replica) as session, session.begin():
            await work_through(queue, session)
            assert await queue.claim(session, holder="w", take_expired=True)
    assert [statement for number, statement in sent if number == 1] == []
    assert any("pg_notify" in statement for _, statement in sent)
    assert count(twin, model.__tablename__) == 7


async def test_a_conflict_is_explained_on_the_primary(twin):
    """The savepoint of a conflicting enqueue is the primary's, and the transaction goes on."""
    queue = builds(twin)
    async with twin.begin() as session:
        sent = await queue.enqueue(session)
    primary, replica = twin.new_engine(), twin.new_engine()
    with recording(primary, replica) as recorded:
        async with routed(twin, primary, replica) as session, session.begin():
            with pytest.raises(EnqueueConflict):
                await queue.scope(role="tester").enqueue(session, id=sent.id)
            await queue.enqueue(session)
    assert {number for number, _ in recorded} == {0}
    assert count(twin) == 2


async def test_reads_go_to_the_replica(twin):
    """Reading operations are reads to a routing session."""
    queue = builds(twin)
    async with twin.begin() as session:
        await work_through(queue, session)
    primary, replica = twin.new_engine(), twin.new_engine()
    with recording(primary, replica) as sent:
        async with routed(twin, primary, replica) as session:
            await read_through(queue, session)
    assert {number for number, _ in sent} == {1}


# --- The host's listeners ----------------------------------------------------------------------


def commits(session):
    """Count the session's commit events."""
    seen = Counter()
    for name in ("before_commit", "after_commit", "after_rollback"):
        event.listen(session.sync_session, name, lambda *args, name=name: seen.update([name]))
    return seen


async def test_one_commit_fires_its_listeners_once(twin):
    """An enqueue, a conflict and a retry fire no commit of their own, savepoints included."""
    queue = builds(twin)
    async with twin.session() as session:
        seen = commits(session)
        sent = await queue.enqueue(session)
        with pytest.raises(EnqueueConflict):
            await queue.scope(role="tester").enqueue(session, id=sent.id)
        await queue.cancel(session, id=sent.id)
        assert await queue.retry(session, id=sent.id)
        assert seen == {}
        await session.commit()
        assert seen == {"before_commit": 1, "after_commit": 1}


async def test_a_refused_retry_leaves_the_transaction_usable(twin):
    """A unique key that a live task has is met within a savepoint, and reported."""
    queue = builds(twin)
    async with twin.session() as session:
        seen = commits(session)
        old = await queue.enqueue(session, unique_key="u")
        await queue.cancel(session, id=old.id)
        await queue.enqueue(session, unique_key="u")
        refused = await queue.retry(session, id=old.id)
        assert refused.reason is RefusalReason.KEY_TAKEN
        await session.commit()
        assert seen == {"before_commit": 1, "after_commit": 1}
    assert count(twin) == 2


async def test_transaction_managers_see_every_write(twin):
    """Every write is ORM-enabled DML: `do_orm_execute` tells it from a read."""
    queue = builds(twin)

    async def wrote(operation, *args, **kwargs):
        seen = []

        def see(state):
            if state.is_orm_statement and (state.is_insert or state.is_update):
                seen.append(state.bind_mapper.class_)

        event.listen(session.sync_session, "do_orm_execute", see)
        answer = await getattr(queue, operation)(session, *args, **kwargs)
        event.remove(session.sync_session, "do_orm_execute", see)
        assert answer
        assert set(seen) == {Task}, operation
        return answer

    async with twin.begin() as session:
        for _ in range(6):
            await wrote("enqueue")
        a, b, c, d, e = await wrote("claim", holder="w", limit=5)
        await wrote("heartbeat", a)
        await wrote("complete", a)
        await wrote("fail", b)
        await wrote("release", c)
        await wrote("snooze", d, delay=timedelta(0))
        await wrote("cancel", id=e.id)
        await wrote("retry", id=e.id)
        await wrote("claim_task", id=e.id, holder="w")
        await session.execute(text("UPDATE tasks SET lease_expires_at = '2001-01-01Z'"))
        await wrote("reclaim")


# --- How many statements -----------------------------------------------------------------------


async def test_operations_cost_what_they_must(twin):
    """The number of statements of every operation, wake-ups and savepoints included."""
    queue = builds(twin)
    cost = {}

    async def run(label, operation, *args, **kwargs):
        with recording(twin.engine) as sent:
            answer = await getattr(queue, operation)(session, *args, **kwargs)
        cost[label] = len(sent)
        return answer

    async with twin.begin() as session:
        await session.execute(select(1))
        await run("enqueue", "enqueue", key="k", unique_key="u")
        await run("enqueue again", "enqueue", key="k")
        await run("enqueue again by the unique key", "enqueue", key="l", unique_key="u")
        for number in range(7):
            await queue.enqueue(session, max_attempts=1 if number == 6 else 20)
        a, b, c, d, e, f, g, h = await run("claim", "claim", holder="w", limit=8)
        await run("claim nothing", "claim", holder="w")
        await run("heartbeat", "heartbeat", a)
        await run("complete", "complete", a, result={"a": 1})
        await run("complete again", "complete", a)
        await run("fail", "fail", b)
        await run("fail for good", "fail", c, final=True)
        await run("fail by holder", "fail", id=d.id, holder="w")
        await run("fail the last attempt", "fail", h)
        await run("release", "release", e)
        await run("release again", "release", e)
        await run("snooze", "snooze", f, delay=timedelta(0))
        await run("cancel", "cancel", id=f.id)
        await run("retry", "retry", id=f.id)
        await run("claim_task", "claim_task", id=f.id, holder="w")
        await run("claim_task by key", "claim_task", key="k", holder="w")
        await run("reclaim nothing", "reclaim")
        await run("get", "get", key="k")
        await run("find", "find")
        await run("stats", "stats")
        assert await run("gone", "cancel", key="nothing") is not None
        assert g
    assert cost == {
        "enqueue": 2,
        "enqueue again": 2,
        "enqueue again by the unique key": 3,
        "claim": 1,
        "claim nothing": 1,
        "heartbeat": 1,
        "complete": 1,
        "complete again": 2,
        "fail": 1,
        "fail for good": 1,
        "fail by holder": 2,
        "fail the last attempt": 2,
        "release": 2,
        "release again": 3,
        "snooze": 1,
        "cancel": 1,
        "retry": 4,
        "claim_task": 2,
        "claim_task by key": 2,
        "reclaim nothing": 2,
        "get": 1,
        "find": 1,
        "stats": 1,
        "gone": 2,
    }


async def test_a_history_costs_little(twin):
    """Events are written by the statement of the change itself, but for the first."""
    twin.create(Base.metadata)
    queue = twin.queue(Logged)
    async with twin.begin() as session:
        for expected, operation, kwargs in (
            (3, "enqueue", {"key": "k"}),
            (1, "claim", {"holder": "w"}),
            (1, "complete", {"key": "k", "holder": "w"}),
            (2, "history", {"key": "k"}),
        ):
            with recording(twin.engine) as sent:
                assert await getattr(queue, operation)(session, **kwargs)
            assert (operation, len(sent)) == (operation, expected)


async def test_statements_are_built_once(twin):
    """Every call of an operation runs the same statement objects."""
    queue = builds(twin)
    runs = []
    for _ in range(2):
        async with twin.begin() as session:
            seen, execute = [], session.sync_session.execute

            def record(statement, *args, seen=seen, execute=execute, **kwargs):
                seen.append(statement)
                return execute(statement, *args, **kwargs)

            session.sync_session.execute = record
            await queue.enqueue(session)
            [claim] = await queue.claim(session, holder="w")
            await queue.heartbeat(session, claim)
            await queue.complete(session, claim)
            await queue.stats(session)
            runs.append(seen)
    assert len(runs[0]) == len(runs[1]) == 6
    assert all(a is b for a, b in zip(*runs, strict=True))


@pytest.mark.parametrize("model", [Task, Logged])
async def test_statements_are_compiled_once(twin, model):
    """From the second call on SQLAlchemy's cache knows every statement of every operation."""
    twin.create(Base.metadata)
    queue = twin.queue(model)
    if model is Task:
        queue = queue.scope(**SCOPE)
    missed = []

    def record(connection, cursor, statement, parameters, context, executemany):
        if context.cache_hit.name != "CACHE_HIT" and "SAVEPOINT" not in statement:
            missed.append(statement.partition("(")[0])

    event.listen(sync_engine(twin.engine), "before_cursor_execute", record)
    for _ in range(2):
        missed.clear()
        async with twin.session() as session:
            await work_through(queue, session)
            await read_through(queue, session)
            await session.rollback()
    assert missed == []
