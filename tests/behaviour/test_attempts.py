"""How often a task may be tried, and how long it waits in between."""

from __future__ import annotations

from datetime import timedelta

import pytest

from sqla_taskqueue import Exponential, Fixed, Holder, InvalidArgument, Limits, Linear
from tests.behaviour.hosts import (
    MODELS,
    Base,
    Board,
    Logged,
    Task,
    committed,
    events,
    expire,
    named,
    queue_of,
    row_of,
    send_and_take,
    take,
)

AT_ONCE = Fixed(timedelta(0))
HOUR = timedelta(hours=1)

both_forms = pytest.mark.parametrize("model", [Task, Board], ids=lambda model: model.__name__)
every_model = pytest.mark.parametrize("model", MODELS, ids=lambda model: model.__name__)


@pytest.fixture(autouse=True)
def tables(twin):
    """Every test of this module starts with the application's tables, empty."""
    twin.create(Base.metadata)


# --- Counting ----------------------------------------------------------------------------------


@both_forms
@pytest.mark.parametrize("most", [1, 2, 3])
async def test_a_task_is_tried_as_often_as_it_may_be(twin, model, most):
    """The limit counts executions, the first included: no more, no fewer."""
    queue = queue_of(twin, model)
    await committed(twin, queue.enqueue, **named(model), max_attempts=most)
    tried = []
    while claims := await committed(twin, queue.claim, holder="w1"):
        [claim] = claims
        tried.append((claim.attempt, claim.max_attempts))
        written = await committed(twin, queue.fail, claim, error="no", retry=AT_ONCE)
        assert written.state == ("failed" if len(tried) == most else "queued")
        assert len(tried) < 10
    assert tried == [(number, most) for number in range(1, most + 1)]
    row = row_of(twin, queue)
    assert (row.state, row.attempt, row.error) == ("failed", most, "no")
    if model in (Logged, Board):
        types = [one.type for one in events(twin, model)]
        assert types == [
            "created",
            *["claimed", "retried"] * (most - 1),
            "claimed",
            "failed",
        ]
        counted = [one.attempt for one in events(twin, model, "claimed")]
        assert counted == list(range(1, most + 1))


@both_forms
async def test_success_is_counted_once(twin, model):
    """A task that succeeds at once has one attempt, whatever it may have."""
    queue = queue_of(twin, model)
    claim = await send_and_take(twin, queue, max_attempts=5)
    written = await committed(twin, queue.complete, claim)
    assert (written.attempt, row_of(twin, queue).attempt) == (1, 1)


@pytest.mark.parametrize("most", [0, -1, True, False, "3", 1.5, 2**31])
async def test_impossible_limits_are_refused_before_any_sql(twin, most):
    """A number of attempts that is none is a typed error, and the transaction goes on."""
    queue = queue_of(twin, Logged)
    async with twin.begin() as session:
        with pytest.raises(InvalidArgument) as raised:
            await queue.enqueue(session, max_attempts=most)
        assert raised.value.argument == "max_attempts"
        with pytest.raises(InvalidArgument):
            Limits(max_attempts=most)
        await queue.enqueue(session, "possible", max_attempts=2**31 - 1)
    assert row_of(twin, queue).name == "possible"


async def test_the_default_is_the_queues(twin):
    """Unless a call says otherwise, the queue's limits say how often; boards have none."""
    for queue, most in (
        (twin.queue(Logged), 20),
        (twin.queue(Logged, limits=Limits(max_attempts=2)), 2),
        (queue_of(twin, Board), None),
    ):
        claim = await send_and_take(twin, queue)
        assert claim.max_attempts == most
        claim = await send_and_take(twin, queue, max_attempts=None)
        assert claim.max_attempts is None


async def test_final_ends_a_task_with_attempts_left(twin):
    """A holder that knows better ends the task at once."""
    queue = queue_of(twin, Logged)
    claim = await send_and_take(twin, queue, max_attempts=5)
    written = await committed(twin, queue.fail, claim, error="hopeless", final=True)
    assert (written.state, written.attempt) == ("failed", 1)


# --- Crashes -----------------------------------------------------------------------------------


@both_forms
async def test_a_crash_loop_uses_up_the_attempts(twin, model):
    """A task that kills its worker each time is claimed as often as it may be, then it ends."""
    queue = queue_of(twin, model)
    await committed(twin, queue.enqueue, **named(model), max_attempts=3)
    claimed, swept = [], []
    for _ in range(10):
        claims = await committed(twin, queue.claim, holder="w1", take_expired=False)
        claimed += [claim.attempt for claim in claims]
        expire(twin, queue)
        taken_back = await committed(twin, queue.reclaim)
        swept.append((taken_back.requeued, taken_back.failed))
    assert claimed == [1, 2, 3]
    assert swept == [(1, 0), (1, 0), (0, 1), *[(0, 0)] * 7]
    row = row_of(twin, queue)
    assert (row.state, row.attempt) == ("failed", 3)
    assert "lease expired" in row.error


async def test_crashes_and_failures_count_alike(twin):
    """Attempts are counted when claimed, however they end."""
    queue = queue_of(twin, Logged)
    claim = await send_and_take(twin, queue, max_attempts=3)
    await committed(twin, queue.fail, claim, retry=AT_ONCE)
    await take(twin, queue)
    expire(twin, queue)
    assert (await committed(twin, queue.reclaim)).requeued == 1
    claim = await take(twin, queue)
    assert claim.attempt == 3
    assert (await committed(twin, queue.fail, claim, retry=AT_ONCE)).state == "failed"


# --- What is given back ------------------------------------------------------------------------


@every_model
async def test_release_gives_the_attempt_back(twin, model):
    """A task released unworked has its place and its attempt again, however often."""
    queue = queue_of(twin, model)
    await committed(twin, queue.enqueue, **named(model), max_attempts=1)
    run_at = row_of(twin, queue).run_at
    for _ in range(3):
        claim = await take(twin, queue)
        assert claim.attempt == 1
        released = await committed(twin, queue.release, claim)
        assert (released.state, released.attempt) == ("queued", 0)
        row = row_of(twin, queue)
        assert (row.state, row.attempt, row.run_at) == ("queued", 0, run_at)
        assert (row.lease_token, row.claimed_by, row.claimed_session) == (None, None, None)
    assert await committed(twin, queue.complete, await take(twin, queue))
    if model in (Logged, Board):
        assert len(events(twin, model, "released")) == 3


@both_forms
async def test_snooze_gives_the_attempt_back_and_waits(twin, model):
    """A task put off has its attempt again, and cannot be claimed before its time."""
    queue = queue_of(twin, model)
    claim = await send_and_take(twin, queue, max_attempts=1)
    snoozed = await committed(twin, queue.snooze, claim, delay=HOUR)
    assert (snoozed.state, snoozed.attempt) == ("queued", 0)
    assert await committed(twin, queue.claim, holder="w2") == []
    row = row_of(twin, queue)
    assert row.run_at - row.updated_at == HOUR
    twin.sql(f"UPDATE {model.__tablename__} SET run_at = run_at - interval '1 h'")
    claim = await take(twin, queue)
    assert claim.attempt == 1
    assert await committed(twin, queue.complete, claim)


async def test_a_released_renewal_gives_one_attempt_back(twin):
    """Renewing a claim counts nothing, so that releasing it leaves the attempts before it."""
    queue = queue_of(twin, Task)
    claim = await send_and_take(twin, queue, "w1")
    await committed(twin, queue.fail, claim, retry=AT_ONCE)
    claim = await take(twin, queue)
    for _ in range(3):
        claim = await committed(twin, queue.claim_task, id=claim.id, holder="w1")
        assert claim.attempt == 2
    assert (await committed(twin, queue.release, claim)).attempt == 1


async def test_another_session_cannot_give_back(twin):
    """Release and complete by another session of the worker are refused."""
    queue = queue_of(twin, Board)
    claim = await send_and_take(twin, queue, Holder("agent", "s1"))
    for method in (queue.release, queue.complete, queue.heartbeat):
        refused = await committed(twin, method, id=claim.id, holder=Holder("agent", "s2"))
        assert not refused
        assert refused.reason == "held_by_other_session"
        assert "continue there" in str(refused)
    assert await committed(twin, queue.release, id=claim.id, holder=Holder("agent", "s1"))
    again = await committed(twin, queue.claim_task, id=claim.id, holder=Holder("agent", "s2"))
    assert again.attempt == 1


# --- Waiting -----------------------------------------------------------------------------------


@pytest.mark.parametrize("jitter", [0.0, 0.1, 0.99])
async def test_backoff_never_overflows(twin, jitter):
    """Thousands of attempts wait for the cap, give or take the jitter: no error, no zero."""
    policy = Exponential(cap=HOUR, jitter=jitter)
    queue = queue_of(twin, Task)
    for attempt in (1, 40, 64, 1_025, 2_000, 4_999):
        await committed(twin, queue.enqueue, max_attempts=5_000)
        twin.sql("UPDATE tasks SET attempt = %(a)s", a=attempt - 1)
        claim = await take(twin, queue)
        assert claim.attempt == attempt
        written = await committed(twin, queue.fail, claim, error="no", retry=policy)
        assert (written.state, written.attempt) == ("queued", attempt)
        row = row_of(twin, queue)
        wait = row.run_at - row.updated_at
        assert timedelta(0) < wait <= HOUR * (1 + jitter)
        if attempt > 1:
            assert wait >= HOUR * (1 - jitter)
        twin.sql("DELETE FROM tasks")


async def test_the_last_of_thousands_ends_the_task(twin):
    """The attempt that reaches the limit is the last, however large the limit."""
    queue = queue_of(twin, Logged)
    await committed(twin, queue.enqueue, max_attempts=5_000)
    twin.sql("UPDATE logged SET attempt = 4999")
    claim = await take(twin, queue)
    assert claim.attempt == 5_000
    assert (await committed(twin, queue.fail, claim)).state == "failed"


@pytest.mark.parametrize(
    ("policy", "waits"),
    [
        (Fixed(timedelta(seconds=7)), [7, 7, 7]),
        (Linear(timedelta(seconds=7), cap=timedelta(seconds=15)), [7, 14, 15]),
        (Exponential(timedelta(seconds=7), factor=3, jitter=0), [7, 21, 63]),
        (None, [5, 10, 20]),
    ],
    ids=["fixed", "linear", "exponential", "default"],
)
@pytest.mark.parametrize("by", ["claim", "holder"])
async def test_the_wait_follows_the_attempt(twin, policy, waits, by):
    """Each failure waits as long as the policy says for this attempt, by claim and by name."""
    queue = queue_of(twin, Task)
    claim = await send_and_take(twin, queue)
    for number, wait in enumerate(waits):
        assert claim.attempt == number + 1
        who = {"claim": claim} if by == "claim" else {"id": claim.id, "holder": "w1"}
        async with twin.begin() as session:
            written = await queue.fail(session, **who, error="no", retry=policy)
        row = row_of(twin, queue)
        assert written.run_at == row.run_at
        seconds = (row.run_at - row.updated_at).total_seconds()
        assert seconds == pytest.approx(wait, rel=0.1 if policy is None else 1e-9)
        assert await committed(twin, queue.claim, holder="w1") == []
        twin.sql("UPDATE tasks SET run_at = statement_timestamp()")
        claim = await take(twin, queue)


async def test_the_queues_policy_is_used_unless_a_call_has_its_own(twin):
    """A queue's own policy says how long its failed tasks wait."""
    queue = twin.queue(Logged, retry=Fixed(timedelta(seconds=77)))
    claim = await send_and_take(twin, queue)
    await committed(twin, queue.fail, claim)
    row = row_of(twin, queue)
    assert row.run_at - row.updated_at == timedelta(seconds=77)
