"""The demo's verdict: it must find what is wrong, or its green line would mean nothing."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from types import SimpleNamespace
from uuid import UUID, uuid4

import pytest

from sqla_taskqueue.demo.evidence import (
    ClaimLog,
    Event,
    Evidence,
    Logged,
    judge,
    read_logs,
)
from sqla_taskqueue.demo.report import Report
from sqla_taskqueue.demo.settings import Driver, Settings

FIRST, SECOND = UUID(int=1), UUID(int=2)


def logged(task, attempt=1, holder="p1-w01", token=None) -> Logged:
    """A line of a worker's log."""
    return Logged(task, 1, attempt, token or uuid4(), holder, 0.0)


def event(task, what, attempt=1, actor="p1-w01") -> Event:
    """A row of the history."""
    return Event(task, what, 1, attempt, actor)


def good() -> Evidence:
    """Two tasks: one was done at once, one was retried by another worker."""
    return Evidence(
        enqueued=frozenset({FIRST, SECOND}),
        logged=[logged(FIRST), logged(SECOND), logged(SECOND, 2, "p2-w01")],
        states={FIRST: "done", SECOND: "done"},
        events=[
            event(FIRST, "created", 0, None),
            event(SECOND, "created", 0, None),
            event(FIRST, "claimed"),
            event(FIRST, "completed"),
            event(SECOND, "claimed"),
            event(SECOND, "retried"),
            event(SECOND, "claimed", 2, "p2-w01"),
            event(SECOND, "completed", 2, "p2-w01"),
        ],
        deliveries=Counter({FIRST: 1, SECOND: 1}),
    )


def status(evidence: Evidence) -> int:
    """The exit status that the command would have."""
    settings = Settings(
        tasks=2, workers=2, concurrency=1, driver=Driver.PSYCOPG, is_async=False, url=None
    )
    return Report(
        settings=settings,
        server_version="18",
        verdict=judge(evidence),
        killed=0,
        killed_held=0,
        seconds=1.0,
        mishaps=[],
    ).status


def test_a_good_run_has_no_problem():
    """Figures add up and the exit status is 0 when each task was done exactly once."""
    verdict = judge(good())
    assert verdict.problems == []
    assert (verdict.enqueued, verdict.claims, verdict.done) == (2, 3, 2)
    assert (verdict.retried, verdict.reclaimed, verdict.effects) == (1, 0, 2)
    assert (verdict.claimed_twice, verdict.lost, verdict.doubled) == (0, 0, 0)
    assert status(good()) == 0


def test_a_retry_in_a_new_round_is_no_double_claim():
    """The same attempt number in another round is another attempt."""
    evidence = good()
    again = [
        Event(FIRST, "claimed", 2, 1, "p1-w01"),
        Event(FIRST, "retried", 2, 1, "p1-w01"),
    ]
    log = Logged(FIRST, 2, 1, uuid4(), "p1-w01", 0.0)
    evidence = replace(evidence, events=[*evidence.events, *again], logged=[*evidence.logged, log])
    assert judge(evidence).problems == []


@pytest.mark.parametrize("source", ["attempt", "token", "history"])
def test_a_task_handed_out_twice_is_found(source):
    """Two workers with the same attempt or the same token break the run, whoever recorded it."""
    evidence = good()
    token = uuid4()
    match source:
        case "attempt":
            evidence = replace(evidence, logged=[*evidence.logged, logged(FIRST, 1, "p2-w09")])
        case "token":
            evidence = replace(
                evidence,
                logged=[
                    *evidence.logged[:2],
                    logged(SECOND, 2, "p2-w01", token),
                    logged(SECOND, 3, "p2-w09", token),
                ],
            )
        case "history":
            evidence = replace(
                evidence, events=[*evidence.events, event(FIRST, "claimed", 1, "p2-w09")]
            )
    verdict = judge(evidence)
    assert verdict.claimed_twice == 1
    assert not verdict.holds
    assert status(evidence) == 1


@pytest.mark.parametrize("state", [None, "queued", "claimed", "failed", "cancelled"])
def test_a_task_that_is_missing_or_not_done_is_lost(state):
    """What was enqueued and is not done in the end is lost, with or without a row."""
    evidence = good()
    states = {FIRST: "done"} | ({SECOND: state} if state else {})
    evidence = replace(evidence, states=states, deliveries=Counter({FIRST: 1}))
    assert judge(evidence).lost == 1
    assert status(evidence) == 1


def test_a_doubled_delivery_is_found():
    """An effect that happened twice breaks the run, although every task is done."""
    evidence = replace(good(), deliveries=Counter({FIRST: 1, SECOND: 2}))
    verdict = judge(evidence)
    assert (verdict.doubled, verdict.effects) == (1, 3)
    assert status(evidence) == 1


def _without(evidence: Evidence, **left_out) -> Evidence:
    return replace(
        evidence,
        **{
            name: [one for one in getattr(evidence, name) if one != gone]
            for name, gone in left_out.items()
        },
    )


def test_a_missing_delivery_is_found():
    """A task that is done without its effect breaks the run."""
    evidence = replace(good(), deliveries=Counter({FIRST: 1}))
    assert "done without a delivery" in judge(evidence).problems[0]
    assert status(evidence) == 1


def test_what_was_rolled_back_and_is_there_all_the_same_is_found():
    """A row that no committed transaction enqueued breaks the run."""
    evidence = replace(good(), enqueued=frozenset({FIRST}))
    assert "no committed transaction" in judge(evidence).problems[0]
    assert status(evidence) == 1


def test_a_claim_without_an_event_is_found():
    """A worker that got what the history does not know breaks the run."""
    evidence = good()
    evidence = replace(evidence, logged=[*evidence.logged, logged(FIRST, 7)])
    assert "without a record in the history" in judge(evidence).problems[0]


def test_a_claim_before_the_last_one_ended_is_found():
    """Attempt 2 while attempt 1 was neither ended nor taken back breaks the run."""
    evidence = _without(good(), events=event(SECOND, "retried"))
    assert "had not ended" in judge(evidence).problems[0]


def test_a_second_completion_is_found():
    """A task that was completed twice breaks the run."""
    evidence = good()
    evidence = replace(evidence, events=[*evidence.events, event(FIRST, "completed")])
    assert any("completed more than once" in problem for problem in judge(evidence).problems)


def test_only_a_killed_worker_may_have_written_down_less_than_it_got():
    """A claim that is in no log is a problem, unless SIGKILL may have come before the note."""
    unnoted = _without(good(), logged=good().logged[0])
    unnoted = replace(unnoted, logged=[one for one in unnoted.logged if one.task != FIRST])
    assert "by no worker's log" in judge(unnoted).problems[0]
    assert judge(replace(unnoted, killed=frozenset({"p1-w01"}))).problems == []
    assert judge(replace(unnoted, killed=frozenset({"p2-w01"}))).problems


def test_a_claim_that_was_taken_back_needs_no_note():
    """Its lease may have run out before its handler began."""
    evidence = good()
    taken = event(FIRST, "reclaimed")
    before = [one for one in evidence.events if one.task != FIRST]
    again = [
        event(FIRST, "claimed", 1),
        taken,
        event(FIRST, "claimed", 2),
        event(FIRST, "completed", 2),
    ]
    evidence = replace(
        evidence,
        events=[*before, *again],
        logged=[*(one for one in evidence.logged if one.task != FIRST), logged(FIRST, 2)],
    )
    assert judge(evidence).problems == []


def test_a_mishap_breaks_the_run_too():
    """A process that died, or a standstill, makes the exit status 1 whatever the figures say."""
    settings = Settings(
        tasks=2, workers=2, concurrency=1, driver=Driver.PSYCOPG, is_async=False, url=None
    )
    report = Report(
        settings=settings,
        server_version="18",
        verdict=judge(good()),
        killed=0,
        killed_held=0,
        seconds=1.0,
        mishaps=["Process 1 ended by itself."],
    )
    assert report.status == 1
    assert report.as_dict()["ok"] is False


def test_logs_survive_a_cut_in_the_last_line(tmp_path):
    """What a worker wrote down is read back; a line that SIGKILL cut off is left out."""
    lease = SimpleNamespace(token=uuid4(), holder=SimpleNamespace(worker="p1-w01"))
    claims = [
        SimpleNamespace(id=id_, attempt=1, lease=lease, task=SimpleNamespace(round=3))
        for id_ in (FIRST, SECOND)
    ]
    path = tmp_path / "claims.jsonl"
    log = ClaimLog()
    with log.to(path):
        for claim in claims:
            log.write(claim)
    with path.open("a") as file:
        file.write('{"task": "0000')
    read = read_logs([path])
    assert [(one.task, one.round, one.token) for one in read] == [
        (FIRST, 3, lease.token),
        (SECOND, 3, lease.token),
    ]
