"""Taking back what was claimed and never finished."""

from __future__ import annotations

from datetime import timedelta

import pytest
from psycopg.errors import CheckViolation
from sqlalchemy import text

from sqla_taskqueue import LeaseLost, Limits, RefusalReason
from tests.behaviour.hosts import (
    MODELS,
    Base,
    Board,
    Logged,
    Task,
    committed,
    events,
    everything,
    expire,
    named,
    queue_of,
    row_of,
    send_and_take,
    take,
)

every_model = pytest.mark.parametrize("model", MODELS, ids=lambda model: model.__name__)
with_events = pytest.mark.parametrize("model", [Task, Board], ids=lambda model: model.__name__)
both_forms = pytest.mark.parametrize("model", [Task, Logged], ids=lambda model: model.__name__)


@pytest.fixture(autouse=True)
def tables(twin):
    """Every test of this module starts with the application's tables, empty."""
    twin.create(Base.metadata)


# --- What is taken back ------------------------------------------------------------------------


@every_model
async def test_an_expired_task_goes_back_to_its_place(twin, model):
    """A task whose lease ran out is queued again, with its time and attempts as they were."""
    queue = queue_of(twin, model)
    await send_and_take(twin, queue)
    before = row_of(twin, queue)
    expire(twin, queue)
    taken_back = await committed(twin, queue.reclaim)
    assert taken_back
    assert (taken_back.requeued, taken_back.failed, taken_back.total) == (1, 0, 1)
    row = row_of(twin, queue)
    assert (row.state, row.attempt, row.run_at) == ("queued", 1, before.run_at)
    assert (row.lease_token, row.lease_expires_at) == (None, None)
    assert (row.claimed_by, row.claimed_session, row.error) == (None, None, None)
    assert row.updated_at > before.updated_at
    assert not await committed(twin, queue.reclaim)
    assert (await take(twin, queue, "w2")).attempt == 2
    if model in (Logged, Board):
        [event] = events(twin, model, "reclaimed")
        assert (event.actor, event.attempt) == (None, 1)
        assert event.detail == {"reason": "lease expired", "worker": "w1", "session": ""}


@with_events
async def test_a_live_lease_is_left_alone(twin, model):
    """Nothing is taken back, or written, while the lease runs."""
    queue = queue_of(twin, model)
    await send_and_take(twin, queue)
    before = everything(twin)
    assert not await committed(twin, queue.reclaim)
    assert not await committed(twin, queue.reclaim, stale_after=timedelta(seconds=60))
    assert everything(twin) == before


async def test_what_ran_out_may_still_be_finished(twin):
    """A lease that ran out but that nobody took may be extended and completed: work is kept."""
    queue = queue_of(twin, Logged)
    claim = await send_and_take(twin, queue)
    expire(twin, queue, 3_600)
    assert await committed(twin, queue.heartbeat, claim)
    assert not await committed(twin, queue.reclaim)
    expire(twin, queue, 3_600)
    assert await committed(twin, queue.complete, claim, result="kept")
    assert not await committed(twin, queue.reclaim)
    assert (row_of(twin, queue).state, row_of(twin, queue).result) == ("done", "kept")


async def test_scope_and_queue_bound_the_sweep(twin):
    """A sweep covers the queue's scope, a part of it or all of it, and never another queue."""
    whole = twin.queue(Task)
    for project in ("p1", "p2", "p3"):
        for role in ("coder", "reviewer"):
            await send_and_take(twin, whole.scope(project_hash=project, role=role))
    other = twin.queue(Task, "other").scope(project_hash="p1", role="coder")
    await send_and_take(twin, other)
    expire(twin, whole)
    full = whole.scope(project_hash="p1", role="coder")
    assert (await committed(twin, full.reclaim)).total == 1
    assert (await committed(twin, whole.scope(project_hash="p2").reclaim)).total == 2
    assert (await committed(twin, whole.scope(role="reviewer").reclaim)).total == 2
    assert (await committed(twin, whole.reclaim)).total == 1
    assert (await committed(twin, other.reclaim)).total == 1


@every_model
async def test_a_claim_can_take_back_first(twin, model):
    """With take_expired a claim also gets what ran out; boards do so by default."""
    queue = queue_of(twin, model)
    first = await send_and_take(twin, queue)
    expire(twin, queue)
    assert await committed(twin, queue.claim, holder="w2", take_expired=False) == []
    options = {} if model is Board else {"take_expired": True}
    second = await take(twin, queue, "w2", **options)
    assert (second.id, second.attempt) == (first.id, 2)
    expire(twin, queue)
    if model is not Board:
        assert await committed(twin, queue.claim, holder="w3") == []


@both_forms
async def test_a_large_backlog_is_taken_back_in_one_call(twin, model):
    """More leases than one batch holds are all taken back, each once."""
    queue = queue_of(twin, model)
    scope = ", 'p', 'r'" if model is Task else ""
    columns = ", project_hash, role" if model is Task else ""
    twin.sql(
        f"INSERT INTO {model.__tablename__} (id, state, lease_token, lease_expires_at, claimed_at,"
        f" heartbeat_at, claimed_by, claimed_session, attempt, max_attempts{columns})"
        " SELECT gen_random_uuid(), 'claimed', gen_random_uuid(), statement_timestamp(),"
        f" statement_timestamp(), statement_timestamp(), 'w', '', 1, 1 + (n > 2100)::int{scope}"
        " FROM generate_series(1, 2500) AS n"
    )
    taken_back = await committed(twin, twin.queue(model).reclaim)
    assert (taken_back.requeued, taken_back.failed) == (400, 2_100)
    counts = dict(twin.sql(f"SELECT state, count(*) FROM {queue.model.__tablename__} GROUP BY 1"))
    assert counts == {"queued": 400, "failed": 2_100}
    if model is Logged:
        assert len(events(twin, model, "reclaimed")) == 400
        assert len(events(twin, model, "failed")) == 2_100


@pytest.mark.parametrize("limit", [1, 2, 3])
async def test_a_limit_counts_every_row_that_is_changed(twin, limit):
    """A sweep with a limit changes at most so many rows, whether requeued or ended."""
    queue = queue_of(twin, Logged)
    for number in range(4):
        await send_and_take(twin, queue, max_attempts=1 + number % 2)
    expire(twin, queue)
    totals = []
    while taken_back := await committed(twin, queue.reclaim, limit=limit):
        totals.append(taken_back.total)
    assert sum(totals) == 4
    assert max(totals) <= limit


# --- Reclaim beside other transactions ----------------------------------------------------------


@both_forms
@pytest.mark.parametrize("write", ["complete", "heartbeat", "fail", "claim_task"])
async def test_reclaim_passes_over_what_is_being_written(twin, model, write):
    """A task that its holder is just writing is not waited for, and not taken back."""
    queue = queue_of(twin, model)
    claim = await send_and_take(twin, queue)
    expire(twin, queue)
    calls = {
        "complete": lambda session: queue.complete(session, claim, result="in time"),
        "heartbeat": lambda session: queue.heartbeat(session, claim),
        "fail": lambda session: queue.fail(session, claim, final=True),
        "claim_task": lambda session: queue.claim_task(session, id=claim.id, holder="w2"),
    }
    async with twin.begin() as session:
        assert await calls[write](session)
        assert not await committed(twin, queue.reclaim)
    assert not await committed(twin, queue.reclaim)
    row = row_of(twin, queue)
    ends = {"complete": "done", "heartbeat": "claimed", "fail": "failed", "claim_task": "claimed"}
    assert row.state == ends[write]
    assert row.attempt == (2 if write == "claim_task" else 1)
    assert row.error == ("" if write == "fail" else None)
    if model is Logged:
        assert events(twin, model, "reclaimed") == []


GAP = """
CREATE SCHEMA IF NOT EXISTS gap;
CREATE OR REPLACE FUNCTION gap.statement_timestamp() RETURNS timestamptz LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_advisory_xact_lock_shared(5);
    RETURN pg_catalog.statement_timestamp();
END $$;
"""
"""A clock that stops a statement in the middle, for as long as somebody holds the lock."""


@both_forms
@pytest.mark.parametrize("attempts", [1, 3])
@pytest.mark.parametrize("meanwhile", ["complete", "heartbeat", "fail", "claim_task"])
async def test_reclaim_judges_the_row_as_it_is_when_it_writes(twin, model, meanwhile, attempts):
    """What happens between reclaim's look at the table and its write is respected."""
    queue = queue_of(twin, model)
    claim = await send_and_take(twin, queue, max_attempts=attempts)
    # Its own holder: the takeover of a last attempt ends the task, and that is not the point.
    calls = {
        "complete": lambda session: queue.complete(session, claim, result="in time"),
        "heartbeat": lambda session: queue.heartbeat(session, claim),
        "fail": lambda session: queue.fail(session, claim, final=True),
        "claim_task": lambda session: queue.claim_task(session, id=claim.id, holder="w1"),
    }
    expire(twin, queue)
    twin.sql(GAP)

    async def sweep():
        async with twin.begin() as session:
            await session.execute(text("SET LOCAL search_path = gap, pg_catalog, public"))
            return await queue.reclaim(session)

    async with twin.begin() as stopper:
        await stopper.execute(text("SELECT pg_advisory_xact_lock(5)"))
        sweeping = twin.spawn(sweep)
        await twin.until_waiting()
        async with twin.begin() as session:
            assert await calls[meanwhile](session)
        after = everything(twin)
    assert not await sweeping
    assert everything(twin) == after


@both_forms
async def test_a_completion_that_waits_for_reclaim_is_lost(twin, model):
    """A completion that meets an uncommitted reclaim waits; what it writes depends on its end."""
    queue = queue_of(twin, model)
    claim = await send_and_take(twin, queue)
    expire(twin, queue)

    async def finish():
        async with twin.begin() as session:
            return await queue.complete(session, claim, on_lost="return")

    async with twin.begin() as session:
        assert (await queue.reclaim(session)).total == 1
        finishing = twin.spawn(finish)
        await twin.until_waiting()
        await session.rollback()
    assert await finishing
    assert row_of(twin, queue).state == "done"

    twin.sql(f"DELETE FROM {model.__tablename__}")
    claim = await send_and_take(twin, queue)
    expire(twin, queue)
    async with twin.begin() as session:
        assert (await queue.reclaim(session)).total == 1
        finishing = twin.spawn(finish)
        await twin.until_waiting()
    refused = await finishing
    assert not refused
    assert refused.reason is RefusalReason.REQUEUED
    assert row_of(twin, queue).state == "queued"


# --- Workers that died and came back ------------------------------------------------------------


@with_events
async def test_nothing_vouches_for_a_worker_but_its_tasks(twin, model):
    """The library keeps no record of workers: a task is recovered by its own lease alone."""
    queue = queue_of(twin, model)
    claim = await send_and_take(twin, queue, "pod-0")
    tables = {
        name for (name,) in twin.sql("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")
    }
    assert tables == set(Base.metadata.tables)
    if model in (Logged, Board):
        twin.sql(f"DELETE FROM {model.__tablename__}_events")
    expire(twin, queue)
    assert (await committed(twin, queue.reclaim)).total == 1
    assert (await take(twin, queue, "pod-1")).id == claim.id


@with_events
@pytest.mark.parametrize("attempts", [1, 5])
async def test_a_namesake_does_not_vouch_for_abandoned_tasks(twin, model, attempts):
    """A worker that came back under its old name keeps its new task, not the abandoned one."""
    queue = queue_of(twin, model)
    old = await send_and_take(twin, queue, "pod-0", **named(model, 1), max_attempts=attempts)
    expire(twin, queue)
    await committed(twin, queue.enqueue, **named(model, 2))
    new = await take(twin, queue, "pod-0", take_expired=False)
    assert await committed(twin, queue.heartbeat, new)
    taken_back = await committed(twin, queue.reclaim)
    assert (taken_back.requeued, taken_back.failed) == ((0, 1) if attempts == 1 else (1, 0))
    assert await committed(twin, queue.heartbeat, new)
    refused = await committed(twin, queue.heartbeat, old)
    expected = RefusalReason.FINISHED if attempts == 1 else RefusalReason.REQUEUED
    assert refused.reason is expected
    claimed = await committed(twin, queue.claim, holder="pod-1")
    assert [one.id for one in claimed] == ([] if attempts == 1 else [old.id])


# --- The last attempt --------------------------------------------------------------------------


@every_model
async def test_a_crash_on_the_last_attempt_ends_the_task(twin, model):
    """Without attempts left a lost lease ends the task, as a failure in the process does."""
    queue = queue_of(twin, model)
    keys = {"key": "lasting", "unique_key": "live"}
    claim = await send_and_take(twin, queue, "pod-0", **keys, max_attempts=1)
    expire(twin, queue)
    taken_back = await committed(twin, queue.reclaim)
    assert (taken_back.requeued, taken_back.failed) == (0, 1)
    row = row_of(twin, queue)
    assert (row.state, row.attempt) == ("failed", 1)
    assert "lease expired" in row.error
    assert "pod-0" in row.error
    assert row.finished_at == row.updated_at
    assert (row.lease_token, row.lease_expires_at) == (None, None)
    with pytest.raises(LeaseLost) as raised:
        await committed(twin, queue.complete, claim)
    assert raised.value.refused.reason is RefusalReason.FINISHED
    assert not await committed(twin, queue.reclaim)
    assert await committed(twin, queue.claim, holder="w2", take_expired=True) == []
    if model in (Logged, Board):
        [event] = events(twin, model, "failed")
        assert event.attempt == 1
        assert event.detail["worker"] == "pod-0"

    same_key = await committed(twin, queue.enqueue, key="lasting", **named(model, 2))
    assert (same_key.created, same_key.id, same_key.state) == (False, claim.id, "failed")
    free_again = await committed(twin, queue.enqueue, unique_key="live", **named(model, 3))
    assert free_again.created


@with_events
async def test_a_lost_and_a_recorded_failure_leave_the_same_row(twin, model):
    """Reclaim ends a task by the path that fail uses: the rows differ in their words only."""
    queue = queue_of(twin, model)
    ends = {}
    for number, how in enumerate(("crash", "raise")):
        claim = await send_and_take(twin, queue, **named(model, number), max_attempts=1)
        if how == "raise":
            assert await committed(twin, queue.fail, claim, error="no")
        else:
            expire(twin, queue)
            assert await committed(twin, queue.reclaim)
        row = row_of(twin, queue)._asdict()
        twin.sql(f"DELETE FROM {model.__tablename__}")
        own = {"id", "error", "ended_token"}
        ends[how] = {
            name: value.tzinfo is not None if name.endswith("_at") and value else value
            for name, value in row.items()
            if name not in own
        }
    assert ends["crash"] == ends["raise"]


async def test_one_operators_retry_opens_a_task_that_was_given_up(twin):
    """A task that ended by reclaim can be retried: a new round with all its attempts."""
    queue = queue_of(twin, Logged)
    claim = await send_and_take(twin, queue, max_attempts=1)
    expire(twin, queue)
    await committed(twin, queue.reclaim)
    assert await committed(twin, queue.retry, id=claim.id)
    again = await take(twin, queue)
    row = row_of(twin, queue)
    assert (again.attempt, row.round) == (1, 2)
    assert await committed(twin, queue.complete, again)


async def test_attempts_without_limit_are_always_requeued(twin):
    """Without a limit of attempts a lost lease never ends the task."""
    queue = twin.queue(Logged, limits=Limits(max_attempts=None))
    await send_and_take(twin, queue)
    twin.sql("UPDATE logged SET attempt = 1000000")
    expire(twin, queue)
    taken_back = await committed(twin, queue.reclaim)
    assert (taken_back.requeued, taken_back.failed) == (1, 0)


@pytest.mark.parametrize("part", ["lease_expires_at", "heartbeat_at", "claimed_at"])
async def test_a_claim_without_a_whole_lease_cannot_be_stored(twin, part):
    """Written by hand, it would never run out, or never be found: the table refuses it."""
    await send_and_take(twin, queue_of(twin, Task))
    with pytest.raises(CheckViolation, match="taskqueue_lease_claimed"):
        twin.sql(f"UPDATE tasks SET {part} = NULL")
