"""B02, small: which index each statement uses beside much history and many future tasks."""

from __future__ import annotations

from uuid import uuid4

import pytest
from sqlalchemy.orm import Session

from tests.plans.explain import MODES, explain, only, recording, removed, scans
from tests.plans.filling import AUDITED, CELL, GRID, LOGGED, PAIR, TASK, make

every_host = pytest.mark.parametrize(
    "host", [TASK, LOGGED, PAIR, GRID], ids=lambda host: host.model.__name__
)
DONE, LATER, DUE = 20_000, 5_000, 100
YESTERDAY = "statement_timestamp() - interval '1 day' - i * interval '1 second'"
TOMORROW = "statement_timestamp() + interval '1 day' + i * interval '1 second'"


@pytest.fixture(scope="module", params=["analysed", "empty", "unknown"])
def filled(request, database):
    """Tables with history; statistics as they are, of the empty tables, or none at all."""
    hosts = (TASK, LOGGED, PAIR, GRID, AUDITED, CELL)
    make(database)
    if request.param == "empty":
        for host in hosts:
            database.sql(f"ANALYZE {host.table}")
    for host in hosts:
        host.fill(
            database,
            DONE,
            state="'done'",
            run_at=YESTERDAY,
            priority="i % 5",
            key="'done-' || i",
            finished_at=YESTERDAY,
            claimed_at=YESTERDAY,
        )
        host.fill(database, LATER, run_at=TOMORROW, priority="i % 5", key="'later-' || i")
        host.fill(database, DUE, run_at=YESTERDAY, priority="i % 5", key="'due-' || i")
        host.fill(
            database,
            DUE,
            state="'claimed'",
            lease_token="gen_random_uuid()",
            lease_expires_at=YESTERDAY,
            heartbeat_at=YESTERDAY,
            claimed_at=YESTERDAY,
            claimed_by="'w'",
            claimed_session="''",
            attempt="1",
            key="'held-' || i",
        )
        if request.param == "analysed":
            database.sql(f"ANALYZE {host.table}")
    return request.param


def index(host, name):
    """Return the name of one of the library's indexes."""
    return f"ix_{host.table}_{name}"


def primary(host):
    """Return the name of the primary key's index."""
    return f"{host.table}_pkey"


def plans(engine, beginning, act):
    """Return the plans of what *act* sends in a session, generic and custom."""
    with recording(engine) as sent, Session(engine) as session:
        act(session)
        session.rollback()
    return [explain(engine, only(sent, beginning), mode=mode) for mode in MODES]


@pytest.mark.usefixtures("filled")
@pytest.mark.parametrize(
    "host", [TASK, LOGGED, PAIR, GRID, AUDITED, CELL], ids=lambda host: host.model.__name__
)
@pytest.mark.parametrize("limit", [1, 10, 100])
def test_a_claim_reads_the_claim_index(engine, host, limit):
    """No sequential scan, and few rows read in vain, beside 25,000 tasks that are not due."""
    for plan in plans(
        engine, "UPDATE", lambda session: host.queue.claim(session, holder="w", limit=limit)
    ):
        assert set(scans(plan, host.table)) == {index(host, "claim"), primary(host)}
        assert removed(plan) <= 10 * limit


@pytest.mark.usefixtures("filled")
@every_host
def test_a_reclaim_reads_the_lease_index(engine, host):
    """The sweep looks at live claims, not at the table."""
    with recording(engine) as sent, Session(engine) as session:
        assert host.queue.reclaim(session, limit=50).requeued == 50
        assert host.queue.reclaim(session).requeued == 50
        session.rollback()
    sweeps = [one for one in sent if "UPDATE" in one.text]
    assert len(sweeps) == 3
    for sweep in sweeps:
        for mode in MODES:
            read = scans(explain(engine, sweep, mode=mode), host.table)
            assert index(host, "lease") in read
            assert set(read) <= {index(host, "lease"), primary(host)}


@pytest.mark.usefixtures("filled")
@every_host
@pytest.mark.parametrize("operation", ["complete", "heartbeat", "release", "fail"])
def test_the_end_of_a_claim_reads_the_primary_key(engine, host, operation):
    """A write by id finds its row by the primary key, and reads no other."""

    def act(session):
        [claim] = host.queue.claim(session, holder="w")
        with recording(engine) as inner:
            assert getattr(host.queue, operation)(session, claim)
        act.sent = only(inner, "UPDATE")

    with Session(engine) as session:
        act(session)
        session.rollback()
    for mode in MODES:
        plan = explain(engine, act.sent, mode=mode)
        assert scans(plan, host.table) == [primary(host)]
        assert removed(plan) <= 1


@pytest.mark.usefixtures("filled")
@every_host
def test_a_key_is_found_by_the_key_index(engine, host):
    """A repeated enqueue, a write by key and a read by key use the index of keys."""
    acts = [
        lambda s: host.queue.enqueue(s, key="done-77", id=new_id(host)),
        lambda s: host.queue.get(s, key="done-77"),
        lambda s: host.queue.complete(s, key="held-7", holder="w"),
        lambda s: host.queue.heartbeat(s, key="held-7", holder="w"),
        lambda s: host.queue.cancel(s, key="later-7"),
    ]
    for act in acts:
        with recording(engine) as sent, Session(engine) as session:
            assert act(session)
            session.rollback()
        asked = [one for one in sent if "key = %(" in one.text]
        assert asked
        for one in asked:
            for mode in MODES:
                plan = explain(engine, one, mode=mode)
                assert index(host, "key") in scans(plan, host.table)
                assert removed(plan) <= 1


def new_id(host):
    """Return a primary key that no task has, where the host must make one."""
    if host in (TASK, LOGGED):
        return uuid4()
    return 10**6 if host is PAIR else (10**6, 10**6)


@pytest.mark.usefixtures("filled")
@every_host
def test_a_unique_key_is_found_by_its_index(engine, host):
    """The look-up of a live task with the same unique key reads one row."""
    with recording(engine) as sent, Session(engine) as session:
        host.queue.enqueue(session, unique_key="u", id=new_id(host))
        other = (10**6, 7) if host is GRID else 10**6 + 1 if host is PAIR else uuid4()
        assert not host.queue.enqueue(session, unique_key="u", id=other).created
        session.rollback()
    asked = only([one for one in sent if one.text.startswith("SELECT")], "unique_key = %(")
    for mode in MODES:
        assert index(host, "unique") in scans(explain(engine, asked, mode=mode), host.table)
