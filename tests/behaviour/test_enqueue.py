"""Enqueue: once by id, key and unique key; races; what a new task says (B26, B27)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid4

import pytest
from sqlalchemy import String, UniqueConstraint, select
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from sqla_taskqueue import (
    BigIntId,
    EnqueueConflict,
    InvalidArgument,
    ScopeMissing,
    TaskExists,
    TaskMixin,
    TaskState,
    UuidId,
)
from sqla_taskqueue._drivers import sqlstate
from tests.behaviour.hosts import Base, Board, Logged, Pair, Task

SCOPE = {"project_hash": "9f2c", "role": "coder"}


class Own(DeclarativeBase):
    pass


class Narrow(UuidId, TaskMixin, Own):
    """Keys are unique within one queue of a team, and numbers within the whole table."""

    __tablename__ = "narrow"
    __scope__ = ("team", "area")
    __key_scope__ = ("team", "queue")
    __table_args__ = (UniqueConstraint("number", name="uq_host_number"),)
    team: Mapped[str] = mapped_column(String(20))
    area: Mapped[str] = mapped_column(String(20))
    number: Mapped[int | None]
    stamp: Mapped[str] = mapped_column(String(20), insert_default=lambda: "made in Python")


class Counted(BigIntId, TaskMixin, Own):
    __tablename__ = "counted"


def builds(twin, name="builds", **scope):
    """Return a queue of `Task` in one scope."""
    twin.create(Base.metadata)
    return twin.queue(Task, name).scope(**(SCOPE | scope))


def narrow(twin, name="n", team="a", area="x"):
    """Return a queue of `Narrow`."""
    return twin.queue(Narrow, name).scope(team=team, area=area)


async def finish(twin, queue, how, **named):
    """End a task in one of the ways there are."""
    async with twin.begin() as session:
        if how == "cancelled":
            assert await queue.cancel(session, **named)
            return
        claim = await queue.claim_task(session, holder="w", **named)
        if how == "done":
            assert await queue.complete(session, claim)
        else:
            assert await queue.fail(session, claim, final=True)


# --- Once --------------------------------------------------------------------------------------


async def test_a_new_task_is_created(twin):
    """The answer has the id and says that the task is queued; the row is there after commit."""
    queue = builds(twin)
    async with twin.begin() as session:
        sent = await queue.enqueue(session, "compile", {"ref": "main"})
        assert sent.created
        assert isinstance(sent.id, UUID)
        assert sent.id.version == 7
        assert sent.state is TaskState.QUEUED
    [row] = twin.sql("SELECT id, queue, name, payload, state, project_hash, role FROM tasks")
    assert row == (sent.id, "builds", "compile", {"ref": "main"}, "queued", "9f2c", "coder")


async def test_tasks_without_identity_are_all_created(twin):
    """Without id and keys every call makes a task, however alike they are."""
    queue = builds(twin)
    async with twin.begin() as session:
        sent = [await queue.enqueue(session, "same", {"a": 1}) for _ in range(3)]
    assert len({one.id for one in sent}) == 3
    assert twin.scalar("SELECT count(*) FROM tasks") == 3


@pytest.mark.parametrize("identity", ["id", "key", "unique_key"])
@pytest.mark.parametrize("committed", [True, False], ids=["committed", "same transaction"])
async def test_the_second_enqueue_finds_the_first(twin, identity, committed):
    """By id, key or unique key the task exists already: nothing is changed, its id comes back."""
    queue = builds(twin)
    named = {identity: uuid4() if identity == "id" else "k"}
    async with twin.session() as session:
        first = await queue.enqueue(session, "one", {"n": 1}, priority=3, **named)
        if committed:
            await session.commit()
        second = await queue.enqueue(session, "two", {"n": 2}, priority=5, **named)
        await session.commit()
    assert (first.created, second.created) == (True, False)
    assert second.id == first.id
    assert second.state is TaskState.QUEUED
    assert twin.sql("SELECT name, payload, priority FROM tasks") == [("one", {"n": 1}, 3)]


@pytest.mark.parametrize("model", [Pair, Counted, Board, Logged])
async def test_ids_of_other_kinds_are_idempotent(twin, model):
    """Composite keys, counted keys and keys of recorded classes are recognised alike."""
    twin.create(Base.metadata, Own.metadata)
    queue = twin.queue(model)
    if model is Pair:
        queue = queue.scope(tenant_id=7)
    if model is Board:
        queue = queue.scope(team_id=7)
    id_ = {Pair: (7, 41), Counted: 41}.get(model, uuid4())
    async with twin.begin() as session:
        first = await queue.enqueue(session, id=id_)
        second = await queue.enqueue(session, id=id_)
        assert (first.id, first.created) == (id_, True)
        assert (second.id, second.created) == (id_, False)


async def test_a_composite_id_may_leave_out_the_scope(twin):
    """Where the scope says the rest of the key, one value names the task."""
    twin.create(Base.metadata)
    queue = twin.queue(Pair).scope(tenant_id=7)
    async with twin.begin() as session:
        assert (await queue.enqueue(session, id=41)).id == (7, 41)
        assert not (await queue.enqueue(session, id=(7, 41))).created
        with pytest.raises(InvalidArgument, match="not the scope's"):
            await queue.enqueue(session, id=(8, 41))


async def test_counted_ids_come_back(twin):
    """An id that the database makes is in the answer."""
    twin.create(Own.metadata)
    queue = twin.queue(Counted)
    async with twin.begin() as session:
        sent = [await queue.enqueue(session) for _ in range(3)]
    assert [one.id for one in sent] == [1, 2, 3]


async def test_keys_are_trimmed(twin):
    """Blanks around a key do not make another one."""
    queue = builds(twin)
    async with twin.begin() as session:
        first = await queue.enqueue(session, key="  k ", unique_key="u")
        assert (await queue.enqueue(session, key="k\n")).id == first.id
        assert (await queue.enqueue(session, unique_key=" u ")).id == first.id
    assert twin.sql("SELECT key, unique_key FROM tasks") == [("k", "u")]


async def test_a_key_is_looked_at_before_a_unique_key(twin):
    """When key and unique key name different tasks, the lasting identity decides."""
    queue = builds(twin)
    async with twin.begin() as session:
        keyed = await queue.enqueue(session, key="k")
        await queue.enqueue(session, unique_key="u")
        both = await queue.enqueue(session, key="k", unique_key="u")
    assert (both.id, both.created) == (keyed.id, False)


# --- How long, and how far ---------------------------------------------------------------------


@pytest.mark.parametrize("how", ["done", "failed", "cancelled"])
async def test_a_key_lasts_and_a_unique_key_does_not(twin, how):
    """A key names its task for ever; a unique key is free once the task has ended."""
    queue = builds(twin)
    async with twin.begin() as session:
        first = await queue.enqueue(session, key="k", unique_key="u")
    await finish(twin, queue, how, key="k")
    async with twin.begin() as session:
        again = await queue.enqueue(session, key="k")
        assert (again.id, again.created, again.state) == (first.id, False, how)
        fresh = await queue.enqueue(session, unique_key="u")
        assert fresh.created
        assert fresh.id != first.id


@pytest.mark.parametrize("state", ["blocked", "queued", "claimed"])
async def test_a_unique_key_is_taken_while_the_task_lives(twin, state):
    """Waiting, queued or claimed, the task keeps its unique key."""
    queue = builds(twin)
    async with twin.begin() as session:
        first = await queue.enqueue(session, unique_key="u")
    if state == "blocked":
        twin.sql("UPDATE tasks SET state = 'blocked'")
    elif state == "claimed":
        async with twin.begin() as session:
            await queue.claim(session, holder="w")
    async with twin.begin() as session:
        again = await queue.enqueue(session, unique_key="u")
    assert (again.id, again.created, again.state) == (first.id, False, state)


async def test_a_key_is_free_when_its_row_is_gone(twin):
    """A key lasts as long as its row."""
    queue = builds(twin)
    async with twin.begin() as session:
        await queue.enqueue(session, key="k")
    twin.sql("DELETE FROM tasks")
    async with twin.begin() as session:
        assert (await queue.enqueue(session, key="k")).created


async def test_a_key_spans_the_queues_of_a_scope(twin):
    """The same key in another queue of the scope is the same task; in another scope it is not."""
    queue = builds(twin)
    async with twin.begin() as session:
        first = await queue.enqueue(session, key="k")
        elsewhere = await twin.queue(Task, "tests").scope(**SCOPE).enqueue(session, key="k")
        assert (elsewhere.id, elsewhere.created) == (first.id, False)
        for other in ({"role": "tester"}, {"project_hash": "beef"}):
            scope = SCOPE | other
            assert (
                await twin.queue(Task, "builds").scope(**scope).enqueue(session, key="k")
            ).created


async def test_a_unique_key_is_one_queues_own(twin):
    """Another queue, or another scope, has a task of its own with the same unique key."""
    queue = builds(twin)
    async with twin.begin() as session:
        assert (await queue.enqueue(session, unique_key="u")).created
        for name, other in (("tests", {}), ("builds", {"role": "tester"})):
            queue = twin.queue(Task, name).scope(**(SCOPE | other))
            assert (await queue.enqueue(session, unique_key="u")).created
            assert not (await queue.enqueue(session, unique_key="u")).created


async def test_a_host_may_narrow_or_widen_keys(twin):
    """`__key_scope__` decides: within a queue, and across the scope columns it leaves out."""
    twin.create(Own.metadata)
    async with twin.begin() as session:
        first = await narrow(twin).enqueue(session, key="k")
        wider = await narrow(twin, area="y").enqueue(session, key="k")
        assert (wider.id, wider.created) == (first.id, False)
        assert (await narrow(twin, name="m").enqueue(session, key="k")).created
        assert (await narrow(twin, team="b").enqueue(session, key="k")).created


# --- Conflicts ---------------------------------------------------------------------------------


@pytest.mark.parametrize("identity", ["id", "key", "unique_key"])
async def test_an_existing_task_can_be_an_error(twin, identity):
    """`if_exists="raise"` says which task it is; the transaction goes on."""
    queue = builds(twin)
    named = {identity: uuid4() if identity == "id" else "k"}
    async with twin.begin() as session:
        first = await queue.enqueue(session, if_exists="raise", **named)
        with pytest.raises(TaskExists, match="exists already and is queued") as caught:
            await queue.enqueue(session, if_exists="raise", **named)
        assert caught.value.id == first.id
        assert caught.value.state == "queued"
        assert (await queue.enqueue(session)).created
    assert twin.scalar("SELECT count(*) FROM tasks") == 2


@pytest.mark.parametrize("keyed", [{}, {"key": "new"}, {"unique_key": "new"}])
async def test_a_constraint_of_the_hosts_own_is_named(twin, keyed):
    """A row that the host's constraint keeps out is a typed error; the transaction goes on."""
    twin.create(Own.metadata)
    queue = narrow(twin)
    async with twin.begin() as session:
        await queue.enqueue(session, values={"number": 5})
        with pytest.raises(EnqueueConflict, match="uq_host_number") as caught:
            await queue.enqueue(session, values={"number": 5}, **keyed)
        assert caught.value.constraint == "uq_host_number"
        assert (await queue.enqueue(session, values={"number": 6})).created
    assert twin.sql("SELECT number FROM narrow ORDER BY 1") == [(5,), (6,)]


async def test_an_id_of_another_scope_is_a_conflict(twin):
    """A task that the scope cannot see is neither returned nor touched."""
    queue = builds(twin)
    id_ = uuid4()
    async with twin.begin() as session:
        await queue.enqueue(session, "theirs", id=id_)
    other = twin.queue(Task, "builds").scope(**(SCOPE | {"role": "tester"}))
    async with twin.begin() as session:
        with pytest.raises(EnqueueConflict, match="tasks_pkey"):
            await other.enqueue(session, "mine", id=id_)
        assert (await other.enqueue(session, "mine")).created
    assert twin.scalar(f"SELECT name FROM tasks WHERE id = '{id_}'") == "theirs"


async def test_an_id_of_another_queue_is_found(twin):
    """Like a key, an id is recognised in every queue of the scope."""
    queue = builds(twin)
    id_ = uuid4()
    async with twin.begin() as session:
        await queue.enqueue(session, id=id_)
        again = await twin.queue(Task, "tests").scope(**SCOPE).enqueue(session, id=id_)
    assert (again.id, again.created) == (id_, False)


async def test_a_conflict_through_a_connection(twin):
    """A connection's transaction survives a conflict as a session's does."""
    twin.create(Own.metadata)
    queue = narrow(twin)
    async with twin.begin_connection() as connection:
        await queue.enqueue(connection, values={"number": 5})
        with pytest.raises(EnqueueConflict, match="uq_host_number"):
            await queue.enqueue(connection, values={"number": 5})
        assert (await queue.enqueue(connection)).created
    assert twin.scalar("SELECT count(*) FROM narrow") == 2


async def test_an_unscoped_queue_cannot_enqueue(twin):
    """The error names the scope columns that have no value, before any SQL."""
    twin.create(Base.metadata)
    queue = twin.queue(Task, "builds")
    async with twin.session() as session:
        with pytest.raises(ScopeMissing, match=r"project_hash=…, role=…") as caught:
            await queue.enqueue(session)
        assert caught.value.missing == ("project_hash", "role")
        with pytest.raises(ScopeMissing) as caught:
            await queue.scope(role="coder").enqueue(session)
        assert caught.value.missing == ("project_hash",)
        assert not session.in_transaction()


# --- Races (B26, B27) --------------------------------------------------------------------------


@pytest.mark.parametrize("identity", ["id", "key", "unique_key"])
@pytest.mark.parametrize("winner", ["commits", "rolls back"])
async def test_a_race_for_a_key_has_one_winner(twin, identity, winner):
    """The loser waits: it inserts when the winner rolls back, and finds it when it commits."""
    queue = builds(twin)
    named = {identity: uuid4() if identity == "id" else "k"}

    async def lose():
        async with twin.begin() as session:
            return await queue.enqueue(session, "loser", **named)

    async with twin.session() as session:
        first = await queue.enqueue(session, "winner", **named)
        losing = twin.spawn(lose)
        await twin.until_waiting()
        await (session.commit() if winner == "commits" else session.rollback())
    second = await losing
    rows = twin.sql("SELECT id, name FROM tasks")
    if winner == "commits":
        assert (second.id, second.created) == (first.id, False)
        assert rows == [(first.id, "winner")]
    else:
        assert second.created
        assert rows == [(second.id, "loser")]


@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
@pytest.mark.parametrize("identity", ["id", "key", "unique_key"])
async def test_a_snapshot_that_is_too_old_is_a_serialization_failure(twin, level, identity):
    """A key committed after the snapshot is an error to retry (40001), never a false answer."""
    queue = builds(twin)
    named = {identity: uuid4() if identity == "id" else "k"}
    engine = twin.new_engine(isolation_level=level)
    async with twin.session(engine) as session:
        assert (await session.scalars(select(Task))).all() == []
        async with twin.begin() as other:
            await queue.enqueue(other, **named)
        with pytest.raises(Exception) as caught:
            await queue.enqueue(session, **named)
        assert sqlstate(caught.value) == "40001"
        await session.rollback()
        again = await queue.enqueue(session, **named)
        assert not again.created
        await session.commit()
    assert twin.scalar("SELECT count(*) FROM tasks") == 1


async def test_many_at_once_make_one_task(twin):
    """Of eight transactions that enqueue one key together, one creates and all name one id."""
    queue = builds(twin)
    start = twin.barrier(8)

    async def run():
        async with twin.begin() as session:
            await start.wait()
            return await queue.enqueue(session, key="k", unique_key="u")

    sent = [await one for one in [twin.spawn(run) for _ in range(8)]]
    assert sum(one.created for one in sent) == 1
    assert len({one.id for one in sent}) == 1
    assert twin.scalar("SELECT count(*) FROM tasks") == 1


@pytest.mark.parametrize("identity", ["id", "key", "unique_key"])
async def test_a_repeated_enqueue_leaves_a_running_task_alone(twin, identity):
    """The claimed row stays as it is, nobody else gets it, and its holder completes it (B27)."""
    queue = builds(twin)
    named = {identity: uuid4() if identity == "id" else "k"}
    async with twin.begin() as session:
        first = await queue.enqueue(session, "work", {"n": 1}, **named)
    async with twin.begin() as session:
        [claim] = await queue.claim(session, holder="w1")
    before = twin.sql("SELECT * FROM tasks")
    async with twin.begin() as session:
        again = await queue.enqueue(
            session, "work", {"n": 2}, priority=-5, delay=timedelta(hours=1), **named
        )
    assert (again.id, again.created, again.state) == (first.id, False, TaskState.CLAIMED)
    assert twin.sql("SELECT * FROM tasks") == before
    async with twin.begin() as session:
        assert await queue.claim(session, holder="w2") == []
        assert await queue.complete(session, claim)
    assert twin.sql("SELECT state, attempt, payload FROM tasks") == [("done", 1, {"n": 1})]


# --- What a new task says ----------------------------------------------------------------------


async def test_a_delay_counts_from_the_databases_clock(twin):
    """`run_at` is exactly the delay after the statement; none means due at once."""
    queue = builds(twin)
    async with twin.begin() as session:
        await queue.enqueue(session, "later", delay=timedelta(hours=1, microseconds=7))
        await queue.enqueue(session, "now")
        await queue.enqueue(session, "zero", delay=timedelta(0))
    assert twin.sql("SELECT name, run_at - created_at FROM tasks ORDER BY name") == [
        ("later", timedelta(hours=1, microseconds=7)),
        ("now", timedelta(0)),
        ("zero", timedelta(0)),
    ]
    assert twin.scalar("SELECT bool_and(created_at = updated_at) FROM tasks")


async def test_a_delay_counts_from_the_statement(twin):
    """In an old transaction the delay does not begin when the transaction did."""
    queue = builds(twin)
    async with twin.session() as session:
        begun = await session.scalar(select(Task.id).limit(1))
        assert begun is None
        between = twin.scalar("SELECT clock_timestamp()")
        await queue.enqueue(session)
        await session.commit()
    assert twin.scalar("SELECT run_at FROM tasks") >= between


async def test_a_time_is_kept_to_the_microsecond(twin):
    """`run_at` is stored as given, whatever its zone; the past is allowed."""
    queue = builds(twin)
    moment = datetime(2001, 2, 3, 4, 5, 6, 789, tzinfo=UTC)
    async with twin.begin() as session:
        await queue.enqueue(session, run_at=moment)
    async with twin.begin() as session:
        [claim] = await queue.claim(session, holder="w")
        assert claim.task.run_at == moment


async def test_a_task_that_is_not_due_is_not_claimed(twin):
    """A later task waits, by its delay or by its time."""
    queue = builds(twin)
    async with twin.begin() as session:
        await queue.enqueue(session, delay=timedelta(hours=1))
        await queue.enqueue(session, run_at=datetime(2999, 1, 1, tzinfo=UTC))
        due = await queue.enqueue(session)
        claims = await queue.claim(session, holder="w", limit=10)
    assert [claim.id for claim in claims] == [due.id]


async def test_priority_attempts_and_actor_are_stored(twin):
    """What the call says is what the row says."""
    queue = builds(twin)
    async with twin.begin() as session:
        await queue.enqueue(session, "a", priority=-32_768, max_attempts=1, actor="ann")
        await queue.enqueue(session, "b", priority=32_767, max_attempts=None)
        await queue.enqueue(session, "c")
    assert twin.sql(
        "SELECT name, priority, max_attempts, created_by, attempt, round FROM tasks ORDER BY name"
    ) == [
        ("a", -32_768, 1, "ann", 0, 1),
        ("b", 32_767, None, None, 0, 1),
        ("c", 0, 20, None, 0, 1),
    ]


async def test_a_boards_tasks_are_tried_without_end(twin):
    """The default of board classes is no limit, for enqueue and for the ORM."""
    twin.create(Base.metadata)
    board = twin.queue(Board).scope(team_id=7)
    async with twin.begin() as session:
        await board.enqueue(session, values={"title": "t", "meta": {"a": 1}})
        session.add(Board(team_id=7, title="u"))
    assert twin.sql("SELECT title, metadata, max_attempts FROM board ORDER BY title") == [
        ("t", {"a": 1}, None),
        ("u", None, None),
    ]


@pytest.mark.parametrize("payload", [None, True, 0, "text", [], {}, {"a": [1, {"b": None}]}])
async def test_every_kind_of_json_is_a_payload(twin, payload):
    """What was enqueued is what the claim has, and None is SQL's NULL."""
    queue = builds(twin)
    async with twin.begin() as session:
        await queue.enqueue(session, payload=payload)
        [claim] = await queue.claim(session, holder="w")
        assert claim.payload == payload
    assert twin.scalar("SELECT payload IS NULL FROM tasks") == (payload is None)


async def test_the_hosts_own_columns_are_set(twin):
    """`values` fills the host's attributes; Python-side defaults are evaluated for each row."""
    twin.create(Base.metadata, Own.metadata)
    async with twin.begin() as session:
        await narrow(twin).enqueue(session, values={"number": 1})
        await narrow(twin).enqueue(session, values={"number": 2, "stamp": "given"})
        await twin.queue(Task).scope(**SCOPE).enqueue(session, values={"reviewer": "bob"})
    assert twin.sql("SELECT number, stamp FROM narrow ORDER BY 1") == [
        (1, "made in Python"),
        (2, "given"),
    ]
    assert twin.scalar("SELECT reviewer FROM tasks") == "bob"


@pytest.mark.parametrize("name", ["nothing", "state", "lease_token", "id", "role", "queue", "key"])
async def test_other_columns_are_refused(twin, name):
    """Unknown names, the queue's own columns, the key and the scope are not the host's to set."""
    queue = builds(twin)
    async with twin.session() as session:
        with pytest.raises(InvalidArgument, match=f"'{name}'"):
            await queue.enqueue(session, values={name: "x"})
        assert not session.in_transaction()


async def test_a_task_added_to_the_session_is_claimable(twin):
    """Server defaults make `session.add(Task())` a queued task that is due at once."""
    queue = builds(twin, "default")
    async with twin.begin() as session:
        task = Task(**SCOPE, name="added", payload={"a": 1})
        session.add(task)
        await session.flush()
        id_ = task.id
    async with twin.begin() as session:
        [claim] = await queue.claim(session, holder="w")
        assert (claim.id, claim.name, claim.payload) == (id_, "added", {"a": 1})
        assert (claim.attempt, claim.max_attempts) == (1, 20)


async def test_the_answer_is_readable_at_any_time(twin):
    """After a rollback, and after the session is closed, without I/O."""
    queue = builds(twin)
    async with twin.session() as session:
        sent = await queue.enqueue(session, key="k")
        await session.rollback()
    assert sent.created
    assert isinstance(sent.id, UUID)
    assert sent.state is TaskState.QUEUED
    assert twin.scalar("SELECT count(*) FROM tasks") == 0
