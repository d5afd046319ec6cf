"""Claiming the next tasks: order, limits, and what a claim says."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest
from sqlalchemy import inspect, select
from sqlalchemy.orm import object_session

from sqla_taskqueue import Claim, Holder, InvalidArgument, Lease, Limits, ScopeMissing
from tests.behaviour.hosts import Base, Board, Logged, Pair, Task

SCOPE = {"project_hash": "9f2c", "role": "coder"}
EARLY = datetime(2001, 1, 1, tzinfo=UTC)


def builds(twin, name="builds", **options):
    """Return a queue of `Task` in one scope."""
    twin.create(Base.metadata)
    return twin.queue(Task, name, **options).scope(**SCOPE)


def of(twin, model):
    """Return a queue of any of the host classes."""
    twin.create(Base.metadata)
    scopes = {Task: SCOPE, Logged: {}, Pair: {"tenant_id": 7}, Board: {"team_id": 7}}
    return twin.queue(model).scope(**scopes[model])


def expire(twin, table="tasks"):
    """Let every lease run out."""
    twin.sql(f"UPDATE {table} SET lease_expires_at = '2001-01-01Z' WHERE state = 'claimed'")


# --- Which tasks -------------------------------------------------------------------------------


async def test_claims_come_in_order(twin):
    """(priority, run_at, key): the smaller priority first, then the older, in one batch."""
    queue = builds(twin)
    given = [
        ("e", 1, 0),
        ("c", 0, 5),
        ("a", -3, 9),
        ("d", 0, 7),
        ("b", 0, 1),
        ("f", 32_767, 0),
    ]
    async with twin.begin() as session:
        for name, priority, second in given:
            due = EARLY + timedelta(seconds=second)
            await queue.enqueue(session, name, priority=priority, run_at=due)
        claims = await queue.claim(session, holder="w", limit=10)
    assert [claim.name for claim in claims] == ["a", "b", "c", "d", "e", "f"]


async def test_single_claims_come_in_the_same_order(twin):
    """One at a time, tasks come as they would in a batch."""
    queue = builds(twin)
    async with twin.begin() as session:
        for number in range(6):
            due = EARLY + timedelta(seconds=number % 2)
            await queue.enqueue(session, f"{number}", priority=-number % 3, run_at=due)
    claimed = []
    for _ in range(7):
        async with twin.begin() as session:
            claimed += [c.name for c in await queue.claim(session, holder="w")]
    assert claimed == ["0", "3", "2", "5", "4", "1"]


@pytest.mark.parametrize("model", [Task, Logged, Pair, Board])
async def test_ties_go_by_key(twin, model):
    """Tasks due at the same moment come in the order of their keys: as they were made."""
    queue = of(twin, model)
    async with twin.begin() as session:
        sent = [
            await queue.enqueue(session, id=number if model is Pair else None, run_at=EARLY)
            for number in range(30)
        ]
        claims = await queue.claim(session, holder="w", limit=30)
    assert [claim.id for claim in claims] == [one.id for one in sent]


async def test_a_claim_takes_no_more_than_its_limit(twin):
    """Batches go on where the last one ended, and the last one is short."""
    queue = builds(twin)
    async with twin.begin() as session:
        sent = [(await queue.enqueue(session, run_at=EARLY)).id for _ in range(7)]
    taken = []
    for expected in (3, 3, 1, 0):
        async with twin.begin() as session:
            claims = await queue.claim(session, holder="w", limit=3)
        assert len(claims) == expected
        taken += [claim.id for claim in claims]
    assert taken == sent


async def test_a_thousand_tasks_are_one_claim(twin):
    """The largest batch, with one token, in order."""
    queue = of(twin, Logged)
    twin.sql(
        "INSERT INTO logged (id, name, priority)"
        " SELECT gen_random_uuid(), i::text, i % 3 FROM generate_series(1, 1001) AS i"
    )
    async with twin.begin() as session:
        claims = await queue.claim(session, holder="w", limit=1_000)
    assert len(claims) == 1_000
    assert [c.id for c in claims] == [
        id_
        for (id_,) in twin.sql(
            "SELECT id FROM logged WHERE state = 'claimed' ORDER BY priority, run_at, id"
        )
    ]
    assert len({claim.lease.token for claim in claims}) == 1
    assert twin.scalar("SELECT count(*) FROM logged_events") == 1_000


async def test_only_the_queues_own_tasks_are_claimed(twin):
    """Another queue's tasks, and another scope's, stay."""
    queue = builds(twin)
    async with twin.begin() as session:
        await twin.queue(Task, "tests").scope(**SCOPE).enqueue(session)
        await queue.scope(role="tester").enqueue(session)
        await queue.scope(project_hash="beef").enqueue(session)
        mine = await queue.enqueue(session)
        claims = await queue.claim(session, holder="w", limit=10)
    assert [claim.id for claim in claims] == [mine.id]


@pytest.mark.parametrize("state", ["blocked", "done", "failed", "cancelled"])
async def test_only_queued_tasks_are_claimed(twin, state):
    """A task in any other state is passed over."""
    queue = builds(twin)
    async with twin.begin() as session:
        await queue.enqueue(session)
    twin.sql("UPDATE tasks SET state = %(s)s", s=state)
    async with twin.begin() as session:
        assert await queue.claim(session, holder="w", limit=10) == []


@pytest.mark.parametrize("driver", ["psycopg2", "asyncpg"], indirect=True)
@pytest.mark.parametrize("limit", [0, -1, 1_001, True, 1.0, "1", None])
async def test_other_limits_are_refused(twin, limit):
    """A limit is a whole number from 1 to 1,000; the error comes before any SQL."""
    queue = builds(twin)
    async with twin.session() as session:
        with pytest.raises(InvalidArgument, match="limit="):
            await queue.claim(session, holder="w", limit=limit)
        assert not session.in_transaction()


async def test_the_limit_is_the_queues(twin):
    """`Limits(claim=…)` lowers it."""
    queue = builds(twin, limits=Limits(claim=2))
    async with twin.begin() as session:
        for _ in range(3):
            await queue.enqueue(session)
        with pytest.raises(InvalidArgument, match="between 1 and 2"):
            await queue.claim(session, holder="w", limit=3)
        assert len(await queue.claim(session, holder="w", limit=2)) == 2


async def test_an_unscoped_queue_cannot_claim(twin):
    """The error names the scope columns that have no value."""
    twin.create(Base.metadata)
    queue = twin.queue(Task, "builds").scope(role="coder")
    async with twin.session() as session:
        with pytest.raises(ScopeMissing, match="project_hash=…") as caught:
            await queue.claim(session, holder="w")
        assert caught.value.missing == ("project_hash",)
        assert not session.in_transaction()


# --- What a claim says -------------------------------------------------------------------------


async def test_a_claim_says_what_was_enqueued(twin):
    """Id, queue, scope, name, payload, attempt, limit, key, and a lease with a token."""
    queue = builds(twin)
    async with twin.begin() as session:
        sent = await queue.enqueue(session, "compile", {"a": [1, 2.5, None]}, key="k")
    async with twin.begin() as session:
        [claim] = await queue.claim(session, holder=Holder("ann", "s1"))
    assert isinstance(claim, Claim)
    assert claim.id == sent.id
    assert (claim.queue, claim.scope, claim.name) == ("builds", SCOPE, "compile")
    assert claim.payload == {"a": [1, 2.5, None]}
    assert (claim.attempt, claim.max_attempts, claim.key) == (1, 20, "k")
    assert isinstance(claim.lease, Lease)
    assert isinstance(claim.lease.token, UUID)
    assert claim.lease.holder == Holder("ann", "s1")
    assert claim.lease.duration == timedelta(seconds=300)
    [row] = twin.sql(
        "SELECT state, lease_token, lease_expires_at, claimed_by, claimed_session, attempt,"
        " lease_expires_at - claimed_at AS lease, heartbeat_at = claimed_at AS beat,"
        " updated_at = claimed_at AS updated FROM tasks"
    )
    assert row.state == "claimed"
    assert row.lease_token == claim.lease.token
    assert row.lease_expires_at == claim.lease.expires_at
    assert (row.claimed_by, row.claimed_session, row.attempt) == ("ann", "s1", 1)
    assert row.lease == timedelta(seconds=300)
    assert row.beat
    assert row.updated


@pytest.mark.parametrize("model", [Task, Logged, Pair, Board])
async def test_a_claims_id_gets_the_task(twin, model):
    """`claim.id` is what `Session.get` takes, and `claim.task` is that very entity."""
    queue = of(twin, model)
    async with twin.begin() as session:
        await queue.enqueue(session, id=41 if model is Pair else None)
        [claim] = await queue.claim(session, holder="w")
        assert await session.get(model, claim.id) is claim.task
        assert claim.task in session


async def test_each_claim_counts_an_attempt(twin):
    """A crash is an attempt, too; a release gives it back."""
    queue = builds(twin)
    async with twin.begin() as session:
        await queue.enqueue(session)
    for expected in (1, 2):
        async with twin.begin() as session:
            [claim] = await queue.claim(session, holder="w")
        assert claim.attempt == claim.task.attempt == expected
        expire(twin)
        async with twin.begin() as session:
            assert (await queue.reclaim(session)).requeued == 1
    async with twin.begin() as session:
        [claim] = await queue.claim(session, holder="w")
        assert claim.attempt == 3
        assert await queue.release(session, claim)
        [claim] = await queue.claim(session, holder="w")
        assert claim.attempt == 3


async def test_one_claim_call_has_one_token_and_the_next_another(twin):
    """The token tells two claims apart, also by the same holder."""
    queue = builds(twin)
    async with twin.begin() as session:
        for _ in range(3):
            await queue.enqueue(session)
        first = await queue.claim(session, holder="w", limit=2)
        second = await queue.claim(session, holder="w", limit=2)
    assert len({claim.lease.token for claim in first}) == 1
    assert first[0].lease.token != second[0].lease.token


async def test_a_loaded_task_is_refreshed(twin):
    """An entity that the session has already shows the claim, without another query."""
    queue = builds(twin)
    async with twin.begin() as session:
        await queue.enqueue(session, "a", {"n": 1})
    async with twin.begin() as session:
        task = (await session.scalars(select(Task))).one()
        assert (task.state, task.attempt, task.lease_token) == ("queued", 0, None)
        twin.sql("""UPDATE tasks SET payload = '{"n": 2}', reviewer = 'bob'""")
        [claim] = await queue.claim(session, holder="w")
        assert claim.task is task
        assert not inspect(task).expired_attributes
        assert not inspect(task).modified
        assert (task.state, task.attempt, task.claimed_by) == ("claimed", 1, "w")
        assert task.lease_token == claim.lease.token
        assert task.payload == claim.payload == {"n": 2}
        assert task.reviewer == "bob"


async def test_a_task_claimed_by_name_is_refreshed(twin):
    """`claim_task` refreshes what was loaded as `claim` does."""
    queue = builds(twin)
    async with twin.begin() as session:
        sent = await queue.enqueue(session)
        task = await session.get(Task, sent.id)
        claim = await queue.claim_task(session, id=sent.id, holder="w")
        assert claim.task is task
        assert (task.state, task.lease_token) == ("claimed", claim.lease.token)


@pytest.mark.parametrize("model", [Task, Logged, Pair, Board])
@pytest.mark.parametrize("by_name", [False, True])
async def test_a_connections_claim_has_a_detached_task(twin, model, by_name):
    """Through a connection the entity is complete and belongs to no session."""
    queue = of(twin, model)
    async with twin.begin_connection() as connection:
        sent = await queue.enqueue(connection, "a", {"n": 1}, id=41 if model is Pair else None)
        if by_name:
            claim = await queue.claim_task(connection, id=sent.id, holder="w")
        else:
            [claim] = await queue.claim(connection, holder="w")
    assert isinstance(claim.task, model)
    assert inspect(claim.task).detached
    assert object_session(claim.task) is None
    assert (claim.task.name, claim.task.payload, claim.task.state) == ("a", {"n": 1}, "claimed")
    assert claim.task.lease_token == claim.lease.token
    assert claim.id == sent.id
    async with twin.begin_connection() as connection:
        assert await queue.complete(connection, claim)


async def test_a_claim_outlives_its_transaction(twin):
    """A claim can be used in another transaction, and read after the session is closed."""
    queue = builds(twin)
    async with twin.begin(expire_on_commit=True) as session:
        await queue.enqueue(session, "a", [1])
        [claim] = await queue.claim(session, holder="w")
    assert (claim.name, claim.payload, claim.attempt) == ("a", [1], 1)
    async with twin.begin() as session:
        assert await queue.complete(session, claim)


async def test_a_rolled_back_claim_never_was(twin):
    """Without a commit the task is as it was, for everybody."""
    queue = builds(twin)
    async with twin.begin() as session:
        await queue.enqueue(session)
    before = twin.sql("SELECT * FROM tasks")
    async with twin.session() as session:
        assert len(await queue.claim(session, holder="w")) == 1
        await session.rollback()
    assert twin.sql("SELECT * FROM tasks") == before


async def test_changing_a_claims_scope_does_not_change_the_queue(twin):
    """A claim's scope is a value of its own."""
    queue = builds(twin)
    async with twin.begin() as session:
        await queue.enqueue(session)
        [claim] = await queue.claim(session, holder="w")
        claim.scope["role"] = "changed"
        assert queue.scope_values == SCOPE
        assert (await queue.enqueue(session)).created
    assert twin.sql("SELECT DISTINCT role FROM tasks") == [("coder",)]


# --- Leases ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "given"),
    [
        (None, timedelta(seconds=300)),
        (timedelta(0), timedelta(milliseconds=100)),
        (timedelta(seconds=-5), timedelta(milliseconds=100)),
        (timedelta(seconds=17, microseconds=3), timedelta(seconds=17, microseconds=3)),
        (timedelta(days=30), timedelta(days=7)),
    ],
)
@pytest.mark.parametrize("how", ["claim", "claim_task", "heartbeat"])
async def test_leases_are_clamped(twin, asked, given, how):
    """A lease is kept within the limits, by the database's clock, and the claim says so."""
    queue = builds(twin)
    async with twin.begin() as session:
        sent = await queue.enqueue(session)
        if how == "claim":
            [claim] = await queue.claim(session, holder="w", lease=asked)
            lease = claim.lease
        elif how == "claim_task":
            lease = (await queue.claim_task(session, id=sent.id, holder="w", lease=asked)).lease
        else:
            await queue.claim(session, holder="w")
            lease = await queue.heartbeat(session, id=sent.id, holder="w", lease=asked)
    assert lease.duration == given
    [row] = twin.sql(
        "SELECT lease_expires_at - heartbeat_at AS lease, lease_expires_at FROM tasks"
    )
    assert row.lease == given
    assert row.lease_expires_at == lease.expires_at


async def test_the_leases_of_boards(twin):
    """A board's leases are 15 minutes, and 30 s to 24 h."""
    queue = of(twin, Board)
    async with twin.begin() as session:
        sent = await queue.enqueue(session)
        for asked, given in (
            (None, timedelta(seconds=900)),
            (timedelta(seconds=1), timedelta(seconds=30)),
            (timedelta(days=2), timedelta(hours=24)),
        ):
            claim = await queue.claim_task(session, id=sent.id, holder="w", lease=asked)
            assert claim.lease.duration == given


async def test_a_lease_counts_from_the_statement(twin):
    """In an old transaction a lease does not begin when the transaction did."""
    queue = builds(twin)
    async with twin.begin() as session:
        await queue.enqueue(session)
    async with twin.session() as session:
        await session.execute(select(1))
        between = twin.scalar("SELECT clock_timestamp()")
        [claim] = await queue.claim(session, holder="w")
        assert claim.lease.expires_at - claim.lease.duration >= between
        await session.rollback()


@pytest.mark.parametrize("driver", ["psycopg2", "asyncpg"], indirect=True)
@pytest.mark.parametrize("lease", [30, 1.5, "30s"])
@pytest.mark.parametrize("operation", ["claim", "claim_task", "heartbeat"])
async def test_a_lease_is_a_timedelta(twin, lease, operation):
    """A number of seconds is refused before any SQL."""
    queue = builds(twin)
    named = {} if operation == "claim" else {"key": "k"}
    async with twin.session() as session:
        with pytest.raises(InvalidArgument, match="must be a timedelta"):
            await getattr(queue, operation)(session, holder="w", lease=lease, **named)
        assert not session.in_transaction()


# --- Leases that ran out -----------------------------------------------------------------------


@pytest.mark.parametrize("take_expired", [None, False, True])
async def test_an_expired_task_is_taken_only_when_asked(twin, take_expired):
    """A queue class leaves expired leases to `reclaim`, unless the claim asks for them."""
    queue = builds(twin)
    async with twin.begin() as session:
        await queue.enqueue(session)
        [first] = await queue.claim(session, holder="w1")
    expire(twin)
    async with twin.begin() as session:
        claims = await queue.claim(session, holder="w2", take_expired=take_expired)
    if not take_expired:
        assert claims == []
        return
    [second] = claims
    assert (second.id, second.attempt) == (first.id, 2)
    assert second.lease.token != first.lease.token
    async with twin.begin() as session:
        assert not await queue.heartbeat(session, first)
        assert await queue.complete(session, second)


@pytest.mark.parametrize("take_expired", [None, False, True])
async def test_a_board_takes_expired_tasks_by_itself(twin, take_expired):
    """The default of board classes is to take them."""
    queue = of(twin, Board)
    async with twin.begin() as session:
        await queue.enqueue(session)
        await queue.claim(session, holder="w1")
    expire(twin, "board")
    async with twin.begin() as session:
        claims = await queue.claim(session, holder="w2", take_expired=take_expired)
    assert len(claims) == (0 if take_expired is False else 1)


async def test_taking_expired_tasks_keeps_the_order_and_the_scope(twin):
    """An expired task comes in its own place, and another scope's expired task stays."""
    queue = builds(twin)
    async with twin.begin() as session:
        for number in range(3):
            due = EARLY + timedelta(seconds=number)
            await queue.enqueue(session, f"{number}", run_at=due)
        await queue.scope(role="tester").enqueue(session)
        await queue.claim(session, holder="w1")
        await queue.scope(role="tester").claim(session, holder="w1")
    expire(twin)
    async with twin.begin() as session:
        claims = await queue.claim(session, holder="w2", limit=3, take_expired=True)
    assert [(claim.name, claim.attempt) for claim in claims] == [("0", 2), ("1", 1), ("2", 1)]
    assert twin.sql("SELECT claimed_by FROM tasks WHERE role = 'tester'") == [("w1",)]


async def test_a_task_on_its_last_attempt_is_not_taken_again(twin):
    """Taking expired leases ends a task whose attempts are used up."""
    queue = builds(twin)
    async with twin.begin() as session:
        await queue.enqueue(session, max_attempts=1)
        await queue.claim(session, holder="w1")
    expire(twin)
    async with twin.begin() as session:
        assert await queue.claim(session, holder="w2", take_expired=True) == []
    [row] = twin.sql("SELECT state, attempt, error FROM tasks")
    assert (row.state, row.attempt) == ("failed", 1)
    assert "w1" in row.error


async def test_a_lease_that_did_not_run_out_is_left_alone(twin):
    """Nobody else gets a task while its lease runs."""
    queue = builds(twin)
    async with twin.begin() as session:
        await queue.enqueue(session)
        [claim] = await queue.claim(session, holder="w1")
    async with twin.begin() as session:
        assert await queue.claim(session, holder="w2", take_expired=True) == []
        assert await queue.complete(session, claim)
