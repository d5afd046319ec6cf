"""However much is enqueued at once, a transaction wakes each queue once, in a few bytes (B17)."""

from __future__ import annotations

import pytest

from sqla_taskqueue import TaskSpec
from tests.behaviour.hosts import Base, Logged, Task, queue_of

MANY = 5_000
SMILE = "\U0001f600"


@pytest.mark.parametrize("model", [Task, Logged], ids=lambda model: model.__name__)
async def test_a_large_batch_wakes_once_when_it_can_be_seen(twin, model):
    """Five thousand tasks are one wake-up of 200 bytes at most, not before the commit (B17)."""
    twin.create(Base.metadata)
    one, other = (queue_of(twin, model, name) for name in ("one", SMILE * 25))
    specs = [TaskSpec(SMILE * 25, {"n": n}, key=f"{SMILE * 100}{n}") for n in range(MANY)]
    async with twin.listening(one._core.channel) as listener:
        async with twin.session() as session:
            sent = await one.enqueue_many(session, specs)
            await one.enqueue(session, SMILE * 25, {"x": "y" * 1_000_000})
            await other.enqueue_many(session, [TaskSpec(), TaskSpec()])
            assert await listener.so_far() == []
            await session.commit()
        heard = [n.payload for n in await listener.so_far()]
    assert sorted(heard) == sorted([one.name, other.name])
    assert all(len(payload.encode()) <= 200 for payload in heard)
    assert [answer.created for answer in sent] == [True] * MANY
    assert twin.scalar(f"SELECT count(*) FROM {model.__tablename__}") == MANY + 3
