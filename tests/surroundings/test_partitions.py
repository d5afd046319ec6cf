"""Hash-partitioned tables: each tenant's tasks live in one partition, and are looked for there."""

from __future__ import annotations

from datetime import timedelta

from sqlalchemy import text

from sqla_taskqueue import TaskSpec
from tests.surroundings.application import PARTITIONS
from tests.surroundings.kinds import OTHER, TENANT, Partitioned, kinds

partitioned = kinds(Partitioned)

TOUCHED = """
SELECT DISTINCT c.relname FROM pg_locks AS l JOIN pg_class AS c ON c.oid = l.relation
 WHERE l.pid = pg_backend_pid() AND l.locktype = 'relation' AND c.relname ~ '^tasks_[0-9]$'
"""


async def touched(session):
    """Return the partitions of tasks that the transaction has looked at."""
    return {*(await session.execute(text(TOUCHED))).scalars()}


def partition_of(here, tenant):
    """Return where a tenant's tasks are."""
    rows = here.twin.sql(
        "SELECT DISTINCT tableoid::regclass::text FROM tasks WHERE tenant_id = %(t)s", t=tenant
    )
    [(partition,)] = rows
    return partition


@partitioned
async def test_tasks_and_events_are_spread(here):
    """Rows are in the partitions, four of each table, a tenant's own in one."""
    here.twin.sql("INSERT INTO tenants (id, paid) SELECT n, 0 FROM generate_series(10, 29) AS n")
    for tenant in range(10, 30):
        await here.do(here.queue_of(tenant).enqueue_many, [TaskSpec("work", n) for n in range(3)])
    for table, tenant in (("tasks", "tenant_id"), ("task_events", "task_tenant_id")):
        spread = here.twin.sql(
            f"SELECT tableoid::regclass, count(*) AS n, count(DISTINCT {tenant}) AS tenants FROM {table} GROUP BY 1"
        )
        assert len(spread) == PARTITIONS
        assert sum(row.n for row in spread) == 60
        assert sum(row.tenants for row in spread) == 20


@partitioned
async def test_one_tenant_is_one_partition(here):
    """What a tenant's own queue does opens no other tenant's partition."""
    q = here.queue
    specs = [TaskSpec("work", n, key=f"k{n}") for n in range(4)]
    await here.do(q.enqueue_many, specs)
    await here.do(here.queue_of(OTHER).enqueue_many, specs)
    home = {partition_of(here, TENANT)}
    assert home != {partition_of(here, OTHER)}

    async def alone(method, *args, **options):
        async with here.begin() as session:
            answer = await method(session, *args, **options)
            assert answer
            assert await touched(session) == home, method
        return answer

    [one, two, three] = await alone(q.claim, holder="w1", limit=3)
    assert [claim.payload for claim in (one, two, three)] == [0, 1, 2]
    await alone(q.claim_task, key="k3", holder="w1")
    await alone(q.heartbeat, one)
    await alone(q.complete, one)
    await alone(q.fail, two)
    await alone(q.release, three)
    await alone(q.cancel, key="k3")
    await alone(q.retry, key="k3")
    await alone(q.get, key="k0")
    await alone(q.find)
    await alone(q.stats)
    await alone(q.prune, older_than=timedelta(0))


@partitioned
async def test_every_partition_has_the_indexes(here):
    """The library's indexes are made on the partitioned table, and so on each partition."""
    for index in here.base.Task.__table__.indexes:
        parts = here.twin.sql(
            "SELECT inhrelid::regclass FROM pg_inherits WHERE inhparent = %(index)s::regclass",
            index=index.name,
        )
        assert len(parts) == PARTITIONS, index.name
