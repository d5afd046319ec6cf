"""Who may write about a task: the claim that holds it, or its holder by name, and nobody else."""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from itertools import product

import pytest
from sqlalchemy import event

from sqla_taskqueue import Claim, Fixed, Holder, Lease, LeaseLost, RefusalReason, Written
from tests.behaviour.hosts import (
    MODELS,
    SCOPES,
    Base,
    Board,
    Logged,
    Pair,
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

MINUTE = timedelta(minutes=1)

every_model = pytest.mark.parametrize("model", MODELS, ids=lambda model: model.__name__)
# Writes take one of two forms: a plain UPDATE, or one that locks first and records an event.
both_forms = pytest.mark.parametrize("model", [Task, Board], ids=lambda model: model.__name__)


@pytest.fixture(autouse=True)
def tables(twin):
    """Every test of this module starts with the application's tables, empty."""
    twin.create(Base.metadata)


# --- Claims that were lost ---------------------------------------------------------------------

ALL_CALLS = {
    "heartbeat": lambda queue, session, claim: queue.heartbeat(session, claim),
    "release": lambda queue, session, claim: queue.release(session, claim),
    "fail": lambda queue, session, claim: queue.fail(session, claim, error="late"),
    "fail for good": lambda queue, session, claim: queue.fail(
        session, claim, error="late", final=True
    ),
    "complete": lambda queue, session, claim: queue.complete(session, claim, result="late"),
    "snooze": lambda queue, session, claim: queue.snooze(session, claim, delay=MINUTE),
}
RETURNING = {
    "fail": lambda queue, session, claim: queue.fail(session, claim, on_lost="return"),
    "fail for good": lambda queue, session, claim: queue.fail(
        session, claim, final=True, on_lost="return"
    ),
    "complete": lambda queue, session, claim: queue.complete(
        session, claim, result="late", on_lost="return"
    ),
    "snooze": lambda queue, session, claim: queue.snooze(
        session, claim, delay=MINUTE, on_lost="return"
    ),
}


async def refusals(twin, queue, claim):
    """Make every call there is with *claim*; return each refusal, raised or returned."""
    found = []
    async with twin.begin() as session:
        for name, call in ALL_CALLS.items():
            if name not in RETURNING:
                found.append((name, await call(queue, session, claim)))
                continue
            with pytest.raises(LeaseLost) as raised:
                await call(queue, session, claim)
            assert str(raised.value) == str(raised.value.refused)
            found.append((name, raised.value.refused))
            found.append((name, await RETURNING[name](queue, session, claim)))
    return found


async def reclaimed(twin, queue):
    """Let the live lease run out and take it back."""
    expire(twin, queue)
    taken_back = await committed(twin, queue.reclaim)
    assert (taken_back.requeued, taken_back.failed) == (1, 0)


async def claimed_again(twin, queue, claim):
    """The same worker, after a restart under its old name, has the task again."""
    await reclaimed(twin, queue)
    await take(twin, queue, claim.lease.holder)


async def claimed_by_other(twin, queue, claim):
    """Another worker has the task."""
    await reclaimed(twin, queue)
    await take(twin, queue, "w2")


async def claimed_by_session(twin, queue, claim):
    """Another session of the same worker has the task."""
    await reclaimed(twin, queue)
    await take(twin, queue, Holder("w1", "another"))


async def requeued(twin, queue, claim):
    """Nobody has the task yet."""
    await reclaimed(twin, queue)


async def released(twin, queue, claim):
    """The holder gave the task back."""
    assert await committed(twin, queue.release, claim)


async def retried(twin, queue, claim):
    """The attempt was recorded as failed, and another one is planned."""
    assert await committed(twin, queue.fail, claim, error="first")


async def done_by_other(twin, queue, claim):
    """Another claim of the same name has done the task."""
    await reclaimed(twin, queue)
    second = await take(twin, queue, claim.lease.holder)
    assert await committed(twin, queue.complete, second, result="new")


async def failed_by_other(twin, queue, claim):
    """Another claim of the same name has ended the task badly."""
    await reclaimed(twin, queue)
    second = await take(twin, queue, claim.lease.holder)
    assert await committed(twin, queue.fail, second, error="new", final=True)


async def cancelled(twin, queue, claim):
    """An operator has cancelled the task under the holder's hands."""
    assert await committed(twin, queue.cancel, id=claim.id, reason="no longer wanted")


async def restarted(twin, queue, claim):
    """An operator has opened a new round, and the same name works in it."""
    await cancelled(twin, queue, claim)
    assert await committed(twin, queue.retry, id=claim.id)
    await take(twin, queue, claim.lease.holder)


async def deleted(twin, queue, claim):
    """The row is gone."""
    twin.sql(f"DELETE FROM {queue.model.__tablename__}")


LOSSES = {
    claimed_again: RefusalReason.HELD,
    claimed_by_other: RefusalReason.HELD,
    claimed_by_session: RefusalReason.HELD_BY_OTHER_SESSION,
    requeued: RefusalReason.REQUEUED,
    released: RefusalReason.REQUEUED,
    retried: RefusalReason.REQUEUED,
    done_by_other: RefusalReason.FINISHED,
    failed_by_other: RefusalReason.FINISHED,
    cancelled: RefusalReason.FINISHED,
    restarted: RefusalReason.HELD,
    deleted: RefusalReason.GONE,
}


@both_forms
@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.__name__)
async def test_a_lost_claim_writes_nothing(twin, model, loss):
    """However a claim was lost, every call with it is refused and no row or event is touched."""
    queue = queue_of(twin, model)
    claim = await send_and_take(twin, queue)
    await loss(twin, queue, claim)
    before = everything(twin)
    for name, refused in await refusals(twin, queue, claim):
        assert not refused, name
        assert refused.reason is LOSSES[loss], name
        assert (refused.task is None) == (loss is deleted), name
    assert everything(twin) == before


@every_model
async def test_a_zombie_under_the_same_name_changes_nothing(twin, model):
    """A worker that comes back after its task was given to its namesake cannot disturb it."""
    queue = queue_of(twin, model)
    first = await send_and_take(twin, queue, "w")
    await reclaimed(twin, queue)
    second = await take(twin, queue, "w")
    assert (second.id, second.attempt) == (first.id, 2)
    assert second.lease.token != first.lease.token
    before = everything(twin)
    for name, refused in await refusals(twin, queue, first):
        assert refused.reason is RefusalReason.HELD, name
        assert refused.holder == Holder("w"), name
        assert 0 < refused.lease_seconds_remaining <= second.lease.duration.total_seconds(), name
        assert refused.task.id == getattr(second.task, "id"), name  # noqa: B009
    assert everything(twin) == before
    written = await committed(twin, queue.complete, second, result="new")
    assert (written.state, written.attempt) == ("done", 2)
    row = row_of(twin, queue)
    assert (row.state, row.result, row.attempt) == ("done", "new", 2)
    assert row.ended_token == second.lease.token
    if model in (Logged, Board):
        [completed] = events(twin, model, "completed")
        assert (completed.actor, completed.attempt) == ("w", 2)


@both_forms
async def test_a_late_heartbeat_does_not_steal_the_lease(twin, model):
    """A heartbeat with a lost claim leaves the new holder's deadline where it is."""
    queue = queue_of(twin, model)
    first = await send_and_take(twin, queue, "w")
    await reclaimed(twin, queue)
    await take(twin, queue, "w")
    before = row_of(twin, queue)
    refused = await committed(twin, queue.heartbeat, first, lease=timedelta(hours=5))
    assert not refused
    assert refused.reason is RefusalReason.HELD
    assert row_of(twin, queue) == before


async def test_a_lost_lease_rolls_back_what_was_done_for_the_task(twin):
    """LeaseLost leaves the caller's block, so that the host's own writes are undone with it."""
    queue = queue_of(twin, Logged)
    first = await send_and_take(twin, queue)
    await reclaimed(twin, queue)
    with pytest.raises(LeaseLost) as raised:
        async with twin.begin() as session:
            session.add(Logged(name="a write of the host"))
            await session.flush()
            await queue.complete(session, first)
    assert raised.value.refused.reason is RefusalReason.REQUEUED
    assert twin.sql("SELECT name, state FROM logged") == [("", "queued")]


async def test_the_transaction_stays_usable_after_a_lost_lease(twin):
    """A caller that catches LeaseLost can go on in the same transaction and commit."""
    queue = queue_of(twin, Logged)
    first = await send_and_take(twin, queue)
    await reclaimed(twin, queue)
    async with twin.begin() as session:
        with pytest.raises(LeaseLost):
            await queue.complete(session, first)
        await queue.enqueue(session, "instead")
    assert twin.scalar("SELECT count(*) FROM logged WHERE name = 'instead'") == 1


async def test_a_refusal_is_a_sentence_for_a_person(twin):
    """The text of a lost lease names the task, its holder and for how long."""
    queue = queue_of(twin, Task)
    first = await send_and_take(twin, queue, key="compile-42")
    await reclaimed(twin, queue)
    await take(twin, queue, Holder("w2", "s2"), lease=timedelta(hours=1))
    with pytest.raises(LeaseLost, match=r"^task 'compile-42' is held by w2 \(session s2\) for"):
        await committed(twin, queue.complete, first)


# --- A write that waited for the loss ----------------------------------------------------------


@both_forms
@pytest.mark.parametrize("call", ["heartbeat", "release", "fail", "complete"])
async def test_a_write_that_waited_sees_the_new_holder(twin, model, call):
    """A call that waits for the row's lock judges what the lock's owner made of the row."""
    queue = queue_of(twin, model)
    first = await send_and_take(twin, queue, "w")
    await reclaimed(twin, queue)
    waiting = RETURNING.get(call, ALL_CALLS[call])

    async def late():
        async with twin.begin() as session:
            return await waiting(queue, session, first)

    # Back to the first claim, so that it may write until the takeover commits.
    twin.sql(
        f"UPDATE {model.__tablename__} SET state = 'claimed', lease_token = %(t)s,"
        " lease_expires_at = statement_timestamp() - interval '1 s', claimed_by = 'w',"
        " claimed_session = ''",
        t=first.lease.token,
    )
    async with twin.begin() as session:
        [second] = await queue.claim(session, holder="w2", take_expired=True)
        attempt = twin.spawn(late)
        await twin.until_waiting()
    refused = await attempt
    assert not refused
    assert refused.reason is RefusalReason.HELD
    assert refused.holder == Holder("w2")
    assert await committed(twin, queue.complete, second)


# --- The same call again, after a commit whose answer was lost ---------------------------------


@every_model
async def test_completing_again_with_the_same_claim_is_a_success(twin, model):
    """The claim that completed a task may say so again; nothing is written."""
    queue = queue_of(twin, model)
    claim = await send_and_take(twin, queue)
    first = await committed(twin, queue.complete, claim, result="kept")
    before = everything(twin)
    again = await committed(twin, queue.complete, claim, result="ignored")
    assert isinstance(again, Written)
    assert again == first
    assert everything(twin) == before


@both_forms
async def test_failing_again_with_the_same_claim_is_a_success(twin, model):
    """The claim that ended a task badly may say so again; nothing is written."""
    queue = queue_of(twin, model)
    claim = await send_and_take(twin, queue, max_attempts=1)
    first = await committed(twin, queue.fail, claim, error="kept")
    assert first.state == "failed"
    before = everything(twin)
    for final in (False, True):
        again = await committed(twin, queue.fail, claim, error="ignored", final=final)
        assert again == first
    assert everything(twin) == before


@pytest.mark.parametrize("ended", ["complete", "fail"])
async def test_an_end_is_not_repeated_by_the_other_one(twin, ended):
    """A claim that completed cannot fail afterwards, nor the other way round."""
    queue = queue_of(twin, Logged)
    claim = await send_and_take(twin, queue, max_attempts=1)
    other = {"complete": queue.fail, "fail": queue.complete}[ended]
    assert await committed(twin, getattr(queue, ended), claim)
    before = everything(twin)
    with pytest.raises(LeaseLost) as raised:
        await committed(twin, other, claim)
    assert raised.value.refused.reason is RefusalReason.FINISHED
    assert everything(twin) == before


@both_forms
async def test_a_new_round_refuses_the_claim_that_ended_the_last_one(twin, model):
    """After an operator's retry the old claim no longer counts as the one that ended the task."""
    queue = queue_of(twin, model)
    claim = await send_and_take(twin, queue, max_attempts=1)
    await committed(twin, queue.fail, claim, error="first round")
    assert await committed(twin, queue.retry, id=claim.id)
    for reason in (RefusalReason.REQUEUED, RefusalReason.HELD, RefusalReason.FINISHED):
        before = everything(twin)
        for name, refused in await refusals(twin, queue, claim):
            assert refused.reason is reason, name
        assert everything(twin) == before
        if reason is RefusalReason.REQUEUED:
            current = await take(twin, queue)
        elif reason is RefusalReason.HELD:
            # It ends in the very state that the old claim left.
            await committed(twin, queue.fail, current, error="second round")
    assert row_of(twin, queue).error == "second round"


@both_forms
async def test_a_holder_does_not_succeed_where_an_operator_completed(twin, model):
    """When somebody else ended the task by force, its holder's own effects must roll back."""
    queue = queue_of(twin, model)
    claim = await send_and_take(twin, queue)
    written = await committed(
        twin, queue.complete, id=claim.id, force=True, actor="operator", result="by hand"
    )
    assert written.state == "done"
    before = everything(twin)
    with pytest.raises(LeaseLost) as raised:
        await committed(twin, queue.complete, claim, result="by the holder")
    assert raised.value.refused.reason is RefusalReason.FINISHED
    assert everything(twin) == before


# --- By the holder's name ----------------------------------------------------------------------

BY_HOLDER = {
    "heartbeat": lambda queue, session, **who: queue.heartbeat(session, **who),
    "release": lambda queue, session, **who: queue.release(session, **who),
    "fail": lambda queue, session, **who: queue.fail(session, **who, error="no"),
    "fail for good": lambda queue, session, **who: queue.fail(
        session, **who, error="no", final=True
    ),
    "complete": lambda queue, session, **who: queue.complete(session, **who, result="ok"),
    "snooze": lambda queue, session, **who: queue.snooze(session, **who, delay=MINUTE),
}
LEAVES = {
    "heartbeat": "claimed",
    "release": "queued",
    "fail": "queued",
    "fail for good": "failed",
    "complete": "done",
    "snooze": "queued",
}


@every_model
async def test_the_holder_may_write_by_name(twin, model):
    """Worker and session that hold a task may write about it without their claim."""
    queue = queue_of(twin, model)
    who = Holder("agent", "s1")
    for number, (name, by) in enumerate(product(BY_HOLDER, ("id", "key"))):
        claim = await send_and_take(twin, queue, who, **{"key": "k", **named(model, number)})
        task = {"id": claim.id} if by == "id" else {"key": "k"}
        async with twin.begin() as session:
            answer = await BY_HOLDER[name](queue, session, **task, holder=who)
        assert answer, name
        assert isinstance(answer, Lease if name == "heartbeat" else Written), name
        row = row_of(twin, queue)
        assert row.state == LEAVES[name], name
        if name == "heartbeat":
            assert (answer.token, answer.holder) == (claim.lease.token, who)
            assert answer.expires_at == row.lease_expires_at >= claim.lease.expires_at
        else:
            assert (answer.id, answer.state) == (claim.id, row.state), name
            assert answer.attempt == row.attempt == (name not in ("release", "snooze")), name
            assert row.lease_token is None, name
        twin.sql(f"DELETE FROM {model.__tablename__}")


OTHERS = {
    Holder("other"): RefusalReason.HELD,
    Holder("other", "s1"): RefusalReason.HELD,
    Holder("agent"): RefusalReason.HELD_BY_OTHER_SESSION,
    Holder("agent", "s2"): RefusalReason.HELD_BY_OTHER_SESSION,
    Holder("agent", "S1"): RefusalReason.HELD_BY_OTHER_SESSION,
}
"""Who does not hold what ``Holder("agent", "s1")`` does."""


@every_model
async def test_nobody_else_may_write_by_name(twin, model):
    """Other workers and other sessions of the worker are refused and told who holds the task."""
    queue = queue_of(twin, model)
    claim = await send_and_take(twin, queue, Holder("agent", "s1"), key="k")
    before = everything(twin)
    async with twin.begin() as session:
        for (name, call), (holder, reason) in product(BY_HOLDER.items(), OTHERS.items()):
            task = {"key": "k"} if name == "complete" else {"id": claim.id}
            refused = await call(queue, session, **task, holder=holder)
            assert not refused, (name, holder)
            assert refused.reason is reason, (name, holder)
            assert refused.holder == Holder("agent", "s1"), (name, holder)
            lease = claim.lease.duration.total_seconds()
            assert 0 < refused.lease_seconds_remaining <= lease, (name, holder)
    assert everything(twin) == before


async def test_a_name_alone_is_the_shared_session(twin):
    """A plain worker name and a Holder without a session are the same holder."""
    queue = queue_of(twin, Task)
    claim = await send_and_take(twin, queue, "agent")
    assert await committed(twin, queue.heartbeat, id=claim.id, holder=Holder("agent"))
    assert not await committed(twin, queue.complete, id=claim.id, holder=Holder("agent", "s"))
    assert await committed(twin, queue.complete, id=claim.id, holder=Holder("agent", ""))


@pytest.mark.parametrize(
    "loss",
    [claimed_by_other, requeued, released, retried, done_by_other, cancelled, deleted],
    ids=lambda loss: loss.__name__,
)
async def test_a_holder_that_lost_the_task_writes_nothing_by_name(twin, loss):
    """By name, too, a former holder is refused, returned and never raised."""
    queue = queue_of(twin, Task)
    claim = await send_and_take(twin, queue, "w1")
    await loss(twin, queue, claim)
    before = everything(twin)
    async with twin.begin() as session:
        for name, call in BY_HOLDER.items():
            refused = await call(queue, session, id=claim.id, holder="w1")
            assert not refused, name
            assert refused.reason is LOSSES[loss], name
    assert everything(twin) == before


@pytest.mark.parametrize("call", ["heartbeat", "release", "fail", "complete"])
async def test_a_name_cannot_tell_two_claims_apart(twin, call):
    """By name a restarted namesake may write: both source systems fence like this."""
    queue = queue_of(twin, Logged)
    first = await send_and_take(twin, queue, "w1")
    await claimed_again(twin, queue, first)
    async with twin.begin() as session:
        assert await BY_HOLDER[call](queue, session, id=first.id, holder="w1")
    assert row_of(twin, queue).state == LEAVES[call]


async def test_a_heartbeat_by_name_keeps_the_length_of_the_lease(twin):
    """Without a length a heartbeat extends by as much as before, by claim and by name."""
    queue = queue_of(twin, Task)
    hour = timedelta(hours=1)
    claim = await send_and_take(twin, queue, lease=hour)
    for beat in (
        partial(queue.heartbeat, claim=claim),
        partial(queue.heartbeat, id=claim.id, holder="w1"),
    ):
        lease = await committed(twin, beat)
        assert lease.duration == hour
        row = row_of(twin, queue)
        assert row.lease_expires_at - row.heartbeat_at == hour


# --- Claiming one named task --------------------------------------------------------------------


@pytest.fixture(
    params=[
        ("transaction", Task),
        ("transaction", Board),
        ("autocommit", Logged),
        ("autocommit", Pair),
    ],
    ids=lambda param: f"{param[0]}-{param[1].__name__}",
)
def setting(request):
    """How the engine commits, and which class is worked on."""
    return request.param


@pytest.fixture
def model(setting):
    """The class of the setting."""
    return setting[1]


@pytest.fixture
def bind(setting, twin):
    """An engine with transactions, or one whose every statement commits by itself."""
    if setting[0] == "transaction":
        return twin.engine
    return twin.engine.execution_options(isolation_level="AUTOCOMMIT")


async def send(twin, queue, **options):
    """Enqueue one task with a key and return its id."""
    sent = await committed(twin, queue.enqueue, **{"key": "k", **named(queue.model), **options})
    return sent.id


@pytest.mark.parametrize("by", ["id", "key"])
async def test_a_named_task_is_claimed(twin, bind, model, by):
    """A queued task is claimed by its id or key, and nothing else is."""
    queue = queue_of(twin, model)
    id_ = await send(twin, queue)
    await send(twin, queue, **{"key": "other", **named(model, 2)})
    task = {"id": id_} if by == "id" else {"key": "k"}
    claim = await committed(twin, queue.claim_task, **task, holder=Holder("a", "s"), bind=bind)
    assert isinstance(claim, Claim)
    assert (claim.id, claim.key, claim.attempt) == (id_, "k", 1)
    assert claim.scope == SCOPES[model]
    assert claim.lease.holder == Holder("a", "s")
    table = model.__tablename__
    [row] = twin.sql(f"SELECT * FROM {table} WHERE state = 'claimed'")
    assert (row.key, row.lease_token, row.attempt) == ("k", claim.lease.token, 1)
    assert (row.claimed_by, row.claimed_session) == ("a", "s")
    assert row.lease_expires_at - row.claimed_at == claim.lease.duration
    assert await committed(twin, queue.complete, claim, bind=bind)


async def test_claiming_again_renews(twin, bind, model):
    """The same holder gets a new token for the same attempt; its earlier claim is worthless."""
    queue = queue_of(twin, model)
    id_ = await send(twin, queue)
    who = Holder("a", "s")
    first = await committed(twin, queue.claim_task, id=id_, holder=who, bind=bind)
    second = await committed(twin, queue.claim_task, id=id_, holder=who, bind=bind)
    assert second.lease.token != first.lease.token
    assert (second.attempt, first.attempt) == (1, 1)
    assert second.lease.expires_at >= first.lease.expires_at
    before = everything(twin)
    for name, refused in await refusals(twin, queue, first):
        assert refused.reason is RefusalReason.HELD, name
    assert everything(twin) == before
    assert await committed(twin, queue.complete, second, result="ok", bind=bind)
    row = row_of(twin, queue)
    assert (row.state, row.result, row.attempt) == ("done", "ok", 1)
    if model in (Logged, Board):
        types = [one.type for one in events(twin, model)]
        assert types == ["created", "claimed", "renewed", "completed"]


async def test_claiming_by_name_renews_what_claim_took(twin, bind, model):
    """A holder renews by name what it got as the next task, also when the lease ran out."""
    queue = queue_of(twin, model)
    first = await send_and_take(twin, queue, "w1", max_attempts=1)
    for seconds in (-60, 60):
        expire(twin, queue, seconds)
        again = await committed(twin, queue.claim_task, id=first.id, holder="w1", bind=bind)
        assert isinstance(again, Claim)
        assert (again.attempt, again.id) == (1, first.id)
    assert not await committed(twin, queue.complete, first, on_lost="return")
    assert await committed(twin, queue.complete, again, bind=bind)


async def test_a_held_task_is_refused(twin, bind, model):
    """Others, and other sessions of the holder, hear who holds the task and for how long."""
    queue = queue_of(twin, model)
    id_ = await send(twin, queue)
    hour = timedelta(hours=1)
    held = Holder("agent", "s1")
    assert await committed(twin, queue.claim_task, id=id_, holder=held, lease=hour)
    before = everything(twin)
    for (holder, reason), task in product(OTHERS.items(), ({"id": id_}, {"key": "k"})):
        refused = await committed(twin, queue.claim_task, **task, holder=holder, bind=bind)
        assert not refused, holder
        assert (refused.reason, refused.holder) == (reason, held), holder
        assert refused.state == "claimed"
        assert 3_500 < refused.lease_seconds_remaining <= 3_600
        assert refused.task is not None
    assert everything(twin) == before


@pytest.mark.parametrize("holder", [Holder("b"), Holder("a", "s2")], ids=str)
async def test_an_expired_lease_is_taken_over(twin, bind, model, holder):
    """Once the lease ran out anybody may take the task: a new attempt, and the old claim is lost."""
    queue = queue_of(twin, model)
    id_ = await send(twin, queue)
    first = await committed(twin, queue.claim_task, id=id_, holder=Holder("a", "s1"), bind=bind)
    expire(twin, queue)
    second = await committed(twin, queue.claim_task, key="k", holder=holder, bind=bind)
    assert isinstance(second, Claim)
    assert (second.attempt, second.lease.holder) == (2, holder)
    before = everything(twin)
    for name, refused in await refusals(twin, queue, first):
        assert not refused, name
        assert refused.holder == holder, name
    assert everything(twin) == before
    assert await committed(twin, queue.complete, second, bind=bind)
    if model in (Logged, Board):
        [_, taken] = events(twin, model, "claimed")
        assert taken.detail["taken_over_from"] == "a (session s1)"
        assert (taken.actor, taken.attempt) == (holder.worker, 2)


async def test_an_expired_last_attempt_ends_instead(twin, bind, model):
    """Taking over a task without attempts left ends it in failed, and says that it ended."""
    queue = queue_of(twin, model)
    id_ = await send(twin, queue, max_attempts=1)
    first = await committed(twin, queue.claim_task, id=id_, holder="a", bind=bind)
    expire(twin, queue)
    refused = await committed(twin, queue.claim_task, id=id_, holder="b", bind=bind)
    assert not refused
    assert (refused.reason, refused.state) == (RefusalReason.FINISHED, "failed")
    row = row_of(twin, queue)
    assert (row.state, row.attempt, row.lease_token) == ("failed", 1, None)
    assert row.finished_at is not None
    assert "lease expired" in row.error
    assert not await committed(twin, queue.complete, first, on_lost="return")
    if model in (Logged, Board):
        [failed] = events(twin, model, "failed")
        assert failed.attempt == 1


async def test_a_task_that_is_not_due_is_refused(twin, bind, model):
    """A task of the future says for how many seconds it is not due."""
    queue = queue_of(twin, model)
    id_ = await send(twin, queue, delay=timedelta(hours=1))
    before = everything(twin)
    refused = await committed(twin, queue.claim_task, id=id_, holder="a", bind=bind)
    assert not refused
    assert refused.reason is RefusalReason.NOT_DUE
    assert 3_500 < refused.due_in_seconds <= 3_600
    assert "not due for another 3," in str(refused)
    assert everything(twin) == before


async def test_an_ended_task_is_refused(twin, bind, model):
    """A task that ended is not claimed again, not even by the holder that ended it."""
    queue = queue_of(twin, model)
    for number, end in enumerate(("done", "failed", "cancelled")):
        claim = await send_and_take(twin, queue, "a", **named(model, number))
        if end == "done":
            await committed(twin, queue.complete, claim)
        elif end == "failed":
            await committed(twin, queue.fail, claim, final=True)
        else:
            await committed(twin, queue.cancel, id=claim.id)
        before = everything(twin)
        refused = await committed(twin, queue.claim_task, id=claim.id, holder="a", bind=bind)
        assert not refused
        assert (refused.reason, refused.state) == (RefusalReason.FINISHED, end)
        assert everything(twin) == before


async def test_a_task_that_does_not_exist_is_gone(twin, bind, model):
    """A deleted id, an unknown key and another queue's task are gone for this queue."""
    queue = queue_of(twin, model)
    id_ = await send(twin, queue)
    elsewhere = queue_of(twin, model, "elsewhere")
    for where, task in (
        (queue, {"key": "unknown"}),
        (elsewhere, {"id": id_}),
        (elsewhere, {"key": "k"}),
    ):
        refused = await committed(twin, where.claim_task, **task, holder="a", bind=bind)
        assert not refused
        assert (refused.reason, refused.task) == (RefusalReason.GONE, None)
    twin.sql(f"DELETE FROM {model.__tablename__}")
    refused = await committed(twin, queue.claim_task, id=id_, holder="a", bind=bind)
    assert refused.reason is RefusalReason.GONE


@both_forms
async def test_a_lease_extended_meanwhile_is_not_taken_over(twin, model):
    """In autocommit the lease may be extended between look and write: then it is not taken."""
    queue = queue_of(twin, model)
    first = await send_and_take(twin, queue, "a")
    expire(twin, queue)
    engine = twin.engine.execution_options(isolation_level="AUTOCOMMIT")
    extended = []

    @event.listens_for(engine.sync_engine if twin.is_async else engine, "before_cursor_execute")
    def extend(connection, cursor, statement, parameters, context, executemany):
        if statement.lstrip().startswith(("UPDATE", "WITH")) and not extended:
            extended.append(statement)
            twin.sql(
                f"UPDATE {model.__tablename__}"
                " SET lease_expires_at = statement_timestamp() + interval '5 min'"
            )

    refused = await committed(twin, queue.claim_task, id=first.id, holder="b", bind=engine)
    assert extended
    assert not refused
    assert refused.holder == Holder("a")
    assert await committed(twin, queue.complete, first)


async def test_a_task_put_off_meanwhile_is_not_claimed(twin):
    """In autocommit a task may be put off between look and write: then it is not due."""
    queue = queue_of(twin, Task)
    id_ = await send(twin, queue)
    engine = twin.engine.execution_options(isolation_level="AUTOCOMMIT")
    moved = []

    @event.listens_for(engine.sync_engine if twin.is_async else engine, "before_cursor_execute")
    def put_off(connection, cursor, statement, parameters, context, executemany):
        if statement.lstrip().startswith("UPDATE") and not moved:
            moved.append(statement)
            twin.sql("UPDATE tasks SET run_at = run_at + interval '1 h'")

    refused = await committed(twin, queue.claim_task, id=id_, holder="b", bind=engine)
    assert moved
    assert not refused
    assert refused.reason is RefusalReason.NOT_DUE


async def test_a_lost_answer_to_a_failure_with_retry_is_refused(twin):
    """A repeated `fail` whose first call planned a retry is refused, and counts nothing twice."""
    queue = queue_of(twin, Logged)
    claim = await send_and_take(twin, queue)
    assert await committed(twin, queue.fail, claim, retry=Fixed(timedelta(0)))
    before = everything(twin)
    with pytest.raises(LeaseLost):
        await committed(twin, queue.fail, claim, retry=Fixed(timedelta(0)))
    assert everything(twin) == before
    assert row_of(twin, queue).attempt == 1
