"""B01: whatever the planner does, no statement takes more rows than it was asked for."""

from __future__ import annotations

from datetime import timedelta

import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session

from sqla_taskqueue import Limits, Queue
from tests.plans.explain import MODES, WORST, configure, explain, nodes, only, recording
from tests.plans.filling import GRID, HOSTS, LOGGED, PAIR, TASK, WORD, make

every_mode = pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.split("_")[1])
several = pytest.mark.parametrize("priorities", [1, 5])

READY = 100
EXPIRED = {
    "state": "'claimed'",
    "lease_token": "gen_random_uuid()",
    "lease_expires_at": "statement_timestamp() - interval '1 minute'",
    "heartbeat_at": "statement_timestamp() - i * interval '1 second'",
    "claimed_at": "statement_timestamp() - i * interval '1 second'",
    "max_attempts": "20",
}


@pytest.fixture(
    scope="module",
    params=[(host, known) for host in HOSTS for known in (True, False)],
    ids=lambda param: f"{param[0].model.__name__}-{'analysed' if param[1] else 'unknown'}",
)
def host(request, database):
    """A host class whose table has several queues of tasks, with statistics or without.

    Every test rolls back, so that all find the same.
    """
    host, analysed = request.param
    make(database)
    for priorities in (1, 5):
        host.fill(database, READY, queue=f"'of {priorities}'", priority=f"i % {priorities}")
    for attempt in (1, 20):
        host.fill(database, READY, queue=f"'tried {attempt}'", attempt=f"{attempt}", **EXPIRED)
    if analysed:
        database.sql(f"ANALYZE {host.table}")
    return host


def prepare(database, host, **columns):
    """Fill the host's table with tasks of one queue."""
    make(database)
    host.fill(database, READY, **columns)


def keys(session, host, where):
    """Return the primary keys of the rows that fulfil a condition, as claims show them."""
    columns = ", ".join(f'"{name}"' for name in host.pk)
    rows = session.execute(text(f"SELECT {columns} FROM {host.table} WHERE {where}")).all()
    return {row[0] if len(row) == 1 else tuple(row) for row in rows}


def locked_in_vain(session, host, state):
    """Count rows that this transaction has locked and left in *state*."""
    return session.scalar(
        text(
            f"SELECT count(*) FROM {host.table} WHERE state = :state"
            " AND xmax::text = (pg_current_xact_id()::text::bigint % 4294967296)::text"
        ),
        {"state": state},
    )


@every_mode
@several
def test_a_claim_takes_exactly_its_limit(engine, host, mode, priorities):
    """Exactly min(limit, ready) tasks change state, those are returned, and no other is locked."""
    queue = host.queue_named(f"of {priorities}")
    for limit in (1, 5, 33, 100, 150):
        with Session(engine) as session:
            configure(session.connection(), {"plan_cache_mode": mode, **WORST})
            claims = queue.claim(session, holder="w", limit=limit)
            assert len(claims) == min(limit, READY)
            claimed = "state = 'claimed' AND queue LIKE 'of %'"
            assert keys(session, host, claimed) == {claim.id for claim in claims}
            assert locked_in_vain(session, host, "queued") == 0
            session.rollback()


def test_rows_locked_in_vain_are_noticed(database, engine):
    """The count that the other tests rely on sees a lock that led to nothing."""
    prepare(database, TASK)
    with Session(engine) as session:
        session.execute(text("SELECT id FROM tasks LIMIT 3 FOR NO KEY UPDATE"))
        assert locked_in_vain(session, TASK, "queued") == 3


def test_the_settings_are_bad_enough(database, engine):
    """Under the same settings a careless claim takes far more than its limit."""
    prepare(database, TASK)
    database.sql("ANALYZE tasks")
    with Session(engine) as session:
        configure(session.connection(), WORST)
        careless = text(
            "UPDATE tasks SET attempt = 1 WHERE id IN"
            " (SELECT id FROM tasks LIMIT 1 FOR NO KEY UPDATE SKIP LOCKED)"
        )
        assert session.execute(careless).rowcount > 1


@every_mode
@several
def test_locks_are_taken_once_for_each_priority(engine, host, mode, priorities):
    """Every row-locking node runs at most once per distinct priority."""
    queue = host.queue_named(f"of {priorities}")
    for limit in (1, 5, 100):
        with recording(engine) as sent, Session(engine) as session:
            queue.claim(session, holder="w", limit=limit)
            session.rollback()
        plan = explain(engine, only(sent, "UPDATE"), mode=mode, **WORST)
        locks = [node for node in nodes(plan) if node["Node Type"] == "LockRows"]
        assert locks
        for node in locks:
            assert node["Actual Loops"] <= priorities
            # An average over the loops, rounded by servers before 18.
            rows = node["Actual Rows"] * node["Actual Loops"]
            assert abs(rows - limit) <= node["Actual Loops"] / 2


@every_mode
@pytest.mark.parametrize("exhausted", [False, True])
def test_a_reclaim_takes_exactly_its_limit(engine, host, mode, exhausted):
    """A bounded sweep changes as many rows as it says, also where it ends tasks."""
    queue = host.queue_named("tried 20" if exhausted else "tried 1")
    for limit in (1, 5, 100):
        with Session(engine) as session:
            configure(session.connection(), {"plan_cache_mode": mode, **WORST})
            done = queue.reclaim(session, limit=limit)
            assert (done.failed if exhausted else done.requeued) == done.total == limit
            assert len(keys(session, host, "state <> 'claimed' AND queue LIKE 'tried%'")) == limit
            assert locked_in_vain(session, host, "claimed") == 0
            session.rollback()


@every_mode
@pytest.mark.parametrize("operation", ["heartbeat", "complete", "fail", "release", "snooze"])
def test_a_write_changes_one_row(engine, host, mode, operation):
    """The end of a claim touches the claim's own task, whatever the plan."""
    queue = host.queue_named("of 5")
    options = {"snooze": {"delay": timedelta(0)}}.get(operation, {})
    with Session(engine) as session:
        configure(session.connection(), {"plan_cache_mode": mode, **WORST})
        _, mine, *_ = queue.claim(session, holder="w", limit=10)
        before = dict(rows(session, host))
        assert getattr(queue, operation)(session, mine, **options)
        after = dict(rows(session, host))
        assert {key for key in before if before[key] != after[key]} == {mine.id}
        session.rollback()


def rows(session, host):
    """Return every row by its primary key."""
    for row in session.execute(text(f"SELECT * FROM {host.table}")).mappings():
        key = tuple(row[name] for name in host.pk)
        yield (key[0] if len(key) == 1 else key), dict(row)


# --- Claim order -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "kind", [TASK, LOGGED, PAIR, GRID, WORD], ids=lambda host: host.model.__name__
)
@every_mode
def test_claims_come_in_order(database, engine, kind, mode):
    """(priority, run_at, key), all ascending, within a batch and from one batch to the next."""
    prepare(
        database,
        kind,
        priority="(i * 7) % 3 - 1",
        run_at="statement_timestamp() - ((i * 13) % 4) * interval '1 minute'",
    )
    order = ", ".join(f'"{name}"' for name in kind.pk)
    expected = database.sql(f"SELECT {order} FROM {kind.table} ORDER BY priority, run_at, {order}")
    claimed = []
    with Session(engine) as session:
        configure(session.connection(), {"plan_cache_mode": mode})
        for limit in (1, 7, 30, 1, 200):
            claims = kind.queue.claim(session, holder="w", limit=limit)
            claimed += [one.id if isinstance(one.id, tuple) else (one.id,) for one in claims]
        session.rollback()
    assert claimed == expected


@pytest.mark.parametrize("kind", [TASK, WORD], ids=lambda host: host.model.__name__)
def test_ties_go_by_key(database, engine, kind):
    """Tasks of one transaction that are due at the same moment come in the order of their keys."""
    make(database)
    moment = database.scalar("SELECT statement_timestamp() - interval '1 second'")
    ids = [chr(97 + i % 26) * (1 + i % 3) + str(i) for i in range(40)]
    with Session(engine) as session, session.begin():
        for i in ids:
            kind.queue.enqueue(session, run_at=moment, id=i if kind is WORD else None)
    with Session(engine) as session, session.begin():
        claims = kind.queue.claim(session, holder="w", limit=100)
    claimed = [claim.id for claim in claims]
    assert claimed == sorted(claimed)
    assert len(claimed) == 40
    if kind is WORD:
        assert claimed == sorted(ids)


def test_a_bounded_queue_of_another_name_is_left_alone(database, engine):
    """A claim with the worst settings takes nothing of another queue or scope."""
    prepare(database, TASK)
    database.sql("ANALYZE tasks")
    elsewhere = Queue(TASK.model, "other", limits=Limits()).scope(**TASK.scope)
    other_scope = Queue(TASK.model).scope(project_hash="9f2c", role="tester")
    with Session(engine) as session:
        configure(session.connection(), WORST)
        assert elsewhere.claim(session, holder="w", limit=100) == []
        assert other_scope.claim(session, holder="w", limit=100) == []
        session.rollback()
