"""Many tasks in one call: answers in order, duplicates found, and no wait for a locked row."""

from __future__ import annotations

from datetime import timedelta
from uuid import uuid4

import pytest
from sqlalchemy import event, text

from sqla_taskqueue import (
    Claim,
    InvalidArgument,
    InvalidPayload,
    Lease,
    RefusalReason,
    TaskSpec,
    TaskState,
    Written,
)
from sqla_taskqueue._operations import _chunks
from tests.behaviour.hosts import (
    MODELS,
    Base,
    Board,
    Logged,
    Pair,
    Task,
    events,
    everything,
    expire,
    named,
    queue_of,
)


@pytest.fixture(params=MODELS, ids=lambda model: model.__name__)
def queue(request, twin):
    """A queue of each kind of class, its tables empty."""
    twin.create(Base.metadata)
    return queue_of(twin, request.param)


def specs(queue, number, **options):
    """Return so many specs, with keys of the host's own where the class needs them."""
    return [TaskSpec("work", {"n": n}, **named(queue.model, n), **options) for n in range(number)]


async def claims_of(twin, queue, number, holder="w"):
    """Enqueue and claim so many tasks."""
    async with twin.begin() as session:
        await queue.enqueue_many(session, specs(queue, number))
    async with twin.begin() as session:
        return await queue.claim(session, holder=holder, limit=number)


async def test_answers_come_in_the_order_of_the_specs(twin, queue):
    """Each answer names the row of its own spec, and every row is new."""
    async with twin.begin() as session:
        answers = await queue.enqueue_many(session, specs(queue, 30), actor="ada")
    assert all(answer.created and answer.state is TaskState.QUEUED for answer in answers)
    assert len({answer.id for answer in answers}) == 30
    async with twin.session() as session:
        for number, answer in enumerate(answers):
            task = await queue.get(session, id=answer.id)
            assert (task.payload, task.created_by) == ({"n": number}, "ada")


async def test_a_batch_larger_than_a_statement(twin):
    """More rows than one statement takes: all are there, once, and answered in order."""
    twin.create(Base.metadata)
    queue = queue_of(twin, Task)
    async with twin.begin() as session:
        answers = await queue.enqueue_many(session, specs(queue, 4_500))
    assert len({answer.id for answer in answers}) == 4_500
    rows = dict(twin.sql("SELECT id, (payload->>'n')::int FROM tasks"))
    assert [rows[answer.id] for answer in answers] == list(range(4_500))


async def test_a_batch_with_more_json_than_a_statement(twin, queue, monkeypatch):
    """Large payloads, results and errors go out in several statements, answered in order."""
    monkeypatch.setattr(_chunks, "_JSON", 100)
    sent_json = []
    event.listen(
        twin.engine.sync_engine if twin.is_async else twin.engine,
        "before_cursor_execute",
        lambda *sent: sent_json.append(" -> CAST(" in sent[2]),
    )
    payloads = [None, {"n": 1, "x": "x" * 60}, ["y" * 60], "z" * 200, {"n": 4}, None, 6]
    specs = [TaskSpec("w", of, **named(queue.model, n)) for n, of in enumerate(payloads)]
    async with twin.begin() as session:
        sent = await queue.enqueue_many(session, specs)
        claims = {
            claim.id: claim for claim in await queue.claim(session, holder="w", limit=len(specs))
        }
        given = [claims[one.id] for one in sent]
        assert [claim.payload for claim in given] == payloads
        assert all(await queue.complete_many(session, given[:4], results=payloads[:4]))
        failed = await queue.fail_many(session, given[4:], errors=["e" * 90] * 3)
        assert [answer.id for answer in failed] == [claim.id for claim in given[4:]]
        tasks = [await queue.get(session, id=claim.id) for claim in given]
    assert [task.result for task in tasks] == [*payloads[:4], None, None, None]
    has_events = queue.model in (Logged, Board)
    assert sum(sent_json) == 4 + 3 + (3 if has_events else 0)
    if has_events:
        details = [event.detail["error"] for event in events(twin, queue.model, "retried")]
        assert details == ["e" * 90] * 3


async def test_nothing_is_no_batch(twin, queue):
    """An empty batch answers with an empty list and sends no rows."""
    async with twin.begin() as session:
        assert await queue.enqueue_many(session, []) == []
        assert await queue.complete_many(session, []) == []
        assert await queue.heartbeat_many(session, iter(())) == []
        assert await queue.fail_many(session, [], errors=[]) == []


async def test_duplicates_within_a_batch_and_without(twin, queue):
    """The first spec of a key creates the task; the others, and later batches, find it."""
    keyed = [
        TaskSpec("work", {"n": n}, key=f"k{n % 3}", **named(queue.model, n)) for n in range(9)
    ]
    async with twin.begin() as session:
        first = await queue.enqueue_many(session, keyed)
    assert [answer.created for answer in first] == [True] * 3 + [False] * 6
    assert [answer.id for answer in first[3:]] == [answer.id for answer in first[:3]] * 2
    async with twin.begin() as session:
        claim = (await queue.claim(session, holder="w"))[0]
        again = await queue.enqueue_many(session, reversed(keyed))
    assert not any(answer.created for answer in again)
    assert {answer.id for answer in again} == {answer.id for answer in first[:3]}
    states = {answer.id: answer.state for answer in again}
    assert states[claim.id] is TaskState.CLAIMED


async def test_unique_keys_in_a_batch(twin, queue):
    """At most one live task has a unique key; a batch after its end makes a new one."""
    twice = [
        TaskSpec(unique_key="u", **named(queue.model, 1)),
        TaskSpec(unique_key="u", **named(queue.model, 2)),
    ]
    async with twin.begin() as session:
        one, two = await queue.enqueue_many(session, twice)
        assert (one.created, two.created, two.id) == (True, False, one.id)
        await queue.cancel(session, id=one.id)
        [three] = await queue.enqueue_many(session, twice[1:])
    assert three.created
    assert three.id != one.id


async def test_ids_in_a_batch(twin):
    """A host-made id is idempotent, within the batch and against rows that exist."""
    twin.create(Base.metadata)
    queue = queue_of(twin, Task)
    one, two = uuid4(), uuid4()
    async with twin.begin() as session:
        await queue.enqueue(session, id=one)
        answers = await queue.enqueue_many(session, [TaskSpec(id=i) for i in (one, two, two)])
    assert [(answer.id, answer.created) for answer in answers] == [
        (one, False),
        (two, True),
        (two, False),
    ]


async def test_a_bad_spec_sends_nothing(twin, queue):
    """Every spec is checked first; the transaction stays usable and nothing is inserted."""
    bad = [*specs(queue, 2), TaskSpec("work", {"n": float("nan")}, **named(queue.model, 3))]
    async with twin.begin() as session:
        with pytest.raises(InvalidPayload, match="finite"):
            await queue.enqueue_many(session, bad)
        with pytest.raises(InvalidArgument, match="TaskSpec"):
            await queue.enqueue_many(session, [{"name": "work"}])
        await session.execute(text("SELECT 1"))
    assert twin.scalar(f"SELECT count(*) FROM {queue.model.__tablename__}") == 0


async def test_times_in_a_batch(twin):
    """Delays count from the database's clock, and specs without a time are due at once."""
    twin.create(Base.metadata)
    queue = queue_of(twin, Task)
    hour = timedelta(hours=1)
    async with twin.begin() as session:
        await queue.enqueue_many(session, [TaskSpec("later", delay=hour), TaskSpec("now")])
    async with twin.begin() as session:
        assert [claim.name for claim in await queue.claim(session, holder="w", limit=5)] == ["now"]
    assert twin.scalar(
        "SELECT run_at - created_at = interval '1 hour' FROM tasks WHERE name = 'later'"
    )


@pytest.mark.parametrize("model", [Logged, Board])
async def test_batches_are_recorded(twin, model):
    """Each row of a batch has its event, with its actor, in the same transaction."""
    twin.create(Base.metadata)
    queue = queue_of(twin, model)
    async with twin.begin() as session:
        await queue.enqueue_many(session, specs(queue, 3), actor="ada")
    async with twin.begin() as session:
        one, two, three = await queue.claim(session, holder="w", limit=3)
        await queue.complete_many(session, [one])
        await queue.fail_many(session, [two], errors=[ValueError("boom")])
        await queue.fail_many(session, [three], errors=["end"], final=True)
    table = "logged_events" if model is Logged else "board_events"
    recorded = twin.sql(f"SELECT type, actor, detail->>'error' FROM {table} ORDER BY created_at")
    assert recorded[:3] == [("created", "ada", None)] * 3
    assert sorted(recorded[-3:]) == [
        ("completed", "w", None),
        ("failed", "w", "end"),
        ("retried", "w", "ValueError: boom"),
    ]


async def test_many_are_completed_with_their_results(twin, queue):
    """Each task ends with its own result, and is answered in its place."""
    claims = await claims_of(twin, queue, 5)
    async with twin.begin() as session:
        answers = await queue.complete_many(session, claims, results=[{"r": n} for n in range(5)])
    assert [answer.id for answer in answers] == [claim.id for claim in claims]
    assert all(isinstance(answer, Written) for answer in answers)
    results = twin.sql(f"SELECT (result->>'r')::int, state FROM {queue.model.__tablename__}")
    assert sorted(results) == [(n, "done") for n in range(5)]


async def test_completing_many_again_is_a_success(twin, queue):
    """A commit whose answer was lost can be sent again, whole; nothing changes."""
    claims = await claims_of(twin, queue, 3)
    async with twin.begin() as session:
        await queue.complete_many(session, claims)
    before = everything(twin)
    async with twin.begin() as session:
        assert all(await queue.complete_many(session, claims))
    assert everything(twin) == before


async def test_failures_retry_or_end(twin, queue):
    """Attempts that are left are queued with their backoff; the last one ends the task."""
    one, two = await claims_of(twin, queue, 2)
    twin.sql(
        f"UPDATE {queue.model.__tablename__} SET max_attempts = 1 WHERE payload = '{{\"n\": 0}}'"
    )
    last, other = (one, two) if one.payload == {"n": 0} else (two, one)
    async with twin.begin() as session:
        ended, retried = await queue.fail_many(session, [last, other], errors=["a", "b\x00"])
    assert (ended.state, retried.state) == (TaskState.FAILED, TaskState.QUEUED)
    assert twin.scalar(
        f"SELECT bool_and(run_at > statement_timestamp()) FROM {queue.model.__tablename__}"
        " WHERE state = 'queued'"
    )
    errors = dict(twin.sql(f"SELECT state, error FROM {queue.model.__tablename__}"))
    assert errors == {"failed": "a", "queued": "b\ufffd"}


async def test_written_lost_and_busy_are_told_apart(twin, queue):
    """A batch waits for nobody: a locked row is busy, a lost one says so, the rest is written."""
    claims = await claims_of(twin, queue, 3)
    mine, lost, locked = claims
    async with twin.begin() as session:
        await queue.cancel(session, id=lost.id)
    key = queue.model.__mapper__.primary_key
    identity = locked.id if isinstance(locked.id, tuple) else (locked.id,)
    lock = " AND ".join(f"{column.name} = :p{n}" for n, column in enumerate(key))
    async with twin.session() as holder:
        await holder.execute(
            text(f"SELECT 1 FROM {queue.model.__tablename__} WHERE {lock} FOR UPDATE"),
            {f"p{n}": value for n, value in enumerate(identity)},
        )
        async with twin.begin() as session:
            beats = await queue.heartbeat_many(session, claims)
        async with twin.begin() as session:
            answers = await queue.complete_many(session, claims)
        await holder.rollback()
    for first, second, third in (beats, answers):
        assert first
        assert second.reason is RefusalReason.FINISHED
        assert third.reason is RefusalReason.BUSY
        assert third.task is not None
    assert isinstance(beats[0], Lease)
    async with twin.begin() as session:
        again = await queue.complete_many(session, [mine, locked])
    assert all(again)


async def test_a_stale_batch_changes_nothing(twin, queue):
    """Claims that were taken over write not a byte, by heartbeat, completion or failure."""
    stale = await claims_of(twin, queue, 3)
    expire(twin, queue)
    async with twin.begin() as session:
        await queue.reclaim(session)
    async with twin.begin() as session:
        fresh = await queue.claim(session, holder="w", limit=3)
    before = everything(twin)
    async with twin.begin() as session:
        answers = [
            *await queue.heartbeat_many(session, stale),
            *await queue.complete_many(session, stale),
            *await queue.fail_many(session, stale, errors=["no"] * 3),
        ]
        assert {answer.reason for answer in answers} == {RefusalReason.HELD}
    assert everything(twin) == before
    async with twin.begin() as session:
        mixed = await queue.complete_many(session, [*stale, *fresh])
    assert [bool(answer) for answer in mixed] == [False] * 3 + [True] * 3


async def test_heartbeats_keep_or_change_the_length(twin, queue):
    """Without a length a lease runs on as long as before, each its own."""
    claims = await claims_of(twin, queue, 2)
    async with twin.begin() as session:
        for lease, wanted in ((None, claims[0].lease.duration), (timedelta(hours=2),) * 2):
            renewed = await queue.heartbeat_many(session, [*claims, claims[0]], lease=lease)
            assert [one.duration for one in renewed] == [wanted] * 3
            assert [one.token for one in renewed] == [claims[0].lease.token] * 3


async def test_bad_batches_are_refused(twin, queue):
    """Counts that do not match and values that are no claims are typed errors before any SQL."""
    [claim] = await claims_of(twin, queue, 1)
    async with twin.session() as session:
        with pytest.raises(InvalidArgument, match="results"):
            await queue.complete_many(session, [claim], results=[])
        with pytest.raises(InvalidArgument, match="errors"):
            await queue.fail_many(session, [claim], errors=["a", "b"])
        with pytest.raises(InvalidArgument, match="Claim"):
            await queue.heartbeat_many(session, [claim.id])
        assert isinstance(claim, Claim)
        assert not session.in_transaction()


async def test_prune_deletes_what_ended_long_ago(twin, queue):
    """One bounded batch a call, oldest key first, with events, and never a live task."""
    claims = await claims_of(twin, queue, 6)
    async with twin.begin() as session:
        await queue.complete_many(session, claims[:5])
    table = queue.model.__tablename__
    twin.sql(
        f"UPDATE {table} SET finished_at = finished_at - interval '1 day' WHERE state = 'done'"
    )
    async with twin.begin() as session:
        assert await queue.prune(session, older_than=timedelta(days=2)) == 0
        assert await queue.prune(session, older_than=timedelta(hours=1), state="failed") == 0
        assert await queue.prune(session, older_than=timedelta(hours=1), limit=3) == 3
        assert await queue.prune(session, older_than=timedelta(hours=1), limit=3) == 2
        assert await queue.prune(session, older_than=timedelta(0)) == 0
        for bad in ({"state": "queued"}, {"limit": 0}, {"limit": 10_001}):
            with pytest.raises(InvalidArgument):
                await queue.prune(session, **{"older_than": timedelta(0), **bad})
    assert twin.scalar(f"SELECT count(*) FROM {table}") == 1
    if queue.model is Logged:
        assert len(events(twin, Logged)) == 2  # created and claimed, of the one that is left


async def test_batches_go_through_connections(twin):
    """A Core connection takes the same calls, and commits nothing by itself."""
    twin.create(Base.metadata)
    queue = queue_of(twin, Pair)
    async with twin.begin_connection() as connection:
        await queue.enqueue_many(connection, specs(queue, 3))
        claims = await queue.claim(connection, holder="w", limit=3)
        assert all(await queue.complete_many(connection, claims))
    async with twin.connect() as connection:
        await queue.enqueue_many(connection, [TaskSpec(**named(Pair, 9))])
    assert twin.sql("SELECT DISTINCT state FROM pairs") == [("done",)]
