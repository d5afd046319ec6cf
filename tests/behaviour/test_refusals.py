"""Refusals: every reason, through every operation that can meet it."""

from __future__ import annotations

from datetime import timedelta
from uuid import uuid4

import pytest

from sqla_taskqueue import Holder, LeaseLost, RefusalReason, Refused, TaskState
from tests.behaviour.hosts import Base, Task

SCOPE = {"project_hash": "9f2c", "role": "coder"}
ANN, ANN_ELSEWHERE, BOB = Holder("ann", "s1"), Holder("ann", "s2"), Holder("bob")
BY_HOLDER = ("heartbeat", "complete", "fail", "release", "snooze")
RAISING = ("complete", "fail", "snooze")

MORE = {"snooze": {"delay": timedelta(0)}}


def builds(twin):
    """Return a queue of `Task` in one scope."""
    twin.create(Base.metadata)
    return twin.queue(Task, "builds").scope(**SCOPE)


async def claimed(twin, queue, holder=ANN, **options):
    """Enqueue a task with a key and claim it."""
    async with twin.begin() as session:
        await queue.enqueue(session, key="k", **options)
        [claim] = await queue.claim(session, holder=holder, lease=timedelta(minutes=10))
        return claim


async def refuse(twin, queue, operation, *args, **kwargs):
    """Run an operation that must be refused and change nothing."""
    before = twin.sql("SELECT * FROM tasks")
    async with twin.begin() as session:
        refused = await getattr(queue, operation)(
            session, *args, **MORE.get(operation, {}), **kwargs
        )
        assert isinstance(refused, Refused)
        assert not refused
    assert twin.sql("SELECT * FROM tasks") == before
    return refused


# --- Gone --------------------------------------------------------------------------------------


@pytest.mark.parametrize("operation", [*BY_HOLDER, "claim_task", "cancel", "retry"])
@pytest.mark.parametrize("by", ["id", "key"])
async def test_gone(twin, operation, by):
    """No such task: the refusal names what was asked for, and has no entity."""
    queue = builds(twin)
    named = {by: uuid4() if by == "id" else "nothing"}
    if operation not in ("cancel", "retry"):
        named["holder"] = "w"
    refused = await refuse(twin, queue, operation, **named)
    assert refused.reason is RefusalReason.GONE
    shown = str(named["id"]) if by == "id" else "'nothing'"
    assert str(refused) == f"task {shown} does not exist in this queue and scope"
    assert (refused.task, refused.state, refused.holder) == (None, None, None)
    assert refused.lease_seconds_remaining is None


@pytest.mark.parametrize("operation", ["claim_task", "cancel", "complete"])
@pytest.mark.parametrize("elsewhere", ["queue", "scope"])
async def test_another_queues_or_scopes_task_is_gone(twin, operation, elsewhere):
    """What the queue and scope do not contain does not exist for them."""
    queue = builds(twin)
    async with twin.begin() as session:
        sent = await queue.enqueue(session)
    other = (
        queue.scope(role="tester")
        if elsewhere == "scope"
        else twin.queue(Task, "tests").scope(**SCOPE)
    )
    named = {"id": sent.id} | ({} if operation == "cancel" else {"holder": "w"})
    refused = await refuse(twin, other, operation, **named)
    assert refused.reason is RefusalReason.GONE


@pytest.mark.parametrize("operation", BY_HOLDER)
async def test_a_deleted_task_is_gone_for_its_claim(twin, operation):
    """A claim whose row was deleted is lost."""
    queue = builds(twin)
    claim = await claimed(twin, queue)
    twin.sql("DELETE FROM tasks")
    lost = {"on_lost": "return"} if operation in RAISING else {}
    refused = await refuse(twin, queue, operation, claim, **lost)
    assert refused.reason is RefusalReason.GONE
    assert str(refused) == "task 'k' does not exist in this queue and scope"


# --- Finished ----------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["done", "failed", "cancelled"])
@pytest.mark.parametrize("operation", [*BY_HOLDER, "claim_task", "cancel"])
async def test_finished(twin, end, operation):
    """An ended task says how it ended and who held it, and is the entity as it is now."""
    queue = builds(twin)
    claim = await claimed(twin, queue)
    async with twin.begin() as session:
        if end == "done":
            assert await queue.complete(session, claim)
        elif end == "failed":
            assert await queue.fail(session, claim, final=True)
        else:
            assert await queue.cancel(session, key="k")
    named = {"key": "k"} | ({} if operation == "cancel" else {"holder": BOB})
    refused = await refuse(twin, queue, operation, **named)
    assert refused.reason is RefusalReason.FINISHED
    assert refused.state == end
    assert str(refused) == f"task 'k' is already {end}"
    assert refused.holder == ANN
    assert refused.task.state == end
    assert refused.lease_seconds_remaining is None


async def test_a_done_task_is_not_retried(twin):
    """`retry` opens failed and cancelled tasks only."""
    queue = builds(twin)
    claim = await claimed(twin, queue)
    async with twin.begin() as session:
        await queue.complete(session, claim)
    refused = await refuse(twin, queue, "retry", key="k")
    assert (refused.reason, refused.state) == (RefusalReason.FINISHED, TaskState.DONE)


# --- Requeued ----------------------------------------------------------------------------------


@pytest.mark.parametrize("operation", BY_HOLDER)
@pytest.mark.parametrize("by", ["claim", "holder"])
async def test_requeued(twin, operation, by):
    """A claim that was taken back is told so; the task waits for somebody to claim it."""
    queue = builds(twin)
    claim = await claimed(twin, queue)
    async with twin.begin() as session:
        assert await queue.release(session, claim)
    lost = {"on_lost": "return"} if operation in RAISING and by == "claim" else {}
    if by == "claim":
        refused = await refuse(twin, queue, operation, claim, **lost)
    else:
        refused = await refuse(twin, queue, operation, key="k", holder=ANN)
    assert refused.reason is RefusalReason.REQUEUED
    assert refused.state is TaskState.QUEUED
    assert str(refused).startswith("task 'k' is queued and held by nobody")
    assert refused.holder is None


async def test_a_queued_task_is_not_retried(twin):
    """A task that is still live needs no new round."""
    queue = builds(twin)
    async with twin.begin() as session:
        await queue.enqueue(session, key="k")
    refused = await refuse(twin, queue, "retry", key="k")
    assert refused.reason is RefusalReason.REQUEUED


# --- Held --------------------------------------------------------------------------------------


@pytest.mark.parametrize("operation", [*BY_HOLDER, "claim_task"])
async def test_held(twin, operation):
    """Somebody else's task: who holds it, and for how many more seconds."""
    queue = builds(twin)
    await claimed(twin, queue)
    twin.sql(
        "UPDATE tasks SET lease_expires_at = statement_timestamp() + interval '10 minutes 30 s'"
    )
    refused = await refuse(twin, queue, operation, key="k", holder=BOB)
    assert refused.reason is RefusalReason.HELD
    assert refused.state is TaskState.CLAIMED
    assert refused.holder == ANN
    assert 600 < refused.lease_seconds_remaining <= 630
    seconds = round(refused.lease_seconds_remaining)
    assert str(refused) == f"task 'k' is held by ann (session s1) for another {seconds} seconds"
    assert refused.task.claimed_by == "ann"


@pytest.mark.parametrize("operation", [*BY_HOLDER, "claim_task"])
@pytest.mark.parametrize("other", [ANN_ELSEWHERE, Holder("ann")])
async def test_held_by_another_session(twin, operation, other):
    """Another session of the same worker is told where to go on."""
    queue = builds(twin)
    await claimed(twin, queue)
    refused = await refuse(twin, queue, operation, key="k", holder=other)
    assert refused.reason is RefusalReason.HELD_BY_OTHER_SESSION
    assert refused.holder == ANN
    assert "is held by your own session 's1' for another " in str(refused)
    assert refused.lease_seconds_remaining > 0


@pytest.mark.parametrize("operation", BY_HOLDER)
async def test_an_expired_lease_of_somebody_else_is_held(twin, operation):
    """A lease that ran out is not the asker's by that: the refusal says it ran out."""
    queue = builds(twin)
    await claimed(twin, queue)
    twin.sql("UPDATE tasks SET lease_expires_at = statement_timestamp() - interval '1 hour'")
    refused = await refuse(twin, queue, operation, key="k", holder=BOB)
    assert refused.reason is RefusalReason.HELD
    assert refused.lease_seconds_remaining <= -3_600
    assert "whose lease ran out but was not taken back yet" in str(refused)


@pytest.mark.parametrize("operation", BY_HOLDER)
async def test_a_claim_that_was_taken_over_is_held(twin, operation):
    """The loser of a lease learns who has the task now."""
    queue = builds(twin)
    claim = await claimed(twin, queue)
    twin.sql("UPDATE tasks SET lease_expires_at = statement_timestamp() - interval '1 hour'")
    async with twin.begin() as session:
        assert await queue.claim_task(session, key="k", holder=BOB)
    lost = {"on_lost": "return"} if operation in RAISING else {}
    refused = await refuse(twin, queue, operation, claim, **lost)
    assert (refused.reason, refused.holder) == (RefusalReason.HELD, BOB)


async def test_a_claimed_task_is_not_retried(twin):
    """`retry` of a claimed task says who works on it."""
    queue = builds(twin)
    await claimed(twin, queue)
    refused = await refuse(twin, queue, "retry", key="k")
    assert (refused.reason, refused.holder) == (RefusalReason.HELD, ANN)


# --- Blocked, not due, key taken ---------------------------------------------------------------


@pytest.mark.parametrize("operation", [*BY_HOLDER, "claim_task", "retry"])
async def test_blocked(twin, operation):
    """A task that waits for others cannot be worked on."""
    queue = builds(twin)
    async with twin.begin() as session:
        await queue.enqueue(session, key="k")
    twin.sql("UPDATE tasks SET state = 'blocked', pending = 1")
    named = {"key": "k"} | ({} if operation == "retry" else {"holder": "w"})
    refused = await refuse(twin, queue, operation, **named)
    assert (refused.reason, refused.state) == (RefusalReason.BLOCKED, TaskState.BLOCKED)
    assert str(refused).startswith("task 'k' is blocked: it waits for ")


async def test_not_due(twin):
    """A named task whose time has not come says how long it will be."""
    queue = builds(twin)
    async with twin.begin() as session:
        await queue.enqueue(session, key="k", delay=timedelta(hours=2))
    refused = await refuse(twin, queue, "claim_task", key="k", holder="w")
    assert refused.reason is RefusalReason.NOT_DUE
    assert refused.state is TaskState.QUEUED
    assert 7_000 < refused.due_in_seconds <= 7_200
    seconds = round(refused.due_in_seconds)
    assert str(refused) == f"task 'k' is not due for another {seconds:,} seconds"


@pytest.mark.parametrize("end", ["failed", "cancelled"])
async def test_key_taken(twin, end):
    """A retry that would make a second live task with the unique key is refused."""
    queue = builds(twin)
    async with twin.begin() as session:
        old = await queue.enqueue(session, key="k", unique_key="u")
        if end == "failed":
            [claim] = await queue.claim(session, holder=ANN)
            await queue.fail(session, claim, final=True)
        else:
            await queue.cancel(session, id=old.id)
        await queue.enqueue(session, unique_key="u")
    refused = await refuse(twin, queue, "retry", key="k")
    assert refused.reason is RefusalReason.KEY_TAKEN
    assert refused.state == end
    assert str(refused) == ("task 'k' cannot be queued again: a live task has the same unique_key")


# --- How a refusal arrives ---------------------------------------------------------------------


@pytest.mark.parametrize("operation", RAISING)
async def test_a_lost_claim_raises(twin, operation):
    """With a claim, a lost lease is an exception, so that the caller's block rolls back."""
    queue = builds(twin)
    claim = await claimed(twin, queue)
    async with twin.begin() as session:
        assert await queue.release(session, claim)
    before = twin.sql("SELECT * FROM tasks")
    with pytest.raises(LeaseLost, match="held by nobody") as caught:
        async with twin.begin() as session:
            await queue.enqueue(session, "beside")
            await getattr(queue, operation)(session, claim, **MORE.get(operation, {}))
    assert caught.value.refused.reason is RefusalReason.REQUEUED
    assert caught.value.refused.state is TaskState.QUEUED
    assert twin.sql("SELECT * FROM tasks") == before


@pytest.mark.parametrize("operation", RAISING)
async def test_a_lost_claim_leaves_the_transaction_usable(twin, operation):
    """Whoever catches the exception may go on in the same transaction."""
    queue = builds(twin)
    claim = await claimed(twin, queue)
    async with twin.begin() as session:
        assert await queue.release(session, claim)
    async with twin.begin() as session:
        with pytest.raises(LeaseLost):
            await getattr(queue, operation)(session, claim, **MORE.get(operation, {}))
        assert (await queue.enqueue(session)).created
    assert twin.scalar("SELECT count(*) FROM tasks") == 2


@pytest.mark.parametrize("operation", ["heartbeat", "release"])
async def test_heartbeats_and_releases_return(twin, operation):
    """To stop working is no error."""
    queue = builds(twin)
    claim = await claimed(twin, queue)
    async with twin.begin() as session:
        assert await queue.release(session, claim)
    refused = await refuse(twin, queue, operation, claim)
    assert refused.reason is RefusalReason.REQUEUED


@pytest.mark.parametrize("operation", RAISING)
async def test_the_holder_form_returns(twin, operation):
    """Without a claim a refusal is returned, for an operator or a request handler."""
    queue = builds(twin)
    await claimed(twin, queue)
    refused = await refuse(twin, queue, operation, key="k", holder=BOB)
    assert refused.reason is RefusalReason.HELD


@pytest.mark.parametrize("kind", ["session", "connection"])
async def test_the_refused_task_is_the_entity(twin, kind):
    """In a session it is the identity-mapped one, refreshed; else it is detached."""
    queue = builds(twin)
    claim = await claimed(twin, queue)
    async with twin.begin() as session:
        loaded = await session.get(Task, claim.id)
        twin.sql("UPDATE tasks SET reviewer = 'bob'")
        if kind == "session":
            refused = await queue.claim_task(session, key="k", holder=BOB)
            assert refused.task is loaded
        else:
            async with twin.begin_connection() as connection:
                refused = await queue.claim_task(connection, key="k", holder=BOB)
            assert refused.task is not loaded
    assert refused.task.reviewer == "bob"


async def test_a_message_names_a_task_by_its_id_when_it_has_no_key(twin):
    """Without a key the sentence has the id."""
    queue = builds(twin)
    async with twin.begin() as session:
        sent = await queue.enqueue(session)
        [claim] = await queue.claim(session, holder=ANN)
        assert await queue.release(session, claim)
    refused = await refuse(twin, queue, "complete", claim, on_lost="return")
    assert str(refused).startswith(f"task {sent.id} is queued")
