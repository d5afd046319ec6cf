"""The state machine as data."""

from __future__ import annotations

import pytest

from sqla_taskqueue import EventType, TaskState
from sqla_taskqueue.states import ENDED, LIVE, TRANSITIONS, can

BLOCKED, QUEUED, CLAIMED, DONE, FAILED, CANCELLED = TaskState

SOURCES = {
    "enqueue": {None},
    "claim": {QUEUED},
    "claim_task": {QUEUED, CLAIMED},
    "heartbeat": {CLAIMED},
    "complete": {CLAIMED},
    "complete(force=True)": {BLOCKED, QUEUED, CLAIMED},
    "fail": {CLAIMED},
    "release": {CLAIMED},
    "snooze": {CLAIMED},
    "reclaim": {CLAIMED},
    "cancel": {BLOCKED, QUEUED, CLAIMED},
    "retry": {FAILED, CANCELLED},
}

TARGETS = {
    "enqueue": {QUEUED},
    "claim": {CLAIMED},
    "claim_task": {CLAIMED, FAILED},
    "heartbeat": {CLAIMED},
    "complete": {DONE},
    "complete(force=True)": {DONE},
    "fail": {QUEUED, FAILED},
    "release": {QUEUED},
    "snooze": {QUEUED},
    "reclaim": {QUEUED, FAILED},
    "cancel": {CANCELLED},
    "retry": {QUEUED},
}


def test_the_states_are_the_documented_ones():
    """Six states, stored as lower-case text; each is either live or ended."""
    assert [*TaskState] == ["blocked", "queued", "claimed", "done", "failed", "cancelled"]
    assert set(LIVE) | set(ENDED) == set(TaskState)
    assert not set(LIVE) & set(ENDED)


def test_the_table_lists_every_operation():
    """The table knows the operations that move tasks, and no others."""
    assert {move.operation for move in TRANSITIONS} == set(SOURCES)


@pytest.mark.parametrize("operation", SOURCES)
def test_every_operation_has_its_sources(operation):
    """`can` allows an operation from exactly its documented states."""
    allowed = {source for source in (None, *TaskState) if can(operation, source)}
    assert allowed == SOURCES[operation]


@pytest.mark.parametrize("operation", TARGETS)
def test_every_operation_has_its_targets(operation):
    """An operation leads to its documented states and nowhere else."""
    assert {m.target for m in TRANSITIONS if m.operation == operation} == TARGETS[operation]


def test_an_unknown_operation_can_do_nothing():
    """What is not in the table is not allowed from any state."""
    assert not any(can("delete", source) for source in (None, *TaskState))


def test_only_a_retry_leads_out_of_an_end():
    """`done` is final; `failed` and `cancelled` are left by an operator's retry only."""
    assert {m.operation for m in TRANSITIONS if m.source in ENDED} == {"retry"}
    assert not any(m.source is DONE for m in TRANSITIONS)


def test_a_lease_is_only_gained_by_a_claim():
    """No move but those of a claim leads into `claimed` from another state."""
    into = {m.operation for m in TRANSITIONS if m.target is CLAIMED and m.source is not CLAIMED}
    assert into == {"claim", "claim_task"}


def test_every_event_type_but_none_else_is_recorded():
    """The moves use every event type: none is invented, none is left over."""
    assert {move.event for move in TRANSITIONS} == set(EventType)


def test_no_move_is_listed_twice():
    """A table with repeated rows would hide a mistake."""
    assert len(set(TRANSITIONS)) == len(TRANSITIONS)
