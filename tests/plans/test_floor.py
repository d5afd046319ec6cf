"""The claim floor: what a held snapshot keeps alive in the index is not walked again and again."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from uuid import uuid4

import psycopg
import pytest
from sqlalchemy.orm import Session

from sqla_taskqueue.worker._jobs import Job
from sqla_taskqueue.worker._upkeep import _oldest, _reclaim
from tests.plans.acts import Scene, worker_of
from tests.plans.explain import buffers, explaining
from tests.plans.filling import CELL, CLAIMED, TASK, make
from tests.servers import conninfo

DEAD = 20_000
LATELY = "statement_timestamp() - interval '1 day' + i * interval '1 millisecond'"
AFTERWARDS = "statement_timestamp() - interval '1 hour' + i * interval '1 millisecond'"


@pytest.fixture
def held(database):
    """A transaction of somebody else's, which still sees the tasks as they were."""
    make(database)
    for host in (TASK, CELL):
        host.fill(database, DEAD, run_at=LATELY, priority="i % 3")
        database.sql(f"ANALYZE {host.table}")
    with psycopg.connect(conninfo(database.url)) as connection:
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        connection.execute("SELECT 1 FROM pg_class LIMIT 1")
        for host in (TASK, CELL):
            database.sql(
                f"UPDATE {host.table} SET state = 'done', finished_at = now(), attempt = 1,"
                " claimed_at = now()"
            )
            host.fill(database, 60, run_at=AFTERWARDS, priority="i % 3")
            database.sql(f"VACUUM {host.table}")
        yield database
        connection.rollback()


def quoted(host):
    """Return the columns of the primary key as SQL."""
    return ", ".join(f'"{name}"' for name in host.pk)


@pytest.mark.slow
@pytest.mark.parametrize("host", [TASK, CELL], ids=lambda host: host.model.__name__)
def test_a_look_from_the_floor_skips_what_is_dead(held, engine, host):
    """It reads some pages for each task; a look from the beginning reads some for each dead one."""
    read = {}
    for look in ("full", "back", "floor"):
        with Session(engine) as session:
            scene = Scene(session, host, host.queue, [])
            taking, source, _ = worker_of(scene)
            if look != "full":
                # Where this worker's claims have ended, before the snapshot was taken.
                last = held.sql(
                    f"SELECT priority, run_at, {quoted(host)} FROM {host.table}"
                    " WHERE state = 'done' ORDER BY run_at DESC LIMIT 3"
                )
                for priority, run_at, *key in last:
                    row = [*key, "", None, 1, 1, None, None, priority, run_at]
                    source.floor.lanes[priority] = Job(source, row, uuid4()).position
                assert len(source.floor.lanes) == 3
            with explaining(engine) as explained:
                work = taking._work(source.model, [], source, look, 30, uuid4(), 0.0)
                _, claimed, _ = work(session.connection())
            session.rollback()
        assert len(claimed) == 30
        read[look] = max(buffers(one.plan) for one in explained)
    assert read["floor"] <= 300 + 35 * 30
    assert read["back"] <= 300 + 35 * 30  # five seconds back, a day ago
    assert read["full"] >= 3 * read["floor"]


@pytest.mark.slow
@pytest.mark.parametrize("host", [TASK, CELL], ids=lambda host: host.model.__name__)
def test_a_sweep_since_the_oldest_claim_skips_what_is_dead(held, engine, host):
    """The lease index has an entry for each claim that has ended; only a full sweep reads them."""
    held.sql(
        f"UPDATE {host.table} SET state = 'claimed', claimed_by = 'w', claimed_session = '',"
        " lease_token = gen_random_uuid(), claimed_at = now() - interval '1 hour',"
        " heartbeat_at = now(), lease_expires_at = now() - interval '1 minute' WHERE state = 'done'"
    )
    with psycopg.connect(conninfo(held.url)) as connection:
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        connection.execute("SELECT 1 FROM pg_class LIMIT 1")
        held.sql(
            f"UPDATE {host.table} SET state = 'done', lease_token = NULL, lease_expires_at = NULL"
            " WHERE state = 'claimed'"
        )
        held.sql(f"VACUUM {host.table}")
        host.fill(
            held, 5, **{**CLAIMED, "claimed_at": "now() - interval '5 minutes'", "key": "NULL"}
        )
        read = {}
        for look in ("full", "since"):
            with Session(engine) as session, explaining(engine) as explained:
                core = host.queue._core
                since = None if look == "full" else datetime.now(UTC) - timedelta(minutes=6)
                done = _reclaim(core, since, session.connection())
                assert done.total == 5
                session.rollback()
                assert _oldest(core, since, session.connection()) > datetime.now(UTC) - timedelta(
                    minutes=7
                )
                session.rollback()
            read[look] = max(buffers(one.plan) for one in explained)
        connection.rollback()
    assert read["since"] <= 300
    assert read["full"] >= 3 * read["since"]


@pytest.mark.parametrize("host", [TASK, CELL], ids=lambda host: host.model.__name__)
def test_what_came_in_below_the_floor_is_found_by_a_look_back(database, engine, host):
    """Three seconds below: not from the floor itself, but a little further back and in full."""
    make(database)
    host.fill(database, 5, run_at="statement_timestamp() - interval '3 seconds'")
    found = {}
    for look in ("floor", "back", "full"):
        with Session(engine) as session:
            taking, source, _ = worker_of(Scene(session, host, host.queue, []))
            [(now,)] = database.sql("SELECT statement_timestamp()")
            key = database.sql(f"SELECT {quoted(host)} FROM {host.table} LIMIT 1")[0]
            row = [*key, "", None, 1, 1, None, None, 0, now - timedelta(seconds=1)]
            source.floor.lanes[0] = Job(source, row, uuid4()).position
            work = taking._work(source.model, [], source, look, 30, uuid4(), 0.0)
            found[look] = len(work(session.connection())[1])
            session.rollback()
    assert found == {"floor": 0, "back": 5, "full": 5}
