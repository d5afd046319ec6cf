"""Transaction poolers (B21): nothing is left on a connection that the next transaction gets."""

from __future__ import annotations

from sqlalchemy import text

from tests.surroundings.kinds import Pooled, Switching, kinds
from tests.surroundings.life import crew, every_operation
from tests.surroundings.pgbouncer import SERVERS

poolers = kinds(Switching, Pooled)

# What a session may leave on its connection. PgBouncer itself tells each client's name.
LEFT = """
SELECT 'lock' FROM pg_locks WHERE pid = pg_backend_pid() AND locktype = 'advisory'
UNION ALL SELECT 'LISTEN' FROM pg_listening_channels()
UNION ALL SELECT 'cursor' FROM pg_cursors WHERE is_holdable
UNION ALL SELECT relname FROM pg_class WHERE relpersistence = 't'
UNION ALL SELECT name FROM pg_settings
 WHERE source = 'session' AND setting <> reset_val AND name <> 'application_name'
"""


async def pid_of(session):
    """Return which connection to the server a transaction has."""
    return (await session.execute(text("SELECT pg_backend_pid()"))).scalar_one()


async def left_behind(here):
    """Return what is left on all of the connections, which are taken at once."""
    async with here.begin() as one, here.begin() as other:
        assert await pid_of(one) != await pid_of(other)
        return [
            row for session in (one, other) for row in (await session.execute(text(LEFT))).all()
        ]


@poolers
async def test_each_transaction_has_another_connection(here):
    """The surrounding is what it says: what one transaction leaves, the next does not have."""
    pids = [await here.do(pid_of) for _ in range(2 * SERVERS)]
    assert len({*pids}) == SERVERS
    assert pids == pids[:SERVERS] * 2


@poolers
async def test_what_is_left_behind_is_seen(here):
    """The check below finds what a library could leave."""
    await here.do(pid_of)
    async with here.begin() as session:
        await session.execute(text("SELECT pg_advisory_lock(1)"))
        await session.execute(text("SELECT set_config('work_mem', '1MB', false)"))
        await session.execute(text("LISTEN left_behind"))
        await session.execute(text("CREATE TEMPORARY TABLE left_behind ()"))
        await session.execute(text("DECLARE c CURSOR WITH HOLD FOR SELECT 1"))
        pid = await pid_of(session)
    found = {what for (what,) in await left_behind(here)}
    here.twin.database.terminate(pid)
    assert found == {"lock", "LISTEN", "cursor", "left_behind", "work_mem"}


@poolers
async def test_no_operation_leaves_anything_behind(here):
    """No session advisory lock, setting, temporary table, LISTEN or cursor, on any connection."""
    for _ in range(SERVERS):
        await here.do(every_operation, here)
    assert await left_behind(here) == []


@poolers
async def test_a_crew_does_each_task_once(here):
    """Four workers share two connections: each of 500 tasks is done, by one of them, once."""
    await crew(here, workers=4, tasks=500, crashes=10)
