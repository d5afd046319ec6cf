"""UUIDs of version 7: their form, and that they only ever grow."""

from __future__ import annotations

import itertools
import os
import threading
import time
import uuid
import warnings

import pytest

from sqla_taskqueue import ids, uuid7

MILLISECOND = 1_000_000


@pytest.fixture
def clock(monkeypatch):
    """A clock that the test sets, and a generator of its own."""

    class Clock:
        now = 1_700_000_000_000 * MILLISECOND

    monkeypatch.setattr(ids.time, "time_ns", lambda: Clock.now)
    return Clock


def milliseconds(value):
    """Return the time that a UUID carries."""
    return value.int >> 80


def test_version_and_variant():
    """Every id has the version and the variant of RFC 9562."""
    for _ in range(1_000):
        made = uuid7()
        assert made.version == 7
        assert made.variant == uuid.RFC_4122


def test_the_time_comes_first():
    """The first 48 bits are the Unix time in milliseconds."""
    before = time.time_ns() // MILLISECOND
    made = ids._Generator()()
    assert before <= milliseconds(made) <= time.time_ns() // MILLISECOND


def test_ids_are_strictly_increasing():
    """A long run of ids is sorted, without a repetition."""
    made = [uuid7() for _ in range(20_000)]
    assert all(a < b for a, b in itertools.pairwise(made))


def test_ids_increase_within_a_millisecond(clock):
    """While the clock stands still the random part is counted up."""
    generate = ids._Generator()
    made = [generate() for _ in range(5_000)]
    assert all(a < b for a, b in itertools.pairwise(made))
    assert {milliseconds(one) for one in made} == {clock.now // MILLISECOND}


def test_ids_increase_when_the_clock_goes_back(clock):
    """A clock set back by an hour does not make a smaller id."""
    generate = ids._Generator()
    first = generate()
    clock.now -= 3_600_000 * MILLISECOND
    second = generate()
    clock.now += 3_600_001 * MILLISECOND
    third = generate()
    assert first < second < third
    assert milliseconds(second) == milliseconds(first)
    assert milliseconds(third) == milliseconds(first) + 1


def test_a_full_counter_moves_to_the_next_millisecond(clock):
    """When the random part is used up the id borrows from the future, and still grows."""
    generate = ids._Generator()
    first = generate()
    generate._counter = ids._RANDOM_MASK
    second = generate()
    third = generate()
    assert first < second < third
    assert milliseconds(second) == milliseconds(first) + 1
    assert second.version == 7
    assert second.variant == uuid.RFC_4122


def test_ids_of_all_threads_differ_and_grow():
    """Eight threads make distinct ids, each thread in increasing order."""
    start = threading.Barrier(8)
    made = [[] for _ in range(8)]

    def make(mine):
        start.wait(10)
        mine.extend(uuid7() for _ in range(2_000))

    threads = [threading.Thread(target=make, args=(mine,)) for mine in made]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    everything = [one for mine in made for one in mine]
    assert len(set(everything)) == len(everything) == 16_000
    assert all(a < b for mine in made for a, b in itertools.pairwise(mine))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this platform does not fork")
def test_a_forked_child_makes_other_ids(monkeypatch):
    """Parent and child do not go on with the same counter, even if the clock stands still."""
    frozen = time.time_ns() + 60_000 * MILLISECOND  # later than any id made so far
    monkeypatch.setattr(ids.time, "time_ns", lambda: frozen)
    uuid7()
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        # The child only makes ids; threads of other tests do not concern it.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        try:
            os.write(writing, b"".join(uuid7().bytes for _ in range(20)))
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        raw = pipe.read()
    os.waitpid(child, 0)
    theirs = [uuid.UUID(bytes=raw[i : i + 16]) for i in range(0, len(raw), 16)]
    ours = [uuid7() for _ in range(20)]
    assert len(theirs) == 20
    assert not set(theirs) & set(ours)
    # A counter that was copied would run on within the steps of 20 ids.
    reach = 40 << ids._STEP_BITS
    assert abs(counter(theirs[0]) - counter(ours[0])) > reach


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this platform does not fork")
def test_a_fork_while_another_thread_makes_an_id_does_not_hang(monkeypatch):
    """The child gets a lock of its own: the parent's may be held at that moment."""
    with ids._generate._lock:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            child = os.fork()
        if child == 0:
            made = threading.Thread(target=uuid7, daemon=True)
            made.start()
            made.join(5)
            os._exit(1 if made.is_alive() else 0)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0


def counter(value):
    """Return the 74 random bits of a UUID."""
    return (((value.int >> 64) & 0xFFF) << 62) | (value.int & ids._LOW_MASK)


def test_the_random_part_is_random():
    """Two generators in the same millisecond share nothing but the time."""
    made = {counter(ids._Generator()()) >> 40 for _ in range(200)}
    assert len(made) == 200


def test_ids_sort_as_text_and_as_bytes():
    """The order is the same for UUIDs, their text and their bytes, as indexes see them."""
    made = [uuid7() for _ in range(100)]
    assert sorted(made, key=str) == made
    assert sorted(made, key=lambda one: one.bytes) == made
