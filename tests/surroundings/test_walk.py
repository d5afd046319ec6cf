"""Every operation of the queue in every surrounding: the same answers, the same rows."""

from __future__ import annotations

from datetime import timedelta

import pytest
from sqlalchemy import func, insert, update

from sqla_taskqueue import (
    EnqueueConflict,
    Holder,
    LeaseLost,
    RefusalReason,
    TaskExists,
    TaskSpec,
    TaskState,
    uuid7,
)
from tests.surroundings.kinds import KINDS, OTHER, TENANT, kinds
from tests.surroundings.life import every_operation

HOUR = timedelta(hours=1)
NOW = timedelta(0)

parallel = kinds(*(kind for kind in KINDS if kind.parallel))


# --- What most tests do ------------------------------------------------------------------------


async def claims_of(here, number, **options):
    """Enqueue and claim so many tasks, each in a unit of work; return the claims in order."""
    specs = [TaskSpec("work", n, **options) for n in range(number)]
    await here.do(here.queue.enqueue_many, specs)
    claims = await here.do(here.queue.claim, holder="w1", limit=number)
    return sorted(claims, key=lambda claim: claim.payload)


async def expire(here):
    """Let every lease have run out."""
    tasks = here.base.Task.__table__
    ended = func.statement_timestamp() - timedelta(seconds=1)
    held = tasks.c.lease_token.is_not(None)
    await here.run(update(tasks).where(held).values(lease_expires_at=ended))


async def states(here):
    """Return the state of every task, by its payload."""
    tasks = here.base.Task.__table__
    rows = await here.fetch(tasks.c.payload, tasks.c.state)
    return {row.payload: row.state for row in rows}


async def column(here, name):
    """Return one column of all tasks, oldest key first."""
    return [value for (value,) in await here.fetch(here.base.Task.__table__.c[name])]


async def history(here, id_):
    """Return the types of a task's events."""
    return [event.type for event in await here.do(here.queue.history, id=id_)]


async def reasons(here, method, *args, **options):
    """Return why a batch refused each claim, None where it did not."""
    answers = await here.do(method, *args, **options)
    return [None if answer else answer.reason for answer in answers]


# --- Enqueueing --------------------------------------------------------------------------------


async def test_enqueue_inserts_a_task_once(here):
    """A key, unique key or id that is there already names the task that is there."""
    enqueue = here.queue.enqueue

    async def insist(session, **by):
        with pytest.raises(TaskExists):
            await enqueue(session, **by, if_exists="raise")
        return await enqueue(session, **by)  # the transaction is usable

    for by in ({"key": "k"}, {"unique_key": "u"}, {"id": (TENANT, uuid7())}):
        sent = await here.do(enqueue, "work", 1, **by)
        again = await here.do(enqueue, "work", 2, **by)
        assert (sent.created, again.created, again.id) == (True, False, sent.id)
        assert (await here.do(insist, **by)).id == sent.id
        assert await history(here, sent.id) == ["created"]
    assert sent.id == by["id"]
    assert await column(here, "payload") == [1, 1, 1]
    assert (await here.do(here.queue_of(OTHER).enqueue, key="k")).created


async def test_enqueue_many_answers_in_order(here):
    """New tasks and those that exist, of this batch and of earlier ones, in the specs' order."""
    first = await here.do(here.queue.enqueue, "work", 0, key="k")
    specs = [
        TaskSpec("work", 1),
        TaskSpec("work", 2, key="k"),
        TaskSpec("work", 3, unique_key="u"),
        TaskSpec("work", 4, id=(TENANT, uuid7())),
        TaskSpec("work", 5, unique_key="u"),
        TaskSpec("work", 6, delay=HOUR, priority=-1),
    ]
    answers = await here.do(here.queue.enqueue_many, specs)
    assert [one.created for one in answers] == [True, False, True, True, False, True]
    assert (answers[1].id, answers[4].id) == (first.id, answers[2].id)
    assert answers[3].id == specs[3].id
    again = await here.do(here.queue.enqueue_many, specs[1:5])
    assert [(one.id, one.created) for one in again] == [(one.id, False) for one in answers[1:5]]
    assert sorted(await column(here, "payload")) == [0, 1, 3, 4, 6]
    for sent in {one.id for one in answers}:
        assert await history(here, sent) == ["created"]


async def test_a_constraint_of_the_host_is_named(here):
    """A task that the host's own constraint keeps out: an error, and a usable transaction."""
    await here.do(here.queue.enqueue, "work", 1, values={"order_no": "A-1"})

    async def conflict(session):
        with pytest.raises(EnqueueConflict, match="tasks_tenant_id_order_no_key"):
            await here.queue.enqueue(session, "work", 2, values={"order_no": "A-1"})
        specs = [TaskSpec("work", n, values={"order_no": f"A-{n % 2}"}) for n in (3, 4)]
        with pytest.raises(EnqueueConflict, match="tasks_tenant_id_order_no_key"):
            await here.queue.enqueue_many(session, specs)
        return await here.queue.enqueue(session, "work", 5)

    assert (await here.do(conflict)).created
    # A batch is told to be rolled back.
    assert await column(here, "payload") == [1, 4, 5]


async def test_tasks_refer_to_what_is_pending(here):
    """A task may point at a row that the session has yet to write, and waits for its foreign key."""

    async def enrol(session):
        session.sync_session.add(here.base.Tenant(id=9, paid=0))
        return await here.queue_of(9).enqueue(session, "welcome", values={"order_no": "A-1"})

    sent = await here.do(enrol)
    task = await here.do(here.queue_of(9).get, id=sent.id)
    assert (task.tenant_id, task.order_no) == (9, "A-1")


async def test_wake_ups_come_with_the_commit(here):
    """None before the commit; then one for all tasks of a transaction."""
    async with here.twin.listening(here.channel) as listener:

        async def send(session):
            for number in range(3):
                await here.queue.enqueue(session, "work", number)
            if here.undone != "nothing":
                assert await listener.so_far() == []

        await here.do(send)
        assert [one.payload for one in await listener.so_far()] == ["work"] * here.heard


# --- Claiming ----------------------------------------------------------------------------------


async def test_claims_come_in_order(here):
    """By priority, then by time, then by key; never more than asked for, never what is not due."""
    specs = [TaskSpec("work", n, priority=n % 2) for n in range(6)]
    await here.do(here.queue.enqueue_many, [*specs, TaskSpec("work", 6, delay=HOUR)])
    await here.do(here.queue_of(OTHER).enqueue, "work", 7)
    first = await here.do(here.queue.claim, holder="w1", limit=4)
    rest = await here.do(here.queue.claim, holder=Holder("w2", "s"), limit=4)
    assert [claim.payload for claim in (*first, *rest)] == [0, 2, 4, 1, 3, 5]
    assert await here.do(here.queue.claim, holder="w3") == []
    for claim in (*first, *rest):
        assert (claim.attempt, claim.scope, claim.id) == (
            1,
            {"tenant_id": TENANT},
            (claim.task.tenant_id, claim.task.id),
        )
        assert (claim.task.state, claim.task.claimed_by) == ("claimed", claim.lease.holder.worker)
        assert await history(here, claim.id) == ["created", "claimed"]


async def test_claimed_entities_belong_to_the_session(here):
    """What is claimed is the host's entity, fresh, in the session that claimed it."""
    sent = await here.do(here.queue.enqueue, "work", 1)

    async def work(session):
        [claim] = await here.queue.claim(session, holder="w1")
        assert claim.task in session
        claim.task.order_no = "A-1"
        assert await here.queue.complete(session, claim)

    await here.do(work)
    task = await here.do(here.queue.get, id=sent.id)
    assert (task.order_no, task.state) == ("A-1", "done")


async def test_a_named_task_is_claimed(here):
    """By id or key; the holder renews it, others are told who has it, and take it over later."""
    sent = await here.do(here.queue.enqueue, "work", 1, key="k")
    mine = await here.do(here.queue.claim_task, id=sent.id, holder=Holder("agent", "s1"))
    renewed = await here.do(here.queue.claim_task, key="k", holder=Holder("agent", "s1"))
    assert (mine.attempt, renewed.attempt) == (1, 1)
    assert mine.lease.token != renewed.lease.token
    held = await here.do(here.queue.claim_task, key="k", holder="other")
    assert (held.reason, held.holder) == (RefusalReason.HELD, Holder("agent", "s1"))
    session = await here.do(here.queue.claim_task, key="k", holder=Holder("agent", "s2"))
    assert session.reason is RefusalReason.HELD_BY_OTHER_SESSION
    gone = await here.do(here.queue.claim_task, key="other", holder="agent")
    assert gone.reason is RefusalReason.GONE
    await expire(here)
    taken = await here.do(here.queue.claim_task, key="k", holder="other")
    assert taken.attempt == 2
    assert await history(here, sent.id) == ["created", "claimed", "renewed", "claimed"]


@parallel
async def test_two_claimers_get_different_tasks(here):
    """What one transaction has claimed another passes over, without waiting for it."""
    await here.do(here.queue.enqueue_many, [TaskSpec("work", n) for n in range(5)])
    beside = []

    async def claim(session):
        claims = await here.queue.claim(session, holder="w1", limit=2)
        beside.extend(await here.do(here.queue.claim, holder="w2", limit=10))
        return claims

    assert [claim.payload for claim in await here.do(claim)] == [0, 1]
    assert [claim.payload for claim in beside] == [2, 3, 4]
    assert await column(here, "attempt") == [1] * 5


# --- Holding -----------------------------------------------------------------------------------


async def test_heartbeats_extend_leases(here):
    """Of a claim, of a holder's task, or of many; also of leases that have run out."""
    one, two = await claims_of(here, 2)
    await expire(here)
    lease = await here.do(here.queue.heartbeat, one, lease=HOUR)
    assert (lease.token, lease.duration) == (one.lease.token, HOUR)
    assert await here.do(here.queue.heartbeat, id=one.id, holder="w1")
    assert not await here.do(here.queue.heartbeat, id=one.id, holder="w2")
    leases = await here.do(here.queue.heartbeat_many, [two, one])
    assert [lease.token for lease in leases] == [two.lease.token, one.lease.token]
    assert min(await column(here, "lease_expires_at")) > one.lease.expires_at
    assert not await here.do(here.queue.reclaim)


async def test_tasks_are_given_back_or_put_off(here):
    """Release keeps the task due, snooze moves it; neither counts the attempt."""
    one, two = await claims_of(here, 2)
    released = await here.do(here.queue.release, one)
    snoozed = await here.do(here.queue.snooze, two, delay=HOUR)
    assert {(answer.state, answer.attempt) for answer in (released, snoozed)} == {("queued", 0)}
    assert snoozed.run_at - released.run_at > HOUR / 2
    [again] = await here.do(here.queue.claim, holder="w2", limit=2)
    assert (again.id, again.attempt) == (one.id, 1)
    refused = await here.do(here.queue.claim_task, id=two.id, holder="w2")
    assert refused.reason is RefusalReason.NOT_DUE
    assert await history(here, one.id) == ["created", "claimed", "released", "claimed"]
    assert await history(here, two.id) == ["created", "claimed", "snoozed"]


async def test_what_ran_out_is_reclaimed(here):
    """Leases that ran out go back to the queue, those on their last attempt to their end."""
    again = await claims_of(here, 2)
    [last] = await claims_of(here, 1, max_attempts=1)
    assert not await here.do(here.queue.reclaim)
    await expire(here)
    reclaimed = await here.do(here.queue.reclaim)
    assert (reclaimed.requeued, reclaimed.failed) == (2, 1)
    assert await history(here, again[0].id) == ["created", "claimed", "reclaimed"]
    assert await history(here, last.id) == ["created", "claimed", "failed"]
    [one, _] = await here.do(here.queue.claim, holder="w2", limit=3)
    assert (one.id, one.attempt) == (again[0].id, 2)
    assert (await here.do(here.queue.reclaim, stale_after=NOW)).requeued == 2


# --- Ending ------------------------------------------------------------------------------------


async def test_tasks_end_well(here):
    """With their results, one at a time or many at once; again, and it is the same success."""
    one, two, three = await claims_of(here, 3)
    done = await here.do(here.queue.complete, one, result={"sum": 3})
    assert (done.id, done.state) == (one.id, TaskState.DONE)
    assert await here.do(here.queue.complete, one)
    many = await here.do(here.queue.complete_many, [three, one, two], results=["c", "a", None])
    assert [(answer.id, answer.state) for answer in many] == [
        (claim.id, "done") for claim in (three, one, two)
    ]
    assert await column(here, "result") == [{"sum": 3}, None, "c"]
    for claim in (one, two, three):
        assert await history(here, claim.id) == ["created", "claimed", "completed"]
    assert await here.do(here.queue.claim, holder="w1") == []


async def test_attempts_fail(here):
    """Another try later, or the end; one at a time or many at once."""
    one, two, three, four = await claims_of(here, 4)
    [last] = await claims_of(here, 1, max_attempts=1)
    fail = here.queue.fail
    assert (await here.do(fail, one, error=ValueError("no"))).state == "queued"
    assert (await here.do(fail, two, error="no", final=True)).state == "failed"
    many = await here.do(here.queue.fail_many, [last, three], errors=["e1", "e2"])
    assert [answer.state for answer in many] == ["failed", "queued"]
    assert [a.state for a in await here.do(here.queue.fail_many, [last], errors=["e"])] == [
        "failed"
    ]
    [final] = await here.do(here.queue.fail_many, [four], errors=["e3"], final=True)
    assert final.state == "failed"
    assert await history(here, one.id) == ["created", "claimed", "retried"]
    assert await history(here, three.id) == ["created", "claimed", "retried"]
    for ended in (two, four, last):
        assert await history(here, ended.id) == ["created", "claimed", "failed"]
    assert await column(here, "error") == ["ValueError: no", "no", "e2", "e3", "e1"]


async def test_operators_cancel_and_retry(here):
    """Whoever holds it; a new round, unless its unique key is taken meanwhile."""
    [held] = await claims_of(here, 1, unique_key="u")
    cancelled = await here.do(here.queue.cancel, id=held.id, reason="no more", actor="ada")
    assert cancelled.state == "cancelled"
    again = await here.do(here.queue.cancel, id=held.id)
    assert again.reason is RefusalReason.FINISHED
    other = await here.do(here.queue.enqueue, "work", 1, unique_key="u")

    async def retry(session):
        taken = await here.queue.retry(session, id=held.id)
        assert taken.reason is RefusalReason.KEY_TAKEN
        return await here.queue.cancel(session, id=other.id)  # the transaction is usable

    assert await here.do(retry)
    assert (await here.do(here.queue.retry, id=held.id, actor="ada")).state == "queued"
    forced = await here.do(here.queue.complete, id=held.id, force=True, actor="ada")
    assert forced.state == "done"
    assert await history(here, held.id) == [
        "created",
        "claimed",
        "cancelled",
        "restarted",
        "completed",
    ]


async def test_what_has_ended_is_pruned(here):
    """With its history; what is live stays, and the key is free again."""
    await here.do(here.queue.enqueue, "work", 9, key="k")
    ended = await here.do(here.queue.claim_task, key="k", holder="w1")
    [live] = await claims_of(here, 1)
    await here.do(here.queue.complete, ended)
    assert await here.do(here.queue.prune, older_than=HOUR) == 0
    assert await here.do(here.queue.prune, older_than=NOW) == 1
    assert await states(here) == {0: "claimed"}
    events = here.base.Event.__table__
    assert {row.task_id for row in await here.fetch(events.c.task_id)} == {live.task.id}
    assert (await here.do(here.queue.enqueue, key="k")).created


# --- Reading -----------------------------------------------------------------------------------


async def test_tasks_are_found_and_counted(here):
    """Newest first, page by page, by state; of one tenant or of all."""
    claims = await claims_of(here, 5)
    await here.do(here.queue.complete, claims[0])
    await here.do(here.queue.fail, claims[1], final=True)
    other = await here.do(here.queue_of(OTHER).enqueue, "work", 5)

    page = await here.do(here.queue.find, limit=3, content=True)
    rest = await here.do(here.queue.find, limit=3, content=True, after=page.next)
    assert [task.payload for task in (*page, *rest)] == [4, 3, 2, 1, 0]
    ended = await here.do(here.queue.find, state=("done", "failed"))
    assert {(task.tenant_id, task.id) for task in ended} == {claim.id for claim in claims[:2]}
    stats = await here.do(here.queue.stats)
    assert (stats.claimed, stats.done, stats.failed, stats.queued) == (3, 1, 1, 0)
    everywhere = await here.do(here.unscoped.stats)
    assert (everywhere.claimed, everywhere.queued, everywhere.due) == (3, 1, 1)
    assert await here.do(here.queue.get, id=claims[0].id)
    assert await here.do(here.queue.get, key="k") is None
    found = await here.do(here.unscoped.get, id=other.id)
    assert (found.tenant_id, found.id) == other.id


# --- Losing ------------------------------------------------------------------------------------


async def test_a_lost_lease_writes_nothing(here):
    """Whoever comes too late is refused by every operation, and told who has the task."""
    lost = await claims_of(here, 2)
    await expire(here)
    assert await here.do(here.queue.reclaim)
    requeued = await here.do(here.queue.complete, lost[0], on_lost="return")
    assert requeued.reason is RefusalReason.REQUEUED
    now = await here.do(here.queue.claim, holder="w2", limit=2)
    before = await here.fetch(*here.base.Task.__table__.c)

    q, claim = here.queue, lost[0]
    for method, options in (
        (q.heartbeat, {}),
        (q.release, {}),
        (q.complete, {"on_lost": "return", "result": 1}),
        (q.fail, {"on_lost": "return", "error": "no"}),
        (q.fail, {"on_lost": "return", "final": True}),
        (q.snooze, {"on_lost": "return", "delay": HOUR}),
    ):
        refused = await here.do(method, claim, **options)
        assert (refused.reason, refused.holder) == (RefusalReason.HELD, Holder("w2"))
        assert (refused.task.tenant_id, refused.task.id) == claim.id
    held = [RefusalReason.HELD] * 2
    assert await reasons(here, q.heartbeat_many, lost) == held
    assert await reasons(here, q.complete_many, lost) == held
    assert await reasons(here, q.fail_many, lost, errors=["no", "no"]) == held
    assert await here.fetch(*here.base.Task.__table__.c) == before
    assert await here.do(q.complete, now[0])
    finished = await here.do(q.complete, claim, on_lost="return")
    assert finished.reason is RefusalReason.FINISHED


async def test_a_lost_lease_undoes_the_work(here):
    """The work and its `complete` are one unit: who has lost the lease has not worked."""
    [lost] = await claims_of(here, 1)
    await expire(here)
    await here.do(here.queue.reclaim)
    tenants = here.base.Tenant.__table__

    async def work(session):
        await session.execute(update(tenants).values(paid=tenants.c.paid + 10))
        await here.queue.complete(session, lost)

    with pytest.raises(LeaseLost):
        await here.do(work)
    assert await here.paid() == (10 if here.undone == "nothing" else 0)


class Undo(Exception):
    """What the host's code raises."""


async def test_a_rollback_undoes_everything(here):
    """An error of the host takes with it what every operation did, and every wake-up."""
    await claims_of(here, 3)
    tables = [model.__table__ for model in (here.base.Task, here.base.Event, here.base.Tenant)]
    before = [await here.fetch(*table.c) for table in tables]

    async def work(session):
        await every_operation(session, here)
        await session.execute(insert(here.base.Tenant.__table__).values(id=9, paid=0))
        raise Undo

    async with here.twin.listening(here.channel) as listener:
        with pytest.raises(Undo):
            await here.do(work)
        heard = await listener.so_far()
    after = [await here.fetch(*table.c) for table in tables]
    if here.undone == "nothing":
        assert heard
        assert [len(rows) for rows in after] == [3 + 11 - 3, len(after[1]), 3]
    else:
        assert heard == []
        assert after == (before if here.undone == "the unit" else [[], [], before[2]])
