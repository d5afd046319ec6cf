"""A short life that every host's tasks must be able to lead, whatever the host looks like."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from sqla_taskqueue import LeaseLost, RefusalReason, TaskState

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.twin import Twin


async def lead_a_life(
    twin: Twin,
    model: type,
    *,
    scope: dict[str, Any] | None = None,
    ids: Sequence[Any] = (None, None),
    values: dict[str, Any] | None = None,
    name: str = "life",
) -> Any:
    """Enqueue, claim, heartbeat, complete and lose tasks; return the queue, scope bound.

    Args:
        twin: One driver's view.
        model: The task class; its tables exist.
        scope: Values of the scope columns.
        ids: Keys that the host makes itself.
        values: What the host's columns need.
        name: The queue's name.
    """
    queue = twin.queue(model, name)
    if scope:
        queue = queue.scope(**scope)
    async with twin.begin() as session:
        sent = [
            await queue.enqueue(session, "work", {"n": n}, key=f"k{n}", id=id_, values=values)
            for n, id_ in enumerate(ids)
        ]
        again = await queue.enqueue(session, "work", key=" k0 ", id=ids[0], values=values)
    assert [one.created for one in sent] == [True, True]
    assert (again.created, again.id) == (False, sent[0].id)

    async with twin.begin() as session:
        first, second = await queue.claim(session, holder="w1", limit=10)
        assert await queue.claim(session, holder="w2") == []
        for claim, one in ((first, sent[0]), (second, sent[1])):
            assert claim.id == one.id
            assert type(claim.task) is model
            assert await session.get(model, claim.id) is claim.task
            assert claim.task in session
    assert first.task is not second.task
    assert [claim.payload for claim in (first, second)] == [{"n": 0}, {"n": 1}]
    assert [claim.attempt for claim in (first, second)] == [1, 1]

    async with twin.begin() as session:
        lease = await queue.heartbeat(session, first)
        assert lease.token == first.lease.token
        done = await queue.complete(session, first, result={"ok": True})
        assert (done.id, done.state) == (first.id, TaskState.DONE)
        assert await queue.release(session, second)

    async with twin.begin() as session:
        taken = await queue.claim_task(session, id=second.id, holder="w2")
        assert taken.id == second.id
        refused = await queue.complete(session, second, on_lost="return")
        assert refused.reason is RefusalReason.HELD
        assert type(refused.task) is model
    with pytest.raises(LeaseLost):
        async with twin.begin() as session:
            await queue.complete(session, second)
    async with twin.begin() as session:
        failed = await queue.fail(session, taken, error="no", final=True)
        assert failed.state is TaskState.FAILED
        assert await queue.retry(session, key="k1")
        assert await queue.cancel(session, id=second.id, reason="enough")

    async with twin.session() as session:
        task = await queue.get(session, key="k0")
        assert (task.state, task.result, task.claimed_by) == ("done", {"ok": True}, "w1")
        page = await queue.find(session, limit=1)
        rest = await queue.find(session, after=page.next)
        assert len({id(task) for task in (*page, *rest)}) == 2
        stats = await queue.stats(session)
    assert (stats.done, stats.cancelled, stats.live) == (1, 1, 0)
    return queue
