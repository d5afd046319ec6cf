"""Histories: every change writes exactly one event, in its own transaction."""

from __future__ import annotations

from datetime import timedelta
from typing import NamedTuple

import pytest

from sqla_taskqueue import Holder, Limits, UnsupportedModel
from tests.behaviour.hosts import Base, Board, Logged, Task

ANN = Holder("ann", "s1")


class Now:
    """A policy without a wait."""

    def delay(self, attempt):
        return timedelta(0)


class Seen(NamedTuple):
    """What an event says, apart from its id and time."""

    type: str
    actor: str | None
    attempt: int
    round: int
    detail: object


@pytest.fixture(params=[Logged, Board], ids=lambda model: model.__name__)
def queue(request, twin):
    """A queue with a history, of a plain class and of a board."""
    twin.create(Base.metadata)
    options = {"retry": Now(), "limits": Limits()}
    if request.param is Logged:
        return twin.queue(Logged, **options)
    return twin.queue(Board, **options).scope(team_id=7)


def table(queue):
    """Return the name of the event table."""
    return f"{queue.model.__tablename__}_events"


def events(twin, queue):
    """Return all committed events in the order in which they were written."""
    rows = twin.sql(
        f"SELECT type, actor, attempt, round, detail FROM {table(queue)} ORDER BY created_at, id"
    )
    return [Seen(*row) for row in rows]


async def act(twin, queue, operation, *args, **kwargs):
    """Run one operation in its own transaction and return the answer and the new events."""
    before = len(events(twin, queue))
    async with twin.begin() as session:
        answer = await getattr(queue, operation)(session, *args, **kwargs)
    return answer, events(twin, queue)[before:]


def only(seen):
    """Return the one event."""
    [event] = seen
    return event


async def test_the_life_of_a_task(twin, queue):
    """Each operation writes exactly one event, with actor, attempt, round and detail."""
    _, seen = await act(twin, queue, "enqueue", key="k", actor="carl", max_attempts=3)
    assert only(seen) == ("created", "carl", 0, 1, None)

    [claim], seen = await act(twin, queue, "claim", holder=ANN)
    assert only(seen)[:4] == ("claimed", "ann", 1, 1)
    assert seen[0].detail == {"session": "s1", "via": "next"}

    _, seen = await act(twin, queue, "heartbeat", claim)
    if queue.model is Board:
        assert only(seen) == ("renewed", "ann", 1, 1, {"session": "s1"})
    else:
        assert seen == []  # too many, on a queue

    _, seen = await act(twin, queue, "release", claim)
    assert only(seen)[:2] == ("released", "ann")
    assert seen[0].detail == {"session": "s1"}

    claim, seen = await act(twin, queue, "claim_task", key="k", holder="bob")
    assert only(seen)[:4] == ("claimed", "bob", 1, 1)

    claim, seen = await act(twin, queue, "claim_task", key="k", holder="bob")
    assert only(seen)[:4] == ("renewed", "bob", 1, 1)

    _, seen = await act(twin, queue, "snooze", claim, delay=timedelta(0))
    assert only(seen)[:2] == ("snoozed", "bob")
    assert seen[0].detail == {"delay": "0:00:00"}

    [claim], _ = await act(twin, queue, "claim", holder="bob")
    _, seen = await act(twin, queue, "fail", claim, error=ValueError("x"))
    assert only(seen)[:4] == ("retried", "bob", 1, 1)
    assert seen[0].detail == {"error": "ValueError: x", "retry_in": "0:00:00"}

    [claim], seen = await act(twin, queue, "claim", holder="bob")
    assert only(seen)[:4] == ("claimed", "bob", 2, 1)
    _, seen = await act(twin, queue, "fail", claim, error="no", final=True)
    assert only(seen) == ("failed", "bob", 2, 1, {"error": "no"})

    _, seen = await act(twin, queue, "retry", key="k", actor="carl")
    assert only(seen)[:2] == ("restarted", "carl")

    _, seen = await act(twin, queue, "cancel", key="k", reason="enough", actor="carl")
    assert only(seen)[:2] == ("cancelled", "carl")
    assert (seen[0].round, seen[0].detail) == (2, {"reason": "enough"})

    await act(twin, queue, "retry", key="k")
    [claim], seen = await act(twin, queue, "claim", holder=ANN)
    assert only(seen)[:4] == ("claimed", "ann", 1, 3)
    _, seen = await act(twin, queue, "complete", claim, result={"a": 1})
    assert only(seen) == ("completed", "ann", 1, 3, {"session": "s1"})


async def test_a_forced_completion_is_recorded(twin, queue):
    """The operator and the force stand in the history."""
    await act(twin, queue, "enqueue", key="k")
    _, seen = await act(twin, queue, "complete", key="k", force=True, actor="carl")
    assert only(seen) == ("completed", "carl", 0, 1, {"forced": True})


async def test_the_last_failed_attempt_is_recorded_as_the_end(twin, queue):
    """When no attempt is left there is one event, `failed`, and no `retried`."""
    await act(twin, queue, "enqueue", max_attempts=1)
    [claim], _ = await act(twin, queue, "claim", holder="w")
    _, seen = await act(twin, queue, "fail", claim, error="x")
    assert only(seen) == ("failed", "w", 1, 1, {"error": "x"})


async def test_a_reclaim_says_who_lost_the_lease(twin, queue):
    """The queue itself is the actor; the former holder stands in the detail."""
    for attempts in (1, 20):
        await act(twin, queue, "enqueue", max_attempts=attempts)
    await act(twin, queue, "claim", holder=ANN, limit=2)
    twin.sql(f"UPDATE {queue.model.__tablename__} SET lease_expires_at = '2001-01-01Z'")
    done, seen = await act(twin, queue, "reclaim")
    assert (done.requeued, done.failed) == (1, 1)
    assert sorted(event.type for event in seen) == ["failed", "reclaimed"]
    for event in seen:
        assert (event.actor, event.attempt) == (None, 1)
        assert event.detail == {"reason": "lease expired", "worker": "ann", "session": "s1"}


async def test_a_take_over_names_the_former_holder(twin, queue):
    """Claiming a task whose lease ran out says from whom it was taken."""
    await act(twin, queue, "enqueue", key="k")
    await act(twin, queue, "claim", holder=ANN)
    twin.sql(f"UPDATE {queue.model.__tablename__} SET lease_expires_at = '2001-01-01Z'")
    _, seen = await act(twin, queue, "claim_task", key="k", holder="bob")
    assert only(seen) == ("claimed", "bob", 2, 1, {"taken_over_from": "ann (session s1)"})


async def test_every_task_of_a_batch_has_its_event(twin, queue):
    """A batch writes one event for each of its tasks, and points at it."""
    async with twin.begin() as session:
        for number in range(30):
            await queue.enqueue(session, priority=number % 3)
    claims, seen = await act(twin, queue, "claim", holder="w", limit=20)
    assert [event.type for event in seen] == ["claimed"] * 20
    named = twin.sql(f"SELECT task_id FROM {table(queue)} WHERE type = 'claimed'")
    assert sorted(id_ for (id_,) in named) == sorted(claim.id for claim in claims)
    assert twin.scalar(f"SELECT count(DISTINCT id) FROM {table(queue)}") == 50


async def test_an_event_is_rolled_back_with_its_change(twin, queue):
    """The history has nothing that did not happen."""
    await act(twin, queue, "enqueue", key="k")
    before = events(twin, queue)
    async with twin.session() as session:
        await queue.enqueue(session)
        [claim, _] = await queue.claim(session, holder="w", limit=2)
        await queue.complete(session, claim)
        assert len(await queue.history(session, id=claim.id)) == 3
        assert events(twin, queue) == before
        await session.rollback()
    assert events(twin, queue) == before


async def test_an_event_has_the_time_of_its_change(twin, queue):
    """Row and event are written at the same moment of the database's clock."""
    await act(twin, queue, "enqueue", key="k")
    [claim], _ = await act(twin, queue, "claim", holder="w")
    name = queue.model.__tablename__
    assert twin.scalar(
        f"SELECT e.created_at = t.claimed_at FROM {name} t, {table(queue)} e"
        " WHERE e.type = 'claimed'"
    )
    await act(twin, queue, "complete", claim)
    assert twin.scalar(
        f"SELECT e.created_at = t.finished_at FROM {name} t, {table(queue)} e"
        " WHERE e.type = 'completed'"
    )


async def test_what_was_refused_is_not_recorded(twin, queue):
    """A write that changed nothing leaves no event."""
    await act(twin, queue, "enqueue", key="k")
    assert (await act(twin, queue, "enqueue", key="k"))[1] == []
    assert (await act(twin, queue, "retry", key="k"))[1] == []
    await act(twin, queue, "claim", holder="w")
    for operation in ("heartbeat", "complete", "fail", "release", "claim_task"):
        refused, seen = await act(twin, queue, operation, key="k", holder="other")
        assert (bool(refused), seen) == (False, [])
    refused, seen = await act(twin, queue, "snooze", key="k", holder="other", delay=timedelta(0))
    assert (bool(refused), seen) == (False, [])
    await act(twin, queue, "complete", key="k", holder="w")
    for operation, more in (("cancel", {}), ("retry", {}), ("claim_task", {"holder": "w"})):
        refused, seen = await act(twin, queue, operation, key="k", **more)
        assert (bool(refused), seen) == (False, [])
    assert (await act(twin, queue, "claim", holder="w"))[1] == []
    assert (await act(twin, queue, "reclaim"))[1] == []


async def test_repeating_a_completion_is_not_recorded_again(twin, queue):
    """An ambiguous commit that is tried again makes one event."""
    await act(twin, queue, "enqueue")
    [claim], _ = await act(twin, queue, "claim", holder="w")
    assert len((await act(twin, queue, "complete", claim))[1]) == 1
    again, seen = await act(twin, queue, "complete", claim)
    assert again
    assert seen == []


async def test_a_retry_that_meets_its_unique_key_is_not_recorded(twin, queue):
    """The savepoint takes the event with it."""
    await act(twin, queue, "enqueue", key="k", unique_key="u")
    await act(twin, queue, "cancel", key="k")
    await act(twin, queue, "enqueue", unique_key="u")
    refused, seen = await act(twin, queue, "retry", key="k")
    assert (bool(refused), seen) == (False, [])


async def test_history_reads_one_task_in_order(twin, queue):
    """Entities of the host's event class, oldest first, of that task only."""
    await act(twin, queue, "enqueue", key="k")
    await act(twin, queue, "enqueue", key="other")
    for _ in range(3):
        await act(twin, queue, "claim_task", key="k", holder="w")
        await act(twin, queue, "release", key="k", holder="w")
    async with twin.begin() as session:
        read = await queue.history(session, key="k")
        task = await queue.get(session, key="k")
        assert read == await queue.history(session, id=task.id)
        assert await queue.history(session, key="nothing") == []
    assert [event.type for event in read] == ["created", *["claimed", "released"] * 3]
    assert {event.task_id for event in read} == {task.id}
    assert [event.created_at for event in read] == sorted(event.created_at for event in read)
    assert type(read[0]).__name__ == f"{queue.model.__name__}Event"


async def test_events_of_one_statement_time_stay_in_order(twin, queue):
    """A whole life within one transaction reads in the order in which it happened."""
    async with twin.begin() as session:
        await queue.enqueue(session, key="k")
        for _ in range(5):
            [claim] = await queue.claim(session, holder="w")
            await queue.release(session, claim)
        read = await queue.history(session, key="k")
    assert [event.type for event in read] == ["created", *["claimed", "released"] * 5]


async def test_events_go_with_their_task(twin, queue):
    """Deleting a task deletes its history."""
    await act(twin, queue, "enqueue")
    twin.sql(f"DELETE FROM {queue.model.__tablename__}")
    assert events(twin, queue) == []


async def test_a_connection_records_as_a_session_does(twin, queue):
    """The same events are written through a Core connection."""
    async with twin.begin_connection() as connection:
        await queue.enqueue(connection, key="k")
        [claim] = await queue.claim(connection, holder="w")
        await queue.complete(connection, claim)
        read = await queue.history(connection, key="k")
    assert [event.type for event in read] == ["created", "claimed", "completed"]
    assert [event.type for event in events(twin, queue)] == ["created", "claimed", "completed"]


async def test_a_class_without_events_has_no_history(twin):
    """The error says what to map."""
    twin.create(Base.metadata)
    queue = twin.queue(Task).scope(project_hash="p", role="r")
    async with twin.session() as session:
        with pytest.raises(UnsupportedModel, match="TaskEventMixin"):
            await queue.history(session, key="k")
