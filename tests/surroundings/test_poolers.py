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


LEAVING = {
    "SELECT pg_advisory_lock(1)": "lock",
    "SELECT set_config('work_mem', '1MB', false)": "work_mem",
    "LISTEN left_behind": "LISTEN",
    "CREATE TEMPORARY TABLE left_behind ()": "left_behind",
    "DECLARE left_behind CURSOR WITH HOLD FOR SELECT 1": "cursor",
}
TIDYING = (
    "SELECT pg_advisory_unlock_all()",
    "RESET work_mem",
    "UNLISTEN *",
    "DROP TABLE IF EXISTS left_behind",
    "CLOSE ALL",
)


async def pid_of(session):
    """Return which connection to the server a transaction has."""
    return (await session.execute(text("SELECT pg_backend_pid()"))).scalar_one()


async def on_all(here, statement):
    """Run a statement on all of the connections, which are taken at once; return all rows."""
    async with here.begin() as one, here.begin() as other:
        assert await pid_of(one) != await pid_of(other)
        results = [await session.execute(text(statement)) for session in (one, other)]
        return [row for result in results if result.returns_rows for row in result]


@poolers
async def test_each_transaction_has_another_connection(here):
    """The surrounding is what it says: what one transaction leaves, the next does not have."""
    pids = [await here.do(pid_of) for _ in range(2 * SERVERS)]
    assert len({*pids}) == SERVERS
    assert pids == pids[:SERVERS] * 2


@poolers
async def test_what_is_left_behind_is_seen(here):
    """The check below finds what a library could leave."""
    async with here.begin() as session:
        for statement in LEAVING:
            await session.execute(text(statement))
    assert {what for (what,) in await on_all(here, LEFT)} == {*LEAVING.values()}
    for statement in TIDYING:
        await on_all(here, statement)
    assert await on_all(here, LEFT) == []


@poolers
async def test_no_operation_leaves_anything_behind(here):
    """No session advisory lock, setting, temporary table, LISTEN or cursor, on any connection."""
    for _ in range(SERVERS):
        await here.do(every_operation, here)
    assert await on_all(here, LEFT) == []


@poolers
async def test_a_crew_does_each_task_once(here):
    """Four workers share two connections: each of 500 tasks is done, by one of them, once."""
    await crew(here, workers=4, tasks=500, crashes=10)
