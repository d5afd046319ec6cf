"""What a queue is made of, shared by the synchronous and the asynchronous facade."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any, Generic, Literal

from . import checks
from ._columns import usable
from .dialects import channel_of
from .errors import InvalidArgument, ScopeMissing, UnsupportedModel
from .limits import Limits
from .models import TaskModel
from .payloads import clean_json, encode
from .retry import DEFAULT_RETRY, RetryPolicy, policy_or
from .statements import Statements
from .values import TaskT

if TYPE_CHECKING:
    from collections.abc import Mapping

Notify = Literal["transaction", "off"]
"""How workers are woken: by NOTIFY in the caller's transaction, or not at all (they poll)."""


_BOUNDED = {
    "error": "error",
    "key": "key",
    "unique_key": "key",
    **dict.fromkeys(("queue", "name", "claimed_by", "claimed_session", "created_by"), "name"),
}
"""Columns of text, and the limits of what is written to them."""


class QueueCore(Generic[TaskT]):
    """A queue's class, name, scope and settings. Holds no engine, session or other state.

    Args:
        cls: The host's task class.
        name: The queue's name.
        limits: Bounds and defaults; those of the class's kind if None.
        retry: What ``fail`` uses unless told otherwise.
        notify: How workers are woken.
    """

    def __init__(
        self,
        cls: type[TaskT],
        name: str,
        *,
        limits: Limits | None,
        retry: RetryPolicy | None,
        notify: Notify,
    ) -> None:
        self.model = TaskModel(cls)
        if limits is None:
            limits = Limits.board() if self.model.is_board else Limits()
        elif not isinstance(limits, Limits):
            raise InvalidArgument(
                "limits", limits, f"must be Limits(…), not {type(limits).__name__}"
            )
        self.limits = limits
        self._check_lengths()
        self.name = checks.text("name", name, size=self.limits.name, trim=True)
        self.retry = policy_or(DEFAULT_RETRY, retry)
        checks.choice("notify", notify, "transaction", "off")
        self.notify: Notify = notify
        self.scope: dict[str, Any] = {}
        self.statements = Statements(self.model)

    def _check_lengths(self) -> None:
        """Insist that text columns that the host bounded hold what the limits let through.

        Raises:
            UnsupportedModel: One does not: an error text could keep a task from its end.
        """
        for name, limit in _BOUNDED.items():
            needed = getattr(self.limits, limit)
            length = getattr(self.model.columns[name].type, "length", None)
            if length is not None and length < needed:
                message = (
                    f"{self.model.cls.__name__} cannot carry a task queue: its column {name} holds "
                    f"{length:,} characters, and the limits let {needed:,} through"
                )
                raise UnsupportedModel(message)

    def scoped(self, values: Mapping[str, Any]) -> QueueCore[TaskT]:
        """Return this queue with scope columns bound, sharing its statements.

        Raises:
            InvalidArgument: A name is no scope column, or a value is None.
        """
        columns, scope = self.model.scope, dict(self.scope)
        for name, value in values.items():
            if name not in columns:
                of, known = self.model.cls.__name__, ", ".join(columns) or "none"
                problem = f"cannot be bound: {of} has no such scope column, only {known}"
                raise InvalidArgument(name, value, problem)
            if value is None:
                raise InvalidArgument(name, value, "cannot be bound: a scope column is never NULL")
            scope[name] = usable(name, columns[name], value)
        bound: QueueCore[TaskT] = object.__new__(type(self))
        bound.__dict__.update(self.__dict__)
        bound.scope = scope
        for derived in ("inside", "scope_columns", "bound"):
            bound.__dict__.pop(derived, None)
        return bound

    def sharing(self, other: QueueCore[TaskT]) -> QueueCore[TaskT]:
        """Return this queue with the statements of another one of the same class."""
        like = self.scoped({})
        like.model, like.statements = other.model, other.statements
        return like

    @cached_property
    def inside(self) -> dict[str, Any]:
        """Parameters that bind the queue and its scope."""
        return self.inside_of(self.scope)

    def inside_of(self, scope: Mapping[str, Any]) -> dict[str, Any]:
        """Return the parameters that bind the queue and the given scope values."""
        return {
            "tq_queue": self.name,
            **{f"tq_scope_{name}": value for name, value in scope.items()},
        }

    @cached_property
    def scope_columns(self) -> dict[str, Any]:
        """The bound scope values by column key, for an INSERT."""
        return {self.model.scope[name].key: value for name, value in self.scope.items()}

    @cached_property
    def bound(self) -> tuple[str, ...]:
        """Names of the bound scope columns, in the class's order."""
        return tuple(name for name in self.model.scope if name in self.scope)

    def need_scope(self, operation: str) -> None:
        """Insist on a value for every scope column.

        Raises:
            ScopeMissing: One has none.
        """
        if len(self.scope) != len(self.model.scope):
            missing = [name for name in self.model.scope if name not in self.scope]
            raise ScopeMissing(self.name, operation, missing)

    @cached_property
    def channel(self) -> str:
        """The notification channel of the task table."""
        return channel_of(self.model.table)

    def event(
        self, actor: str | None, detail: Mapping[str, Any] | None = None, rows: int = 1
    ) -> dict[str, Any]:
        """Return the parameters of recorded events; none where nothing is recorded."""
        if self.model.events is None:
            return {}
        kept = {name: value for name, value in (detail or {}).items() if value is not None}
        return {
            "tq_actor": actor,
            "tq_detail": encode(clean_json(kept)) if kept else None,
            **self.model.events.rows(rows),
        }
