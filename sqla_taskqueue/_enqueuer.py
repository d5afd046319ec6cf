"""Enqueueing by the arguments of a handler's function, for either kind of session."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, overload

from . import _operations as operations
from . import checks
from ._core import QueueCore
from ._sessions import caller, runner
from ._signatures import Parameters, async_classes
from .errors import InvalidArgument
from .values import Enqueued, MaxAttempts, TaskSpec

if TYPE_CHECKING:
    from sqlalchemy import Connection
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_scoped_session
    from sqlalchemy.orm import Session, scoped_session

    AnySession = Session | scoped_session[Any] | Connection
    AnyAsyncSession = AsyncSession | async_scoped_session[Any] | AsyncConnection

Q = ParamSpec("Q")
"""What enqueueing takes: the parameters of the function, without what is injected."""


def _is_async(session: object) -> bool:
    return isinstance(
        session, async_classes("AsyncSession", "async_scoped_session", "AsyncConnection")
    )


def _run(
    session: Any,
    core: QueueCore[Any],
    operation: Callable[..., Any],
    *args: Any,
    **options: Any,
) -> Any:
    """Return what an operation answers; with an asynchronous session, a coroutine of it."""
    if not _is_async(session):
        return operation(caller(session, core.model), core, *args, **options)

    def run(sync: Any) -> Any:
        return operation(caller(sync, core.model), core, *args, **options)

    async def awaited() -> Any:
        return await runner(session)(run)

    coroutine: Any = awaited()
    # What Python says about it if nobody awaits it.
    coroutine.__qualname__ = f"Handler.{operation.__name__}"
    return coroutine


class Enqueuer(Generic[Q]):
    """Enqueues tasks for one handler; :meth:`options` returns another with options of its own.

    The arguments are those of the function, without what is injected. They are stored as a JSON
    object of the names and values that were given; a default that was not given is not stored.
    """

    def __init__(self, parameters: Parameters, core: QueueCore[Any], template: TaskSpec) -> None:
        self._parameters = parameters
        self._core = core
        self._template = template

    @overload
    def enqueue(self, session: AnySession, /, *args: Q.args, **kwargs: Q.kwargs) -> Enqueued: ...
    @overload
    def enqueue(
        self, session: AnyAsyncSession, /, *args: Q.args, **kwargs: Q.kwargs
    ) -> Coroutine[Any, Any, Enqueued]: ...
    def enqueue(self, session: Any, /, *args: Q.args, **kwargs: Q.kwargs) -> Any:
        """Insert a task with these arguments, in the caller's transaction.

        As :meth:`.Queue.enqueue` does. It is awaited where the session or connection is
        asynchronous, whatever the queue is.

        Returns:
            The id, whether the task was created, and its state.

        Raises:
            TypeError: The arguments do not fit the function, or the session is none.
            InvalidArgument: An option is out of range; InvalidPayload for an argument.
            ScopeMissing: A scope column has no value; use ``options(scope=…)``.
            EnqueueConflict: A unique constraint of the host's own keeps the row out.
        """
        spec = self.spec(*args, **kwargs)
        return _run(session, self._core, operations.enqueue, spec, actor=None, if_exists="return")

    def spec(self, *args: Q.args, **kwargs: Q.kwargs) -> TaskSpec:
        """Return a task with these arguments as a value, for :meth:`enqueue_many`.

        Raises:
            TypeError: The arguments do not fit the function.
        """
        return replace(self._template, payload=self._parameters.payload(args, kwargs))

    @overload
    def enqueue_many(
        self, session: AnySession, specs: Iterable[TaskSpec], /
    ) -> list[Enqueued]: ...
    @overload
    def enqueue_many(
        self, session: AnyAsyncSession, specs: Iterable[TaskSpec], /
    ) -> Coroutine[Any, Any, list[Enqueued]]: ...
    def enqueue_many(self, session: Any, specs: Iterable[TaskSpec], /) -> Any:
        """Insert a task for each of this handler's specs, in the caller's transaction.

        As :meth:`.Queue.enqueue_many` does. Options other than the scope are those of the specs.

        Returns:
            One answer for each spec, in their order.

        Raises:
            InvalidArgument: A spec is another handler's, or out of range; nothing was sent.
        """
        given: list[Any] = checks.items("specs", specs, "TaskSpecs")
        for index, spec in enumerate(given):
            # What is no spec, or has no text for a name, is refused by the operation.
            if not (isinstance(spec, TaskSpec) and isinstance(spec.name, str)):
                continue
            if spec.name != self._template.name:
                problem = f"is not the name of this handler, {self._template.name!r}"
                raise InvalidArgument(f"specs[{index}].name", spec.name, problem)
        return _run(session, self._core, operations.enqueue_many, given, actor=None)

    def options(
        self,
        *,
        key: str | None = None,
        unique_key: str | None = None,
        priority: int | None = None,
        run_at: datetime | None = None,
        delay: timedelta | None = None,
        max_attempts: MaxAttempts = "default",
        values: Mapping[str, Any] | None = None,
        id: Any = None,  # noqa: A002 - the public word
        scope: Mapping[str, Any] | None = None,
    ) -> Enqueuer[Q]:
        """Return what enqueues with these options: ``send.options(key="k").enqueue(session, 7)``.

        See :meth:`.Queue.enqueue` for what they mean. What is not given stays as it is.

        Args:
            max_attempts: None for no limit; by default the handler's.
            scope: Values of scope columns, as :meth:`.Queue.scope` takes them.

        Raises:
            InvalidArgument: The scope has no such columns. What else is out of range is an error
                of the call that enqueues.
        """
        given: dict[str, Any] = {
            "key": key,
            "unique_key": unique_key,
            "priority": priority,
            "run_at": run_at,
            "delay": delay,
            "values": values,
            "id": id,
        }
        given = {name: value for name, value in given.items() if value is not None}
        if not (isinstance(max_attempts, str) and max_attempts == "default"):
            given["max_attempts"] = max_attempts
        core = self._core
        if scope is not None:
            if not isinstance(scope, Mapping):
                raise InvalidArgument(
                    "scope",
                    scope,
                    f"must map names to values, not be of type {type(scope).__name__}",
                )
            core = core.scoped(scope)
        return Enqueuer(self._parameters, core, replace(self._template, **given))
