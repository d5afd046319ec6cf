"""Directives: checked arguments, a readable text, and the way to another process."""

from __future__ import annotations

import copy
import pickle
from datetime import timedelta

import pytest

from sqla_taskqueue import InvalidArgument
from sqla_taskqueue.directives import Cancel, Retry, Snooze
from tests.strange import Fruit

MINUTE = timedelta(minutes=1)
CENTURY = timedelta(days=36_500)


@pytest.mark.parametrize("kind", [Retry, Snooze])
@pytest.mark.parametrize("time", [timedelta(0), MINUTE, CENTURY])
def test_times_that_may_be(kind, time):
    """From at once to a century."""
    directive = kind(time)
    assert (directive.after if kind is Retry else directive.delay) == time


@pytest.mark.parametrize("kind", [Retry, Snooze])
@pytest.mark.parametrize("time", [-MINUTE, CENTURY + MINUTE, 60, 1.5, "1 minute"])
def test_times_that_may_not_be(kind, time):
    """What no queue could be given is refused where it is written, by its name."""
    with pytest.raises(InvalidArgument, match=r"^(after|delay)="):
        kind(time)


def test_a_snooze_needs_a_time():
    """There is no default: a task that comes back at once would spin."""
    with pytest.raises(TypeError):
        Snooze()
    with pytest.raises(InvalidArgument):
        Snooze(None)


@pytest.mark.parametrize("reason", [None, 1, b"no", ["no"]])
def test_reasons_are_texts(reason):
    """What is no text is refused."""
    with pytest.raises(InvalidArgument, match="reason"):
        Cancel(reason)


def test_a_reason_may_hold_any_text():
    """What cannot be stored is cleaned by the write: the cancellation must not fail over it."""
    assert Cancel("a\x00\ud800").reason == "a\x00\ud800"


def test_a_reason_becomes_plain_text():
    """A member of an enum of texts is taken for its text."""
    assert type(Cancel(Fruit.APPLE).reason) is str
    assert str(Cancel(Fruit.APPLE)) == f"cancelled: {Fruit.APPLE.value}"


@pytest.mark.parametrize(
    ("directive", "text"),
    [
        (Retry(), "retry"),
        (Retry(MINUTE), "retry after 0:01:00"),
        (Retry(error="no answer"), "retry: no answer"),
        (Retry(MINUTE, error=KeyError("a")), "retry after 0:01:00: KeyError: 'a'"),
        (Snooze(MINUTE), "snooze for 0:01:00"),
        (Cancel(), "cancelled"),
        (Cancel("sold out"), "cancelled: sold out"),
    ],
)
def test_the_text_says_what_is_to_happen(directive, text):
    """Logs and tracebacks show it."""
    assert str(directive) == text


@pytest.mark.parametrize(
    "directive",
    [
        Retry(),
        Retry(MINUTE, error="no answer"),
        Retry(error=ValueError("no answer")),
        Snooze(MINUTE),
        Cancel("sold out"),
    ],
    ids=str,
)
@pytest.mark.parametrize("travel", [lambda it: pickle.loads(pickle.dumps(it)), copy.copy])
def test_directives_pickle(directive, travel):
    """Another process gets an equal one."""
    arrived = travel(directive)
    assert type(arrived) is type(directive)
    assert str(arrived) == str(directive)
    assert arrived.args == directive.args
    assert repr(vars(arrived)) == repr(vars(directive))


@pytest.mark.parametrize("directive", [Retry(), Snooze(MINUTE), Cancel()], ids=str)
def test_directives_may_be_raised(directive):
    """They are exceptions, and none of them is an error of the library's."""
    with pytest.raises(type(directive)) as caught:
        raise directive
    assert caught.value is directive
    assert isinstance(directive, Exception)


# --- What a retry records ----------------------------------------------------------------------


def test_a_retry_records_the_error_that_it_is_given():
    """Given is given, also when it was raised from something else."""
    error = ValueError("mine")
    with pytest.raises(Retry) as caught:
        raise Retry(error=error) from KeyError("other")
    assert caught.value.recorded is error


def test_a_retry_records_what_it_was_raised_from():
    """`raise Retry() from error` says why without saying it twice."""
    error = ConnectionError("gone")
    with pytest.raises(Retry) as caught:
        raise Retry(MINUTE) from error
    assert caught.value.recorded is error
    assert caught.value.error is None


def test_a_retry_records_its_own_text_otherwise():
    """An exception that is merely being handled is not the reason."""
    retry = Retry(MINUTE)
    retry.__context__ = KeyError("handled")
    assert retry.recorded == "retry after 0:01:00"
