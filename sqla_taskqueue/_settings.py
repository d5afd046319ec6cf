"""What both facades are made with: a class, a name, a scope and settings."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

from ._core import Notify, QueueCore
from .limits import Limits
from .mixins import TaskMixin
from .retry import RetryPolicy

TaskT = TypeVar("TaskT", bound=TaskMixin)


class QueueSettings(Generic[TaskT]):
    """What both facades are: a class, a name, a scope and settings, but no engine.

    Make one at module level; it costs nothing until it is used.

    Args:
        model: The host's mapped class with :class:`~sqla_taskqueue.TaskMixin`.
        name: The queue's name, at most 100 bytes.
        limits: Bounds and defaults; :meth:`Limits.board` for classes with ``BoardMixin``.
        retry: How long a failed task waits; by default 5 s, doubled each time, at most an hour.
        notify: ``"transaction"`` wakes workers by NOTIFY when the caller commits, ``"off"``
            leaves it to their polling. A session that prepares its transaction (two-phase)
            never notifies.

    Raises:
        UnsupportedModel: The class cannot carry a queue.
        InvalidArgument: The name or a setting is out of range.
    """

    def __init__(
        self,
        model: type[TaskT],
        name: str = "default",
        *,
        limits: Limits | None = None,
        retry: RetryPolicy | None = None,
        notify: Notify = "transaction",
    ) -> None:
        self._core: QueueCore[TaskT] = QueueCore(
            model, name, limits=limits, retry=retry, notify=notify
        )

    @property
    def model(self) -> type[TaskT]:
        """The host's task class."""
        return self._core.model.cls

    @property
    def name(self) -> str:
        """The queue's name."""
        return self._core.name

    @property
    def limits(self) -> Limits:
        """Bounds and defaults."""
        return self._core.limits

    @property
    def scope_values(self) -> dict[str, Any]:
        """The scope columns that are bound, and their values."""
        return dict(self._core.scope)

    def __repr__(self) -> str:
        bound = "".join(f", {name}={value!r}" for name, value in self._core.scope.items())
        return f"<{type(self).__name__} {self.name!r} of {self.model.__name__}{bound}>"
