"""Where a worker takes its tasks from: fair turns, and scopes that come and go."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta

import pytest

from sqla_taskqueue import Queue
from sqla_taskqueue.worker._sources import Sources
from tests.workers.hosts import Tenanted

LEASE = {"work": timedelta(minutes=1)}


@pytest.fixture
def sources():
    """Sources of a class whose scopes are to be found."""
    return Sources([Queue(Tenanted, "work")._core], None, LEASE)


def rows(tenants):
    """Return what the search for scopes finds."""
    return [(tenant, "work") for tenant in tenants]


def tenant(source):
    """Return whose tasks a source has."""
    return source.core.scope["tenant"]


def test_turns_go_round(sources):
    """Each that is due in turn; one that rests is left out."""
    sources.found(rows("abc"))
    assert [tenant(sources.ready(1.0)) for _ in range(6)] == list("abcabc")
    [_, b, _] = sources
    b.look_by(2.0)
    b.ready_at = 2.0
    assert [tenant(sources.ready(1.0)) for _ in range(4)] == list("acac")


def test_a_scope_that_comes_and_goes_takes_no_other_turn(sources):
    """A search between two turns changes nothing about whose turn it is."""
    turns = Counter()
    served = "b"
    for _ in range(1_000):
        # It has one task at a time: when that is worked on, nothing of it is found.
        sources.found(rows("bc" if served == "a" else "abc"))
        served = tenant(sources.ready(1.0))
        turns[served] += 1
    assert min(turns.values()) >= 250


def test_a_scope_that_was_forgotten_keeps_its_floor(sources):
    """It is looked at at once when it is found again."""
    sources.found(rows("ab"))
    [a, b] = sources
    a.floor.lanes[0] = ("here",)
    a.ready_at = 100.0
    sources.found(rows("b"))
    assert list(sources) == [b]
    sources.found(rows("ab"))
    assert {*sources} == {a, b}
    assert a.floor.lanes == {0: ("here",)}
    assert a.ready_at == 0.0


def test_not_all_floors_are_kept(sources):
    """Those of the last thousand scopes."""
    sources.found(rows(f"t{n}" for n in range(1_500)))
    first = next(iter(sources))
    sources.found([])
    sources.found(rows(f"t{n}" for n in range(1_500)))
    assert first not in list(sources)
    assert len(list(sources)) == 1_500


def test_searches_keep_to_their_share_though_they_are_asked_for(sources):
    """However many wake-ups come; one that comes during a search counts."""
    sources.begin_to_find()
    sources.end_to_find(10.0, 0.5, 1.0)
    assert sources.find_at == 20.0
    sources.wake("work")
    assert sources.find_at == 20.0
    sources.begin_to_find()
    sources.end_to_find(21.0, 0.001, 1.0)
    assert sources.find_at == 22.0
    sources.wake("work")
    assert sources.find_at == pytest.approx(21.02)
    sources.begin_to_find()
    sources.wake()
    sources.end_to_find(30.0, 0.01, 1.0)
    assert sources.find_at == pytest.approx(30.2)
    sources.wake("another")
    assert sources.find_at == pytest.approx(30.2)
