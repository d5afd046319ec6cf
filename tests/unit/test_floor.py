"""The claim floor, against a table that is simulated: nothing is stranded, and looks have budgets."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sqla_taskqueue.worker._floor import Floor

BEGIN = datetime(2026, 1, 1, tzinfo=timezone.utc)  # noqa: UP017 - as drivers return it
TURN = 0.003
"""Seconds that a look takes by itself."""


class Table:
    """Queued tasks, how many dead entries there are, and what a look finds."""

    def __init__(self) -> None:
        self.queued: set[tuple[int, datetime, int]] = set()
        self.dead = 0
        self.number = 0

    def add(self, priority: int, run_at: datetime) -> None:
        self.number += 1
        self.queued.add((priority, run_at, self.number))

    def claim(self, look: str, floor: Floor, now: datetime, limit: int):
        """Claim as the statement does: lane by lane, each from its floor."""
        found = []
        for task in sorted(self.queued):
            priority, *position = task
            if position[0] > now or len(found) == limit:
                continue
            if look != "full":
                if priority not in floor.lanes:
                    continue
                begin, *rest = floor.lanes[priority]
                if look == "back":
                    begin = min(begin, now - timedelta(seconds=5))
                if tuple(position) <= (begin, *rest):
                    continue
            found.append(task)
        self.queued -= {*found}
        self.dead += len(found)
        return [(priority, tuple(position)) for priority, *position in found]


class Simulation:
    """A worker that looks, and a clock that goes on with each look."""

    def __init__(self, limit: int, cost: float = 0.0) -> None:
        self.table, self.floor, self.limit, self.cost = Table(), Floor(), limit, cost
        self.seconds = 100.0
        self.spent = {"full": 0.0, "back": 0.0, "floor": 0.0}

    @property
    def now(self) -> datetime:
        return BEGIN + timedelta(seconds=self.seconds)

    def look(self) -> list:
        kind = self.floor.look(self.seconds)
        extra = {"full": self.table.dead, "back": self.table.dead / 50, "floor": 0}[kind]
        took = TURN + extra * self.cost
        found = self.table.claim(kind, self.floor, self.now, self.limit)
        self.seconds += took
        self.floor.learn(kind, self.seconds, took, found, limit=self.limit)
        self.spent[kind] += took - TURN
        return found


late = st.floats(-8, 2)
"""How many seconds before a task's commit its transaction had begun; negative: due later."""
tasks = st.lists(st.tuples(st.integers(0, 3), late), max_size=12)


@settings(max_examples=200)
@given(batches=st.lists(tasks, max_size=25), limit=st.integers(1, 20))
def test_nothing_is_stranded(batches, limit):
    """Whatever commits late, in whichever lane: it is claimed within a bounded time."""
    simulation = Simulation(limit, cost=1e-6)
    number = 0
    for batch in batches:
        for priority, seconds in batch:
            simulation.table.add(priority, simulation.now + timedelta(seconds=seconds))
            number += 1
        simulation.look()
    for _ in range(10_000):
        if not simulation.table.queued:
            break
        simulation.look()
    assert not simulation.table.queued
    assert simulation.table.dead == number


@settings(max_examples=30)
@given(cost=st.floats(1e-6, 1e-4), limit=st.integers(10, 100))
def test_looks_below_the_floor_have_their_budget(cost, limit):
    """However much is dead: full looks a twentieth of the time, looks back a tenth."""
    simulation = Simulation(limit, cost)
    simulation.table.dead = 20_000
    begun = simulation.seconds
    for _ in range(3_000):
        for n in range(limit):
            simulation.table.add(n % 3, simulation.now - timedelta(seconds=1))
        simulation.look()
    time = simulation.seconds - begun
    # The first look has to be a full one, and each has a look's worth of margin.
    first = simulation.table.dead * cost
    assert simulation.spent["full"] - first <= time / 20 * 1.1 + first
    assert simulation.spent["back"] <= time / 10 * 1.1 + first / 50


def test_a_worker_begins_with_a_full_look():
    """It knows no lane; nor after a look that found nothing."""
    floor = Floor()
    assert floor.look(0.0) == "full"
    floor.learn("full", 1.0, 0.001, [], limit=10)
    assert floor.look(1.001) == "full"


@pytest.mark.parametrize(
    ("found", "limit", "expected"),
    [
        # More may be between: the floor is where the look ended, also if that is lower.
        ([(0, 3)], 1, 3),
        ([(0, 9)], 1, 9),
        # Nothing is left below: the higher one counts.
        ([(0, 3)], 2, 5),
        ([(0, 9)], 2, 9),
        ([(0, 7), (0, 8)], 3, 8),
        # Another lane's tasks do not matter.
        ([(1, 9)], 2, 5),
        ([], 2, 5),
    ],
)
def test_where_a_look_leaves_the_floor(found, limit, expected):
    """The highest claimed position, or the one before if all lanes were exhausted."""
    floor = Floor()
    floor.learn("full", 0.0, 0.001, [(0, (5,))], limit=1)
    floor.learn("back", 0.0, 0.001, [(lane, (place,)) for lane, place in found], limit=limit)
    assert floor.lanes[0] == (expected,)


def test_a_task_of_ones_own_that_is_queued_again_lowers_the_floor():
    """To just below it; one above the floor needs nothing, nor one in another lane."""
    floor = Floor()
    at = BEGIN + timedelta(seconds=5)
    floor.learn("full", 0.0, 0.001, [(0, (at, 7))], limit=1)
    floor.lower(1, (BEGIN, 1))
    floor.lower(0, (at, 8))
    assert floor.lanes == {0: (at, 7)}
    floor.lower(0, (BEGIN, 3))
    assert floor.lanes == {0: (BEGIN - timedelta(microseconds=1), 3)}


def test_full_looks_come_often_while_they_cost_nothing():
    """Every ten milliseconds, where floor and no floor are the same thing."""
    floor = Floor()
    floor.learn("full", 1.0, 0.001, [(0, (5,))], limit=1)
    floor.learn("floor", 1.001, 0.001, [(0, (6,))], limit=1)
    floor.learn("full", 1.02, 0.001, [(0, (7,))], limit=1)
    assert floor.next_full == pytest.approx(1.03)
    floor.learn("full", 2.0, 0.101, [(0, (7,))], limit=1)
    assert floor.next_full == pytest.approx(4.0)
    floor.learn("back", 2.0, 0.011, [(0, (7,))], limit=1)
    assert floor.next_back == pytest.approx(2.1)
    floor.learn("full", 2.0, 60.0, [(0, (7,))], limit=1)
    assert floor.next_full == pytest.approx(32.0)
