"""Sessions joined to an outer transaction, as test suites do that roll everything back."""

from __future__ import annotations

import pytest

from sqla_taskqueue import EnqueueConflict, RefusalReason
from tests.surroundings.kinds import Joined, kinds

joined = kinds(Joined)
OWN = {"values": {"order_no": "A-1"}}


class Undo(Exception):
    """What the code under test raises."""


@pytest.mark.parametrize("end", ["commit", "rollback"])
@joined
async def test_wake_ups_come_with_the_outer_commit(here, end):
    """However often the joined sessions commit, nobody is woken before the outer commit."""
    async with here.twin.listening(here.channel) as listener:
        for number in range(3):
            await here.do(here.queue.enqueue, "work", number)
        assert await listener.so_far() == []
        assert here.twin.scalar("SELECT count(*) FROM tasks") == 0
        await getattr(here.connection, end)()
        woken, tasks = (["work"], 3) if end == "commit" else ([], 0)
        assert [one.payload for one in await listener.so_far()] == woken
        assert here.twin.scalar("SELECT count(*) FROM tasks") == tasks
    if end == "commit":
        here.twin.sql("DELETE FROM tasks")


@joined
async def test_a_joined_rollback_undoes_one_session(here):
    """What one session rolls back is undone, wake-up included; what others committed stays."""
    kept = await here.do(here.queue.enqueue, "work", 1)
    async with here.twin.listening(here.channel) as listener:
        with pytest.raises(Undo):
            async with here.begin() as session:
                await here.queue.claim(session, holder="w1")
                await here.queue_of(8).enqueue(session, "work", 2)
                raise Undo
        [claim] = await here.do(here.queue.claim, holder="w2")
        assert (claim.id, claim.attempt) == (kept.id, 1)
        assert (await here.do(here.unscoped.stats)).live == 1
        assert await listener.so_far() == []


@joined
async def test_refusals_leave_the_outer_transaction_usable(here):
    """A conflict and a refused retry are met in savepoints within the session's own."""
    queue = here.queue
    old = await here.do(queue.enqueue, "work", 1, unique_key="u", **OWN)
    await here.do(queue.cancel, id=old.id)
    await here.do(queue.enqueue, "work", 2, unique_key="u")
    with pytest.raises(EnqueueConflict):
        await here.do(queue.enqueue, "work", 3, **OWN)
    refused = await here.do(queue.retry, id=old.id)
    assert refused.reason is RefusalReason.KEY_TAKEN
    assert [claim.payload for claim in await here.do(queue.claim, holder="w1", limit=9)] == [2]


@joined
async def test_the_connection_itself_shares_the_transaction(here):
    """Operations through the outer connection see what joined sessions did, and the reverse."""
    sent = await here.do(here.queue.enqueue, "work", 1)
    [claim] = await here.queue.claim(here.connection, holder="w1")
    assert claim.id == sent.id
    assert await here.do(here.queue.complete, claim)
    assert (await here.queue.get(here.connection, id=sent.id)).state == "done"


@pytest.mark.parametrize("nested", [False, True], ids=["outer", "outer with savepoint"])
@joined
async def test_the_default_mode_joins_by_what_is_there(here, nested):
    """`conditional_savepoint` undoes the outer transaction, or one savepoint where there is one."""
    await here.queue.enqueue(here.connection, "work", 1)
    if nested:
        await here.connection.begin_nested()
    with pytest.raises(Undo):
        async with here.twin.begin(here.connection) as session:
            assert len(await here.queue.claim(session, holder="w1")) == 1
            raise Undo
    assert here.connection.in_transaction() == nested
    stats = await here.queue.stats(here.connection)
    assert (stats.queued, stats.claimed) == (1 if nested else 0, 0)
