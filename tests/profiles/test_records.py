"""The means of the profiles: what is counted, what is compared, what is written."""

from __future__ import annotations

import asyncio
import tomllib
from functools import partial

import pytest

from sqla_taskqueue import Queue
from tests.profiles.counting import calls_of, count
from tests.profiles.operations import OPERATIONS
from tests.profiles.records import FILE, Records

RECORDS = """
["statements"]
"enqueue" = { plain = [2, 3] }

["Python 3.11, SQLAlchemy 2.1, psycopg"]
"enqueue" = { plain = [100, 200] }
"forgotten" = { plain = [1, 2] }
"""
CALLS = "Python 3.11, SQLAlchemy 2.1, psycopg"


def test_every_operation_is_profiled():
    """Whatever a queue does is counted: a new method wants a line in ``operations.py``."""
    methods = {
        name for name in dir(Queue) if not name.startswith("_") and callable(getattr(Queue, name))
    }
    assert methods == {operation.method for operation in OPERATIONS}


# --- Counting ----------------------------------------------------------------------------------


def three_calls():
    """Call two built-in functions."""
    return len("".upper())


async def test_calls_of_python_and_of_builtins_count():
    """The function that is called counts, and so does what it calls; nothing else."""
    assert await count(three_calls) == 3


async def test_what_the_event_loop_does_does_not_count():
    """Of a coroutine its own steps count, and not what runs while it waits."""

    async def one_call():
        pass

    async def waits(future):
        await future
        three_calls()

    async def counted(meanwhile):
        future = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_soon(meanwhile, future)
        return await count(partial(waits, future))

    def quick(future):
        future.set_result(None)

    def busy(future):
        for _ in range(100):
            three_calls()
        future.set_result(None)

    assert await counted(quick) == await counted(busy)


@pytest.mark.parametrize("driver", ["psycopg", "asyncpg"], indirect=True)
@pytest.mark.parametrize("name", ["enqueue", "complete", "claim of 10"])
async def test_a_count_is_the_same_every_time(twin, name):
    """Twenty counts in a row do not differ by one call."""
    [operation] = [operation for operation in OPERATIONS if operation.name == name]
    assert len(set(await calls_of(twin, operation, "logged", "session", times=20))) == 1


# --- Comparing ---------------------------------------------------------------------------------


@pytest.mark.parametrize("counted", [[95, 190], [100, 200], [105, 210]])
def test_a_small_difference_is_tolerated(counted):
    """Calls may differ by the tolerance, up and down."""
    records = Records(RECORDS)
    assert not records.differences(CALLS, "enqueue", {"plain": counted}, tolerance=0.05)


@pytest.mark.parametrize("counted", [94, 106])
def test_a_larger_difference_is_told(counted):
    """A line says which operation, what was counted and what is recorded."""
    counts = {"plain": [counted, 200]}
    [line] = Records(RECORDS).differences(CALLS, "enqueue", counts, tolerance=0.05)
    assert line == f"enqueue (plain, session): counted {counted}, recorded 100; {CALLS}"


def test_statements_may_not_differ_at_all():
    """Without a tolerance one more is a difference."""
    assert Records(RECORDS).differences("statements", "enqueue", {"plain": [2, 4]})
    assert not Records(RECORDS).differences("statements", "enqueue", {"plain": [2, 3]})


@pytest.mark.parametrize(
    ("section", "operation", "counts"),
    [
        (CALLS, "claim", {"plain": [1, 2]}),
        (CALLS, "enqueue", {"plain": [100, 200], "logged": [1, 2]}),
        (CALLS, "enqueue", {}),
        ("Python 4.0", "enqueue", {"plain": [100, 200]}),
    ],
)
def test_what_is_not_recorded_or_not_counted_is_a_difference(section, operation, counts):
    """Nothing is missing on either side."""
    assert len(Records(RECORDS).differences(section, operation, counts, tolerance=0.05)) == 2


# --- Writing -----------------------------------------------------------------------------------


def test_records_are_written_as_they_are_read():
    """The file is what the command writes."""
    assert str(Records(FILE.read_text())) == FILE.read_text()


def test_new_counts_are_written_and_forgotten_operations_are_not():
    """What was noted replaces what was recorded, and the rest stays."""
    records = Records(RECORDS)
    records.note(CALLS, "enqueue", {"plain": [101, 201]})
    records.note("Python 3.12, SQLAlchemy 2.1, psycopg", "enqueue", {"plain": [1, 2]})
    assert tomllib.loads(str(records)) == {
        "statements": {"enqueue": {"plain": [2, 3]}},
        CALLS: {"enqueue": {"plain": [101, 201]}},
        "Python 3.12, SQLAlchemy 2.1, psycopg": {"enqueue": {"plain": [1, 2]}},
    }
