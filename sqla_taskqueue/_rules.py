"""Retry rules: how a handler says when the next attempt comes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any, cast

from . import checks
from ._signatures import is_coroutine_function
from .errors import InvalidArgument
from .retry import DEFAULT_RETRY, RetryPolicy, policy_or

RetryRule = (
    RetryPolicy
    | Mapping[type[BaseException], RetryPolicy | None]
    | Callable[[BaseException, int], timedelta | None]
)
"""When the next attempt comes: by a policy, by the class of the error, or as a function says."""


def checked_rule(rule: Any) -> RetryRule | None:
    """Return a rule that can be followed, or None for none.

    Raises:
        InvalidArgument: It is neither a policy, nor a mapping to policies, nor a plain function.
    """
    if isinstance(rule, Mapping):
        for cls, policy in rule.items():
            if not (isinstance(cls, type) and issubclass(cls, BaseException)):
                raise InvalidArgument("retry", cls, "must be a class of errors, as a key")
            policy_or(DEFAULT_RETRY, policy)
        return dict(rule)
    if rule is None or _is_policy(rule):
        return cast("RetryPolicy | None", rule)
    if callable(rule) and not isinstance(rule, type) and not is_coroutine_function(rule):
        return cast("Callable[[BaseException, int], timedelta | None]", rule)
    raise InvalidArgument(
        "retry",
        rule,
        "must be a policy such as Exponential(), a mapping of errors to policies, or a function",
    )


def _is_policy(rule: Any) -> bool:
    return not isinstance(rule, type) and callable(getattr(rule, "delay", None))


def delay_by_rule(
    rule: RetryRule, error: BaseException, attempt: int, default: RetryPolicy
) -> timedelta | None:
    """Return how long to wait after *attempt* failed with *error*; None to try no more.

    Raises:
        InvalidArgument: What the rule returns is no wait. What it raises passes through.
    """
    if not isinstance(rule, Mapping):
        return _decided(rule, error, attempt)
    named = next((cls for cls in type(error).__mro__ if cls in rule), None)
    policy = default if named is None else rule[named]
    return None if policy is None else _decided(policy, error, attempt)


def _decided(rule: Any, error: BaseException, attempt: int) -> timedelta | None:
    if _is_policy(rule):
        return checks.duration("retry", rule.delay(attempt))
    delay = rule(error, attempt)
    return None if delay is None else checks.duration("retry", delay)
