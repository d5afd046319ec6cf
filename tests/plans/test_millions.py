"""Lists and counts beside two million tasks, for a class with the indexes for them."""

from __future__ import annotations

from datetime import timedelta

import pytest
from sqlalchemy.orm import Session

from tests.plans.explain import buffers, explaining, scans
from tests.plans.filling import LISTED, make

pytestmark = pytest.mark.slow

YESTERDAY = "statement_timestamp() - interval '1 day' - i * interval '1 millisecond'"
TOMORROW = "statement_timestamp() + interval '1 day' + i * interval '1 second'"
ENDED = {"finished_at": YESTERDAY, "claimed_at": YESTERDAY, "run_at": YESTERDAY}


@pytest.fixture(scope="module")
def millions(database):
    """Nearly all done, few failed; the payloads are large enough to be stored elsewhere."""
    make(database)
    large = "jsonb_build_object('text', (SELECT string_agg(md5(i || '-' || n), '')"
    large += " FROM generate_series(1, 200) AS n))"
    for _ in range(10):
        LISTED.fill(database, 197_000, state="'done'", priority="i % 5", **ENDED)
    LISTED.fill(database, 20_000, run_at=TOMORROW, priority="i % 5")
    LISTED.fill(database, 10_000, state="'blocked'", pending="1")
    LISTED.fill(database, 100, state="'failed'", payload=large, result=large, **ENDED)
    # Before the log is flushed, VACUUM does not yet know what is visible to all.
    database.sql("CHECKPOINT")
    database.sql("VACUUM ANALYZE listed")


@pytest.mark.usefixtures("millions")
def test_counts_read_a_part_of_the_table(engine):
    """What is live is counted exactly, and what ended up to the limit: a part of the table."""
    with Session(engine) as session, explaining(engine) as explained:
        stats = LISTED.queue.stats(session)
    assert (stats.queued, stats.blocked, stats.failed, stats.done) == (
        20_000,
        10_000,
        100,
        100_000,
    )
    assert stats.capped == {"done"}
    for one in explained:
        # 130,000 entries, a hundred of which are on a page; or, of what nearly all rows are, the
        # first of the table's 70,000 pages.
        assert buffers(one.plan) <= 8_000, one


@pytest.mark.usefixtures("millions")
@pytest.mark.parametrize("state", [None, "failed", "queued", ("failed", "cancelled"), "claimed"])
def test_a_page_reads_its_own_rows(engine, state):
    """Of each state no more entries than the page has rows; no payload, unless it is asked for."""
    read = {}
    for content in (False, True):
        with Session(engine) as session, explaining(engine) as explained:
            page = LISTED.queue.find(session, state=state, content=content)
        for one in explained:
            used = set(scans(one.plan, "listed"))
            assert used <= {"ix_listed_list", "listed_pkey"}, one
            assert buffers(one.plan) <= 1_500, one
        with Session(engine) as session, explaining(engine) as explained:
            LISTED.queue.find(session, state=state, content=content, after=page.next)
        read[content] = explained
    assert all("listed.payload" not in one.text for one in read[False])
    assert all("listed.payload" in one.text for one in read[True])


@pytest.mark.usefixtures("millions")
def test_prune_that_finds_nothing_reads_next_to_nothing(engine):
    """Nothing is old enough: one look at the beginning of the index."""
    with Session(engine) as session, explaining(engine) as explained:
        assert LISTED.queue.prune(session, older_than=timedelta(days=9)) == 0
    for one in explained:
        assert buffers(one.plan) <= 20, one
