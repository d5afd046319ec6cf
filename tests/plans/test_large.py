"""B02: no statement grows with a table's history, its future, or the age of its statistics."""

from __future__ import annotations

import pytest
from sqlalchemy.orm import Session

from tests.plans.acts import ACTS, WORKER, Scene
from tests.plans.explain import buffers, explaining, nodes, scans
from tests.plans.filling import CELL, LISTED, TASK, YESTERDAY, grow, make

DONE, LATER, BLOCKED = 200_000, 200_000, 100_000
HOSTS = (TASK, CELL, LISTED)


@pytest.fixture(scope="module")
def filled(database):
    """Tables that were analysed while they were small, and have grown since."""
    make(database)
    for host in HOSTS:
        # What a class with further indexes has to show needs no such mass.
        done, later, blocked = (n // (10 if host is LISTED else 1) for n in (DONE, LATER, BLOCKED))
        host.fill(database, 10, run_at=YESTERDAY)
        database.sql(f"ANALYZE {host.table}")
        grow(database, host, done, later, blocked)
    return database


@pytest.fixture(scope="module", params=["stale", "missing", "fresh"])
def statistics(request, filled):
    """Statistics of the small tables, none at all, or those of the tables as they are."""
    for host in HOSTS:
        if request.param == "missing":
            filled.sql(
                f"DELETE FROM pg_statistic WHERE starelid = '{host.table}'::regclass;"
                " UPDATE pg_class SET reltuples = -1, relpages = 0"
                f" WHERE oid = '{host.table}'::regclass"
            )
        elif request.param == "fresh":
            # Before the log is flushed, VACUUM does not yet know what is visible to all.
            filled.sql("CHECKPOINT")
            filled.sql(f"VACUUM ANALYZE {host.table}")
    return request.param


@pytest.mark.parametrize("host", HOSTS, ids=lambda host: host.model.__name__)
@pytest.mark.parametrize("act", ACTS, ids=str)
def test_a_statement_reads_what_it_is_about(engine, statistics, host, act):
    """By the intended indexes, few pages for each row, locking no row that it does not return."""
    queue = host.queue_named("last" if act.last else "default")
    with Session(engine) as session:
        claims = queue.claim(session, holder=WORKER, limit=10)
        with explaining(engine) as explained:
            act.play(Scene(session, host, queue, claims))
        session.rollback()
    for one in explained:
        assert_lean(one, host, act, statistics)


def assert_lean(one, host, act, statistics):
    """Assert that a statement was run the way it is meant to be."""
    used = {name.removeprefix(f"ix_{host.table}_") for name in scans(one.plan, host.table)}
    used = {name.removeprefix(f"{host.table}_") for name in used if "_events_" not in name}
    locks = [node for node in nodes(one.plan) if node["Node Type"] == "LockRows"]
    # A turn that claims nothing returns one row with all the numbers.
    returned = 10 if act.name.endswith("careful-none") else one.plan["Actual Rows"]
    for lock in locks:
        # An average over the loops, rounded by servers before 18.
        locked = lock["Actual Rows"] * lock["Actual Loops"]
        assert abs(locked - returned) <= lock["Actual Loops"] / 2, one
    if act.name == "stats" or (act.extra and act.extra not in host.model.__extra_indexes__):
        # The planner's choice, which may be to read the table: once for what is queued, a third
        # of these rows, and once for all that is neither queued nor claimed.
        read = [node for node in nodes(one.plan) if node["Node Type"] == "Seq Scan"]
        assert len(read) <= (2 if act.name == "stats" else 1), one
        return
    assert used <= act.indexes, one
    most = 300 + 35 * act.rows
    if host is CELL and statistics == "missing" and "lease" in act.indexes:
        # Without statistics the planner also reads the key's index of the tenant, and combines.
        most += 2 * pages(one.plan, "cells_pkey")
    assert buffers(one.plan) <= most, one
    if act.name.startswith("claim-"):
        [lock] = locks
        assert buffers(lock) <= 100 + 10 * act.rows, one


def pages(plan, index):
    """Return how many pages the scans of an index looked at."""
    return sum(buffers(node) for node in nodes(plan) if node.get("Index Name") == index)
