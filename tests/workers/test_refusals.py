"""What the host's triggers and constraints refuse to one task costs no other task anything."""

from __future__ import annotations

import asyncio
import gc
import logging

import pytest

from sqla_taskqueue import Queue
from tests.workers.hosts import Tenanted
from tests.workers.working import MS, NEVER, SECOND, Works, running

REFUSE = """
CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
  RAISE EXCEPTION 'not this one';
END $$;
CREATE TRIGGER refuse BEFORE UPDATE ON tasks FOR EACH ROW
  WHEN (OLD.payload ->> 'n' = '7' AND {condition}) EXECUTE FUNCTION refuse();
"""


@pytest.fixture
def refusing(works):
    """Make a trigger that refuses updates of task 7; the tables are made anew afterwards."""

    def refuse(condition):
        works.twin.sql(REFUSE.format(condition=condition))

    yield refuse
    works.twin.database.reset()


async def test_an_end_that_cannot_be_written_keeps_no_other(works, refusing, caplog):
    """The others are written one by one; that task is left to its lease, and named."""
    refusing("NEW.state = 'done'")
    together = asyncio.Event()

    @works.handlers.handler
    async def work(n: int) -> None:
        works.started.append(n)
        if len(works.started) == 20:
            together.set()
        await together.wait()

    ids = await works.send("work", *({"n": n} for n in range(20)))
    async with works.worker(concurrency=20, lease=SECOND, poll=50 * MS):
        await works.until(done=19, claimed=1)
        # And the worker goes on, and lets the lease run out.
        await works.send("work", {"n": 20})
        await works.until(done=20, claimed=1)
        await works.twin.until(
            lambda: works.twin.scalar(
                "SELECT lease_expires_at < statement_timestamp() FROM tasks WHERE state = 'claimed'"
            )
        )
    assert sorted(works.started) == [*range(21)]
    said = [r for r in caplog.records if "cannot be written" in r.message]
    assert len(said) == 1
    assert str(ids[7]) in said[0].message
    assert said[0].levelno == logging.ERROR


async def test_a_lease_that_cannot_be_renewed_costs_no_other(works, refusing, caplog):
    """However long it goes on, all the others are renewed."""
    refusing("OLD.heartbeat_at < NEW.heartbeat_at AND NEW.state = 'claimed'")
    go = asyncio.Event()

    @works.handlers.handler
    async def work(n: int) -> None:
        works.started.append(n)
        await go.wait()

    await works.send("work", *({"n": n} for n in range(10)))
    async with works.worker(lease=300 * MS):
        await works.twin.until(lambda: len(works.started) == 10)
        await works.twin.until(
            lambda: (
                works.twin.sql(
                    "SELECT count(*) FROM tasks WHERE heartbeat_at > claimed_at + interval '1 second'"
                )
                == [(9,)]
            )
        )
        go.set()
        await works.until(done=10)
    assert works.twin.sql("SELECT DISTINCT attempt FROM tasks") == [(1,)]
    assert any("cannot be renewed" in record.message for record in caplog.records)


async def test_a_retry_in_a_scope_that_was_forgotten_meanwhile(twin):
    """While its only task was worked on, a search found nothing there; it is met all the same."""
    works = Works(twin, Queue(Tenanted, "work"))
    go, begun = asyncio.Event(), []

    @works.handlers.handler(retry=lambda error, attempt: 100 * MS)
    async def work() -> None:
        begun.append(1)
        if len(begun) == 1:
            await go.wait()
            raise ValueError("once")

    async with works.worker() as worker:
        await works.send("work", None, scope={"tenant": "a"})
        await twin.until(lambda: begun)
        [group] = worker._run._turn._groups
        worker._run._turn.wake()
        await twin.until(lambda: list(group) == [])
        go.set()
        await works.until(done=1)
    assert len(begun) == 2


async def test_the_garbage_collector_is_given_back_as_it_was(works):
    """Whichever of two workers ends last."""
    before = gc.get_threshold()

    @works.handlers.handler
    async def work() -> None: ...

    first, second = works.new_worker(poll=NEVER), works.new_worker(poll=NEVER)
    async with running(second):
        async with running(first):
            await works.send("work", None)
            await works.until(done=1)
            assert gc.get_threshold()[0] >= 100_000
        assert gc.get_threshold()[0] >= 100_000
        await works.send("work", None)
        await works.until(done=2)
    assert gc.get_threshold() == before
