"""The plain values that cross the API."""

from __future__ import annotations

import pickle
from dataclasses import FrozenInstanceError
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest

from sqla_taskqueue import (
    Claim,
    Enqueued,
    Holder,
    InvalidArgument,
    Lease,
    LeaseLost,
    Limits,
    Page,
    QueueStats,
    Reclaimed,
    RefusalReason,
    Refused,
    TaskState,
    Written,
)

SECOND = timedelta(seconds=1)


# --- Successes and refusals --------------------------------------------------------------------


def test_every_success_is_truthy():
    """Whatever says that something happened can stand in an `if`."""
    lease = Lease(uuid4(), Holder("w"), datetime.now(UTC), SECOND)
    claim = Claim(1, "q", {}, "", None, 1, None, None, lease, object())
    written = Written(1, TaskState.DONE, 1, datetime.now(UTC))
    enqueued = Enqueued(1, created=False, state=TaskState.DONE)
    assert lease
    assert claim
    assert written
    assert enqueued
    assert Reclaimed(requeued=1)
    assert Reclaimed(failed=1)


@pytest.mark.parametrize("reason", RefusalReason)
def test_every_refusal_is_falsy(reason):
    """A refusal never passes for a success."""
    assert not Refused(reason, "task 7")


def test_nothing_reclaimed_is_falsy():
    """A sweep that changed nothing reads as such, and one that did adds up."""
    assert not Reclaimed()
    assert Reclaimed(requeued=2, failed=3).total == 5


def test_the_reasons_are_a_closed_set():
    """The documented reasons, and no others."""
    assert {*RefusalReason} == {
        "gone",
        "finished",
        "requeued",
        "held",
        "held_by_other_session",
        "blocked",
        "not_due",
        "key_taken",
        "busy",
    }


HELD = {"state": TaskState.CLAIMED, "holder": Holder("ann", "s1")}


@pytest.mark.parametrize(
    ("refused", "sentence"),
    [
        (Refused(RefusalReason.GONE, "task 7"), "task 7 does not exist in this queue and scope"),
        (
            Refused(RefusalReason.FINISHED, "task 'k'", state=TaskState.DONE),
            "task 'k' is already done",
        ),
        (
            Refused(RefusalReason.REQUEUED, "task 7"),
            "task 7 is queued and held by nobody; claim it to work on it",
        ),
        (
            Refused(RefusalReason.HELD, "task 7", **HELD, lease_seconds_remaining=41.6),
            "task 7 is held by ann (session s1) for another 42 seconds",
        ),
        (
            Refused(
                RefusalReason.HELD, "task 7", holder=Holder("bob"), lease_seconds_remaining=1.2
            ),
            "task 7 is held by bob for another 1 second",
        ),
        (
            Refused(RefusalReason.HELD, "task 7", **HELD, lease_seconds_remaining=0.4),
            "task 7 is held by ann (session s1) for another moment",
        ),
        (
            Refused(RefusalReason.HELD, "task 7", **HELD, lease_seconds_remaining=86_400),
            "task 7 is held by ann (session s1) for another 86,400 seconds",
        ),
        (
            Refused(RefusalReason.HELD, "task 7", **HELD, lease_seconds_remaining=-3),
            "task 7 is held by ann (session s1), whose lease ran out but was not taken back yet",
        ),
        (
            Refused(RefusalReason.HELD, "task 7", **HELD),
            "task 7 is held by ann (session s1)",
        ),
        (
            Refused(
                RefusalReason.HELD_BY_OTHER_SESSION, "task 7", **HELD, lease_seconds_remaining=60
            ),
            (
                "task 7 is held by your own session 's1' for another 60 seconds: "
                "continue there, or wait for the lease to run out and claim it here"
            ),
        ),
        (
            Refused(
                RefusalReason.HELD_BY_OTHER_SESSION,
                "task 7",
                holder=Holder("ann"),
                lease_seconds_remaining=60,
            ),
            (
                "task 7 is held by your own session '' for another 60 seconds: "
                "continue there, or wait for the lease to run out and claim it here"
            ),
        ),
        (
            Refused(RefusalReason.BLOCKED, "task 7"),
            "task 7 is blocked: it waits for other tasks",
        ),
        (
            Refused(RefusalReason.BLOCKED, "task 7", blocked_by=("a", "b")),
            "task 7 is blocked: it waits for a, b",
        ),
        (
            Refused(RefusalReason.NOT_DUE, "task 7", due_in_seconds=3_599.7),
            "task 7 is not due for another 3,600 seconds",
        ),
        (
            Refused(RefusalReason.NOT_DUE, "task 7"),
            "task 7 is not due for another unknown time",
        ),
        (
            Refused(RefusalReason.KEY_TAKEN, "task 7"),
            "task 7 cannot be queued again: a live task has the same unique_key",
        ),
        (
            Refused(RefusalReason.BUSY, "task 7"),
            "task 7 is locked by another transaction: try again",
        ),
    ],
)
def test_every_refusal_is_a_sentence(refused, sentence):
    """What is shown to a person says which task, what is wrong, who holds it and for how long."""
    assert str(refused) == sentence


def test_a_lost_lease_carries_its_refusal():
    """The exception reads like the refusal, and has it."""
    refused = Refused(RefusalReason.GONE, "task 7")
    lost = LeaseLost(refused)
    assert lost.refused is refused
    assert str(lost) == str(refused)


def test_values_compare_no_entities():
    """Claims and refusals hold host entities, whose `__eq__` and `__hash__` may do anything."""

    class Entity:
        __hash__ = None

        def __eq__(self, other):
            raise AssertionError

    one = Refused(RefusalReason.HELD, "task 7", task=Entity())
    two = Refused(RefusalReason.HELD, "task 7", task=Entity())
    assert one != two
    assert len({one, two}) == 2
    assert "Entity" not in repr(one)
    lease = Lease(uuid4(), Holder("w"), datetime.now(UTC), SECOND)
    claims = [Claim(1, "q", {}, "", None, 1, None, None, lease, Entity()) for _ in range(2)]
    assert claims[0] != claims[1]
    assert len(set(claims)) == 2
    assert "Entity" not in repr(claims[0])


def test_values_do_not_change():
    """What a call answered stays what it was."""
    written = Written(1, TaskState.DONE, 1, datetime.now(UTC))
    with pytest.raises(FrozenInstanceError):
        written.state = TaskState.FAILED
    assert pickle.loads(pickle.dumps(written)) == written


# --- Holders -----------------------------------------------------------------------------------


def test_a_name_is_a_holder_with_the_shared_session():
    """Plain text means the session shared by all that name none."""
    assert Holder.of("ann", 100) == Holder("ann") == Holder("ann", "")
    assert Holder.of(Holder("ann", "s1"), 100) == Holder("ann", "s1")
    assert str(Holder("ann")) == "ann"
    assert str(Holder("ann", "s1")) == "ann (session s1)"


@pytest.mark.parametrize(
    ("holder", "problem"),
    [
        ("", "must not be empty"),
        (Holder("", "s1"), "must not be empty"),
        ("a\x00b", "NUL"),
        (Holder("a", "\ud800"), "surrogate"),
        ("é" * 51, "102 bytes"),
        (Holder("a", "é" * 51), "102 bytes"),
        (None, "must be text or a Holder"),
        (7, "must be text or a Holder"),
        (("ann", "s1"), "must be text or a Holder"),
        (Holder(7), "must be text, not int"),
        (Holder("ann", None), "must be text, not NoneType"),
    ],
)
def test_other_holders_are_refused(holder, problem):
    """Names that cannot be stored, compared or found again are typed errors."""
    with pytest.raises(InvalidArgument, match=problem):
        Holder.of(holder, 100)


@pytest.mark.parametrize("name", ["é" * 50, "x" * 100, "😀" * 25])
def test_a_name_may_be_as_long_as_the_limit(name):
    """The limit is one of bytes, for the worker and for the session."""
    assert Holder.of(Holder(name, name), 100) == Holder(name, name)


# --- Pages and counts --------------------------------------------------------------------------


def test_a_page_is_a_sequence():
    """It has a length, items, slices and an order, and is falsy when empty."""
    page = Page(("a", "b", "c"), next=7)
    assert len(page) == 3
    assert [*page] == ["a", "b", "c"]
    assert page[0] == "a"
    assert page[-1] == "c"
    assert page[1:] == ("b", "c")
    assert "b" in page
    assert [*reversed(page)] == ["c", "b", "a"]
    assert page.next == 7
    assert not Page(())
    assert Page(()).next is None


def test_counts_add_up():
    """Counts are read by state, as attributes and as sums."""
    stats = QueueStats(blocked=1, queued=2, claimed=3, done=4, failed=5, cancelled=6)
    assert [stats[state] for state in TaskState] == [1, 2, 3, 4, 5, 6]
    assert stats["done"] == stats.done == 4
    assert stats.as_dict() == dict(zip(TaskState, range(1, 7), strict=True))
    assert stats.live == 6
    assert stats.ended == 15
    with pytest.raises(ValueError, match="nothing"):
        stats["nothing"]


# --- Limits ------------------------------------------------------------------------------------


def test_the_default_limits_are_the_documented_ones():
    """What stands in the documentation of limits."""
    limits = Limits()
    assert limits.lease == timedelta(seconds=300)
    assert (limits.lease_min, limits.lease_max) == (timedelta(milliseconds=100), timedelta(days=7))
    assert limits.max_attempts == 20
    assert (limits.key, limits.name) == (128, 100)
    assert (limits.payload, limits.result) == (1 << 20, 64 << 10)
    assert (limits.error, limits.page, limits.counted) == (1_000, 200, 100_000)


def test_the_limits_of_boards():
    """Boards hold tasks for longer and try them without end."""
    limits = Limits.board()
    assert limits.lease == timedelta(seconds=900)
    assert (limits.lease_min, limits.lease_max) == (timedelta(seconds=30), timedelta(hours=24))
    assert limits.max_attempts is None


@pytest.mark.parametrize(
    ("lease", "clamped"),
    [
        (None, 300 * SECOND),
        (timedelta(0), SECOND / 10),
        (-SECOND, SECOND / 10),
        (SECOND / 10, SECOND / 10),
        (17 * SECOND, 17 * SECOND),
        (timedelta(days=7), timedelta(days=7)),
        (timedelta.max, timedelta(days=7)),
        (timedelta.min, SECOND / 10),
    ],
)
def test_leases_are_clamped(lease, clamped):
    """A lease is never shorter or longer than the bounds, and never an error."""
    assert Limits().clamp_lease(lease) == clamped


@pytest.mark.parametrize("lease", [30, 30.0, "30s"])
def test_a_lease_is_a_timedelta(lease):
    """A number of seconds is a typed error."""
    with pytest.raises(InvalidArgument, match="must be a timedelta"):
        Limits().clamp_lease(lease)


@pytest.mark.parametrize(
    "given",
    [
        {"lease_min": SECOND / 11},
        {"lease_max": timedelta(days=8)},
        {"lease_min": 20 * SECOND, "lease_max": 10 * SECOND},
        {"max_attempts": 0},
        {"max_attempts": -1},
        {"max_attempts": True},
        {"max_attempts": "3"},
    ],
)
def test_limits_that_cannot_be_kept_are_refused(given):
    """Bounds outside the documented ones, or in the wrong order."""
    with pytest.raises(InvalidArgument):
        Limits(**given)


@pytest.mark.parametrize(
    "given",
    [
        {"lease": 300},
        {"lease_min": 1},
        {"lease_max": None},
        {"claim": 0},
        {"key": -1},
        {"name": 0},
        {"payload": "1 MiB"},
        {"result": -1},
        {"error": 0},
        {"event_error": None},
        {"page": 0},
        {"counted": -1},
    ],
)
def test_limits_of_the_wrong_kind_are_refused_where_they_are_made(given):
    """A bound that no call could keep is a typed error at once, not at the first claim."""
    with pytest.raises(InvalidArgument):
        Limits(**given)
