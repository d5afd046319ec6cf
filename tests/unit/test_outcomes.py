"""What is to be written about a job: always storable, whatever a handler returns or raises."""

from __future__ import annotations

import json
import logging
import traceback
from datetime import datetime, timedelta, timezone
from types import FunctionType
from uuid import UUID, uuid4

import pytest

from sqla_taskqueue import Cancel, Fixed, Handlers, InvalidArgument, Queue, Retry, Snooze, checks
from sqla_taskqueue.worker._jobs import Job
from sqla_taskqueue.worker._outcomes import directed, failed, hosts_part, outcome_of, released
from sqla_taskqueue.worker._sources import Source
from tests.workers.hosts import Logged, Task

NOW = datetime(2026, 1, 1, tzinfo=timezone.utc)  # noqa: UP017 - as drivers return it
SOON = timedelta(seconds=5)


def job(model=Task, *, attempt=1, max_attempts=3, handler=None):
    """Return a job as a claim makes it."""
    queue = Queue(model, "work", retry=Fixed(SOON))
    source = Source(queue._core, timedelta(minutes=1))
    row = [uuid4(), "work", None, attempt, max_attempts, None, NOW, 0, NOW]
    made = Job(source, row, UUID(int=7))
    if handler is not None:
        made.handler = Handlers(queue).handler(handler, name="work")
    return made


class Unprintable(Exception):
    def __str__(self):
        raise RuntimeError("no words")

    __repr__ = __str__


class Stubborn(BaseException):
    pass


def deep():
    """Return what recursion without an end raises."""
    try:
        return deep()
    except RecursionError as error:
        return error


def circular():
    """Return an error that is its own cause."""
    error, other = ValueError("first"), ValueError("second")
    error.__cause__, other.__cause__ = other, error
    error.__context__ = error
    return error


ERRORS = {
    "plain": ValueError("no"),
    "empty": ValueError(),
    "unprintable": Unprintable(),
    "huge": ValueError("x" * 50_000_000),
    "group": ExceptionGroup("many", [ValueError(str(n)) for n in range(1_000)]),
    "nested": ExceptionGroup("outer", [ExceptionGroup("inner", [ValueError("no")])]),
    "deep": deep(),
    "circular": circular(),
    "base": Stubborn("no"),
    "exit": SystemExit(1),
    "interrupt": KeyboardInterrupt(),
    "nul": ValueError("a\x00b"),
    "surrogate": ValueError("a\ud800b"),
    "text": "just a text",
}


@pytest.mark.parametrize("model", [Task, Logged])
@pytest.mark.parametrize("name", ERRORS)
def test_every_error_can_be_stored(model, name):
    """As text within the limits, without what PostgreSQL cannot hold; its event is JSON."""
    error = ERRORS[name]
    if isinstance(error, BaseException):
        try:
            raise error  # noqa: TRY301 - for its traceback
        except BaseException as raised:  # noqa: BLE001 - with a traceback, as a handler's
            error = raised
    outcome = failed(job(model), error)
    assert (outcome.state, outcome.type, outcome.delay) == ("queued", "retried", SOON)
    assert outcome.error
    limits = Queue(model).limits
    assert len(outcome.error) <= limits.error
    outcome.error.encode()
    assert "\x00" not in outcome.error
    if model is Task:
        assert outcome.detail is None
    else:
        detail = json.loads(outcome.detail)
        assert detail["error"]
        assert detail["retry_in"] == str(SOON)
        assert len(outcome.detail) < 100_000
        outcome.detail.encode()
        assert "\\u0000" not in outcome.detail


class Odd:
    """Nothing that JSON knows."""


def itself():
    """Return a list that contains itself."""
    values = []
    values.append(values)
    return values


@pytest.mark.parametrize(
    "result",
    [
        Odd(),
        {"a": float("nan")},
        [float("inf")],
        "x" * 50_000_000,
        "a\x00b",
        "\ud800",
        {1, 2},
        itself(),
        {("a", "b"): 1},
    ],
    ids=lambda value: type(value).__name__,
)
def test_every_result_ends_its_task(result, caplog):
    """The work is done: what JSON does not know is stored in words, what is too large is not."""
    caplog.set_level(logging.WARNING)
    outcome = outcome_of(job(), result)
    assert (outcome.state, outcome.type) == ("done", "completed")
    stored = json.loads(outcome.result)
    outcome.result.encode()
    assert "\\u0000" not in outcome.result
    too_large = isinstance(result, str) and len(result) > 1_000_000
    assert ("is done, but its result" in caplog.text) == too_large
    assert str(stored).startswith("not stored: ") == too_large


def test_results_are_stored_as_they_are():
    """None takes no room at all."""
    assert outcome_of(job(), None).result is None
    assert json.loads(outcome_of(job(), {"a": [1, None, "é"]}).result) == {"a": [1, None, "é"]}
    assert outcome_of(job(), False).result == "false"


def test_the_last_attempt():
    """Fails; one without a number never does."""
    assert failed(job(attempt=3), ValueError()).state == "failed"
    assert failed(job(attempt=4), ValueError()).state == "failed"
    assert failed(job(attempt=2), ValueError()).state == "queued"
    assert failed(job(attempt=1_000, max_attempts=None), ValueError()).state == "queued"
    # Also where the handler says when to try again.
    assert directed(job(attempt=3), Retry(SOON)).state == "failed"


@pytest.mark.parametrize("directive", [Retry(SOON), Snooze(SOON), Cancel("enough")])
def test_directives_are_the_same_returned_and_raised(directive):
    """For the task itself."""
    one, other = outcome_of(job(Logged), directive), directed(job(Logged), directive)
    for slot in ("state", "type", "delay", "error", "uncounted", "result", "detail"):
        assert getattr(one, slot) == getattr(other, slot)


def test_what_directives_say():
    """Which state, when, and whether the attempt counts."""
    retry = directed(job(), Retry(SOON, error=ValueError("later")))
    assert (retry.state, retry.delay, retry.uncounted) == ("queued", SOON, False)
    assert retry.error == "ValueError: later"
    snooze = directed(job(Logged), Snooze(SOON))
    assert (snooze.state, snooze.type, snooze.delay) == ("queued", "snoozed", SOON)
    assert (snooze.uncounted, snooze.error) == (True, None)
    assert json.loads(snooze.detail) == {"delay": str(SOON)}
    cancel = directed(job(Logged), Cancel("x" * 1_000_000))
    assert (cancel.state, cancel.type) == ("cancelled", "cancelled")
    assert len(cancel.error) <= Queue(Logged).limits.error
    given_back = released(job())
    assert (given_back.state, given_back.delay, given_back.uncounted) == ("queued", None, True)


def test_a_policy_that_fails_ends_nothing(caplog):
    """The default's delay is taken instead."""

    class Broken:
        def delay(self, attempt):
            raise RuntimeError("no idea")

    source = Source(Queue(Task, "work", retry=Broken())._core, timedelta(minutes=1))
    row = [uuid4(), "work", None, 1, 3, None, NOW, 0, NOW]
    outcome = failed(Job(source, row, UUID(int=7)), ValueError())
    assert outcome.delay > timedelta(0)
    assert "gives no delay" in caplog.text


def test_tracebacks_begin_where_the_host_was_called():
    """The library's own frames above it are left out, and its frames below are kept."""

    def host():
        checks.duration("after", "no")

    def library(call):
        call()

    code = library.__code__.replace(co_filename=checks.__file__)
    try:
        FunctionType(code, {})(host)
    except InvalidArgument as error:
        whole = traceback.extract_tb(error.__traceback__)[1:]
        part = traceback.extract_tb(hosts_part(error.__traceback__.tb_next))
    assert [frame.name for frame in whole] == ["library", "host", "duration"]
    assert [frame.name for frame in part] == ["host", "duration"]
    assert hosts_part(None) is None
