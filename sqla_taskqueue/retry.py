"""Retry policies: how long a failed task waits before its next attempt.

A policy is a value with one method, ``delay(attempt)``. Any object with that method will do.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol

from .errors import InvalidArgument

_ZERO = timedelta(0)
_LONGEST = timedelta(days=365)


class RetryPolicy(Protocol):
    """What ``fail(retry=…)`` and ``Queue(retry=…)`` take."""

    def delay(self, attempt: int) -> timedelta:
        """Return the wait after *attempt* (1 for the first) has failed."""
        ...


def policy_or(default: RetryPolicy, given: RetryPolicy | None) -> RetryPolicy:
    """Return the policy that a call was given, or the default for None.

    Raises:
        InvalidArgument: It is no retry policy, or the class of one.
    """
    if given is None:
        return default
    if isinstance(given, type) or not callable(getattr(given, "delay", None)):
        raise InvalidArgument(
            "retry", given, "must have a method delay(attempt), as Exponential() has"
        )
    return given


def _check(name: str, value: timedelta, *, at_least: timedelta = _ZERO) -> None:
    if not isinstance(value, timedelta):
        raise InvalidArgument(name, value, f"must be a timedelta, not {type(value).__name__}")
    if not at_least <= value <= _LONGEST:
        raise InvalidArgument(name, value, f"must lie between {at_least} and {_LONGEST}")


def _is_number(value: object) -> bool:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


@dataclass(frozen=True, slots=True)
class Fixed:
    """Wait the same time after every attempt."""

    wait: timedelta = timedelta(seconds=30)

    def __post_init__(self) -> None:
        _check("wait", self.wait)

    def delay(self, attempt: int) -> timedelta:  # noqa: ARG002 - the protocol's signature
        """Return the wait."""
        return self.wait


@dataclass(frozen=True, slots=True)
class Linear:
    """Wait ``step × attempt``, at most *cap*."""

    step: timedelta = timedelta(seconds=30)
    cap: timedelta = timedelta(hours=1)

    def __post_init__(self) -> None:
        _check("step", self.step)
        _check("cap", self.cap)

    def delay(self, attempt: int) -> timedelta:
        """Return the wait after *attempt*."""
        # Compared before it is multiplied: a timedelta overflows.
        if self.step and attempt >= self.cap / self.step:
            return self.cap
        return self.step * attempt


@dataclass(frozen=True, slots=True)
class Exponential:
    """Wait ``base × factor ** (attempt - 1)``, at most *cap*, give or take *jitter*.

    Args:
        base: Wait after the first attempt; more than zero.
        factor: What each further attempt multiplies it by; at least 1.
        cap: The longest wait before jitter is applied.
        jitter: Share by which the wait is lengthened or shortened at random, between 0 and 1:
            tasks that failed together do not come back together. With a jitter of 0.1 and a cap
            of an hour no wait exceeds 66 minutes.
    """

    base: timedelta = timedelta(seconds=5)
    factor: float = 2.0
    cap: timedelta = timedelta(hours=1)
    jitter: float = 0.1

    def __post_init__(self) -> None:
        _check("base", self.base, at_least=timedelta(microseconds=1))
        _check("cap", self.cap, at_least=timedelta(microseconds=1))
        if not (_is_number(self.factor) and self.factor >= 1):
            raise InvalidArgument("factor", self.factor, "must be a number of at least 1")
        if not (_is_number(self.jitter) and 0 <= self.jitter < 1):
            raise InvalidArgument("jitter", self.jitter, "must be a number between 0 and 1")

    def delay(self, attempt: int) -> timedelta:
        """Return the wait after *attempt*, drawn anew at each call."""
        # Compared as logarithms: the power itself overflows near the thousandth attempt.
        exponent = max(attempt - 1, 0)
        if exponent * math.log(self.factor) >= math.log(self.cap / self.base):
            wait = self.cap
        else:
            wait = self.base * self.factor**exponent
        if self.jitter:
            wait *= 1 + random.uniform(-self.jitter, self.jitter)  # noqa: S311 - no secret
        return max(wait, timedelta(microseconds=1))


DEFAULT_RETRY: RetryPolicy = Exponential()
"""What a queue uses unless it is given a policy: 5 s, doubled each time, at most an hour."""
