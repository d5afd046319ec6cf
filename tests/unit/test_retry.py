"""Retry policies: delays stay positive and bounded for every attempt there may be (B14)."""

from __future__ import annotations

import math
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sqla_taskqueue import Exponential, Fixed, InvalidArgument, Linear
from sqla_taskqueue.retry import DEFAULT_RETRY

HOUR = timedelta(hours=1)
MOMENT = timedelta(microseconds=1)
YEAR = timedelta(days=365)

attempts = st.integers(1, 1_000_000)
waits = st.timedeltas(MOMENT, YEAR)
factors = st.floats(1, 1e300)


@pytest.mark.parametrize("attempt", [1, 2, 1_000_000])
def test_fixed_is_fixed(attempt):
    """The wait is the same after every attempt."""
    assert Fixed(timedelta(seconds=7)).delay(attempt) == timedelta(seconds=7)


def test_fixed_may_be_zero():
    """Trying again at once is a policy, too."""
    assert Fixed(timedelta(0)).delay(3) == timedelta(0)


def test_linear_grows_by_its_step_up_to_the_cap():
    """The wait is the step times the attempt, at most the cap."""
    policy = Linear(step=timedelta(seconds=30), cap=timedelta(seconds=100))
    waited = [policy.delay(attempt).total_seconds() for attempt in (1, 2, 3, 4, 5, 1_000_000)]
    assert waited == [30, 60, 90, 100, 100, 100]


def test_linear_with_a_step_of_zero_is_zero():
    """A step of zero never reaches the cap and divides by nothing."""
    assert Linear(step=timedelta(0), cap=HOUR).delay(1_000_000) == timedelta(0)


def test_exponential_doubles_up_to_the_cap():
    """The wait is multiplied with each attempt until the cap."""
    policy = Exponential(base=timedelta(seconds=5), cap=timedelta(seconds=60), jitter=0)
    waited = [policy.delay(attempt).total_seconds() for attempt in range(1, 7)]
    assert waited == [5, 10, 20, 40, 60, 60]


@pytest.mark.parametrize("attempt", [1, 40, 64, 1025, 2000, 4999, 100_000, 1_000_000])
@pytest.mark.parametrize("jitter", [0, 0.1, 0.999])
def test_exponential_does_not_overflow(attempt, jitter):
    """Attempts whose power no float can hold wait as long as the cap, give or take the jitter."""
    wait = Exponential(cap=HOUR, jitter=jitter).delay(attempt)
    assert timedelta(0) < wait <= HOUR * (1 + jitter)
    if attempt > 20:
        assert wait >= HOUR * (1 - jitter)


@given(waits, factors, waits, st.floats(0, 0.999), attempts)
def test_exponential_is_positive_and_bounded(base, factor, cap, jitter, attempt):
    """Whatever the settings: more than zero, at most the cap plus its jitter."""
    wait = Exponential(base=base, factor=factor, cap=cap, jitter=jitter).delay(attempt)
    assert timedelta(0) < wait <= cap * (1 + jitter) + MOMENT  # rounded to a microsecond


@given(waits, factors, waits, attempts)
def test_exponential_without_jitter_is_bounded_exactly(base, factor, cap, attempt):
    """Without jitter no wait exceeds the cap, not even by rounding."""
    wait = Exponential(base=base, factor=factor, cap=cap, jitter=0).delay(attempt)
    assert timedelta(0) < wait <= cap


@given(waits, st.floats(1, 3) | factors, waits, attempts)
def test_exponential_without_jitter_is_monotone(base, factor, cap, attempt):
    """A later attempt never waits for less."""
    policy = Exponential(base=base, factor=factor, cap=cap, jitter=0)
    assert policy.delay(attempt) <= policy.delay(attempt + 1)


@given(st.timedeltas(timedelta(0), YEAR), st.timedeltas(timedelta(0), YEAR), attempts)
def test_linear_is_bounded_and_monotone(step, cap, attempt):
    """Between zero and the cap, and never less for a later attempt."""
    policy = Linear(step=step, cap=cap)
    assert timedelta(0) <= policy.delay(attempt) <= policy.delay(attempt + 1) <= cap


def test_jitter_spreads_in_both_directions():
    """With jitter the waits differ, and lie on both sides of the plain wait."""
    policy = Exponential(base=timedelta(seconds=100), jitter=0.5)
    waits = [policy.delay(1) for _ in range(200)]
    assert len(set(waits)) > 150
    assert min(waits) < timedelta(seconds=100) < max(waits)


def test_an_attempt_below_one_counts_as_the_first():
    """A row whose attempt was set by hand does not make a delay of a fraction."""
    policy = Exponential(base=timedelta(seconds=5), jitter=0)
    assert policy.delay(0) == policy.delay(-3) == timedelta(seconds=5)


@pytest.mark.parametrize(
    ("make", "argument"),
    [
        (lambda: Fixed(timedelta(seconds=-1)), "wait"),
        (lambda: Fixed(timedelta(days=366)), "wait"),
        (lambda: Linear(step=-MOMENT), "step"),
        (lambda: Linear(cap=timedelta(days=366)), "cap"),
        (lambda: Exponential(base=timedelta(0)), "base"),
        (lambda: Exponential(cap=timedelta(0)), "cap"),
        (lambda: Exponential(factor=0.5), "factor"),
        (lambda: Exponential(factor=math.nan), "factor"),
        (lambda: Exponential(factor=math.inf), "factor"),
        (lambda: Exponential(jitter=1), "jitter"),
        (lambda: Exponential(jitter=-0.1), "jitter"),
        (lambda: Exponential(jitter=math.nan), "jitter"),
    ],
)
def test_bad_settings_are_refused(make, argument):
    """A policy that could not work is refused where it is made, naming the setting."""
    with pytest.raises(InvalidArgument) as caught:
        make()
    assert caught.value.argument == argument


@pytest.mark.parametrize(
    "make",
    [
        lambda: Fixed(30),
        lambda: Linear(step=30),
        lambda: Linear(cap="1h"),
        lambda: Exponential(base=5.0),
        lambda: Exponential(cap=None),
        lambda: Exponential(factor="2"),
        lambda: Exponential(jitter=None),
    ],
)
def test_settings_of_the_wrong_type_are_refused(make):
    """Seconds as numbers, or text, are the same typed error as a value out of range."""
    with pytest.raises(InvalidArgument):
        make()


def test_the_default_is_the_documented_one():
    """5 s, doubled each time, at most an hour, give or take a tenth."""
    assert Exponential(timedelta(seconds=5), 2.0, HOUR, 0.1) == DEFAULT_RETRY
