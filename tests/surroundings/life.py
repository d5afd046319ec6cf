"""What an application does with its queue: every operation once, or a crew at work."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from sqlalchemy import func, update

from sqla_taskqueue import RefusalReason, TaskSpec

if TYPE_CHECKING:
    from tests.surroundings.kinds import Surrounding

NOW = timedelta(0)
LATER = timedelta(hours=1)
BATCH = 10


async def every_operation(session: Any, here: Surrounding) -> None:
    """Do everything that a queue can do, all of it in one unit of work."""
    q = here.queue
    await q.enqueue_many(session, [TaskSpec("work", n) for n in range(10)])
    claims = await q.claim(session, holder="w1", limit=9)
    assert len(claims) == 9
    assert await q.heartbeat(session, claims[0])
    assert await q.complete(session, claims[0], result=1)
    assert await q.fail(session, claims[1])
    assert await q.fail(session, claims[2], final=True)
    assert await q.release(session, claims[3])
    assert await q.snooze(session, claims[4], delay=LATER)
    assert await q.cancel(session, id=claims[5].id)
    assert await q.retry(session, id=claims[5].id)
    assert all(await q.heartbeat_many(session, claims[6:]))
    assert all(await q.complete_many(session, claims[6:7]))
    assert all(await q.fail_many(session, claims[7:8], errors=["no"]))
    refused = await q.complete(session, claims[7], on_lost="return")
    assert (refused.reason, refused.task.state) == (RefusalReason.REQUEUED, "queued")
    assert await q.reclaim(session, stale_after=NOW)
    assert len(await q.claim(session, holder="w2", limit=2, take_expired=True)) == 2
    sent = await q.enqueue(session, "work", key="k")
    assert await q.claim_task(session, key="k", holder="w2")
    assert (await q.enqueue(session, "work", key="k")).id == sent.id
    assert await q.prune(session, older_than=NOW) == 3
    # Where they are routed elsewhere, these do not see what is not committed yet.
    await q.get(session, key="k")
    await q.find(session, content=True)
    await q.history(session, id=sent.id)
    await q.stats(session)


async def crew(here: Surrounding, *, workers: int, tasks: int, crashes: int) -> None:
    """Let workers race for tasks until none is left; some crash, and their leases run out.

    Each task must have been done by one worker, once.
    """
    q = here.queue
    await here.do(q.enqueue_many, [TaskSpec("work", n) for n in range(tasks)])
    start = here.twin.barrier(workers)

    async def work(holder: str) -> list[int]:
        done = []
        await start.wait()
        while claims := await here.do(q.claim, holder=holder, limit=BATCH):
            crashed = [c for c in claims if c.attempt == 1 and c.payload % (tasks // crashes) == 0]
            if crashed:
                # Awaited: another worker's sweep may have locked the row, and has to go on.
                await here.run(_lease_over(here, crashed))
                await here.do(q.reclaim)
            finished = [claim for claim in claims if claim not in crashed]
            done += [claim.payload for claim in finished]
            while finished:
                answers = await here.do(q.complete_many, finished)
                refused = [(c, one) for c, one in zip(finished, answers, strict=True) if not one]
                # A sweep that looked at an earlier claim of the task may have locked it.
                assert {one.reason for _, one in refused} <= {RefusalReason.BUSY}
                finished = [claim for claim, _ in refused]
        return done

    racers = [here.twin.spawn(work, f"w{number}") for number in range(workers)]
    done = Counter(payload for by_one in await asyncio.gather(*racers) for payload in by_one)
    assert done == dict.fromkeys(range(tasks), 1)
    rows = here.twin.sql("SELECT state, attempt, count(*) FROM tasks GROUP BY 1, 2 ORDER BY 2")
    assert rows == [("done", 1, tasks - crashes), ("done", 2, crashes)]
    assert dict(here.twin.sql("SELECT type, count(*) FROM task_events GROUP BY 1")) == {
        "created": tasks,
        "claimed": tasks + crashes,
        "reclaimed": crashes,
        "completed": tasks,
    }


def _lease_over(here: Surrounding, claims: list[Any]) -> Any:
    """Return the statement that lets the leases of claims be over since a second."""
    tasks = here.base.Task.__table__
    over = func.statement_timestamp() - timedelta(seconds=1)
    return (
        update(tasks)
        .where(tasks.c.id.in_([claim.id[1] for claim in claims]))
        .values(lease_expires_at=over)
    )
