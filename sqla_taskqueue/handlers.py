"""Handlers: the functions that work on tasks, by the name and queue of the task.

::

    tasks = Handlers(emails)


    @tasks.handler(max_attempts=3)
    def send_welcome(session: Session, user_id: int) -> None: ...


    with Session.begin() as session:
        send_welcome.enqueue(session, user_id=7)

A registry is a value like any other; nothing is global to the process.
"""

from __future__ import annotations

import functools
import inspect
import logging
import sys
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, TypeVar, final, overload

from . import checks
from ._enqueuer import Enqueuer, Q
from ._rules import RetryRule, checked_rule, delay_by_rule
from ._settings import QueueSettings, TaskT
from ._signatures import Parameters, described, is_coroutine_function
from .errors import InvalidArgument
from .retry import DEFAULT_RETRY, RetryPolicy
from .values import MaxAttempts, TaskSpec

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncSession
    from sqlalchemy.orm import Session

    from .mixins import TaskMixin
    from .values import Claim

P = ParamSpec("P")
"""What the function takes."""
R = TypeVar("R")
# A variable that is bound, not the union itself: a parameter of type `Session | None` or `object`
# would take a session, too, but none is injected there.
FirstT = TypeVar("FirstT", bound="TaskMixin | Claim[Any] | Session | AsyncSession")
SecondT = TypeVar("SecondT", bound="TaskMixin | Claim[Any] | Session | AsyncSession")
ThirdT = TypeVar("ThirdT", bound="TaskMixin | Claim[Any] | Session | AsyncSession")

log = logging.getLogger("sqla_taskqueue.handlers")


@final
class Handler(Enqueuer[Q], Generic[P, Q, R]):
    """A function that works on tasks. It can still be called as the function that it is.

    Made by :attr:`Handlers.handler`.

    Attributes:
        name: Which tasks it works on.
        queue: The queue of these tasks.
        function: The function.
        is_async: Whether it is to be awaited.
        priority: Of its tasks, unless an option says otherwise.
        max_attempts: Of its tasks, unless an option says otherwise.
        retry: When the next attempt comes; None for the queue's policy.
        time_limit: How long one attempt may take; None for no limit.
        lease: How long its tasks are leased; None for the worker's default.
        session_type: ``Session`` or ``AsyncSession`` if one is injected; None if not.
        takes_task: Whether the host's entity is injected.
        takes_claim: Whether the claim is injected.
    """

    def __init__(
        self,
        function: Callable[P, R],
        queue: QueueSettings[Any],
        template: TaskSpec,
        *,
        retry: RetryRule | None,
        time_limit: timedelta | None,
        lease: timedelta | None,
    ) -> None:
        # Without the function's own attributes: one named `enqueue` would hide the method.
        functools.update_wrapper(self, function, updated=())
        parameters = Parameters(function, queue.model, template.name)
        super().__init__(parameters, queue._core, template)  # noqa: SLF001 # pyright: ignore[reportPrivateUsage]
        self.name = template.name
        self.queue = queue
        self.function = function
        self.is_async = is_coroutine_function(function)
        if self.is_async and sys.version_info >= (3, 12):
            # For others that want to know whether to await it.
            inspect.markcoroutinefunction(self)
        self.priority = template.priority
        self.max_attempts = template.max_attempts
        self.retry = retry
        self.time_limit = time_limit
        self.lease = lease
        self.session_type = parameters.session_type
        self.takes_task = "task" in parameters.injected
        self.takes_claim = "claim" in parameters.injected

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function."""
        return self.function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<Handler {self.name!r} of queue {self.queue.name!r}: {described(self.function)}>"

    def arguments(self, payload: Any) -> dict[str, Any]:
        """Return what a stored payload gives to the function's own parameters.

        A handler that takes nothing but what is injected, the claim or the task among it, reads
        the payload there, whatever it is.

        Raises:
            UnfitArguments: The payload does not fit.
        """
        return self._parameters.arguments(payload)

    def call(
        self,
        arguments: dict[str, Any],
        *,
        task: Any = None,
        claim: Any = None,
        session: Any = None,
    ) -> Any:
        """Call the function as a worker does: with :meth:`arguments`, and what is injected."""
        return self._parameters.call(arguments, task, claim, session)

    def delay_after(
        self, error: BaseException, attempt: int, default: RetryPolicy
    ) -> timedelta | None:
        """Return how long to wait after *attempt* failed with *error*; None to try no more.

        A rule that raises, or returns what is no wait, gives way to the *default*, and that to the
        library's own: no task must get lost over it.
        """
        for rule in (self.retry, default):
            if rule is not None:
                try:
                    return delay_by_rule(rule, error, attempt, default)
                except Exception:
                    log.warning("%r: no delay by %r", self, rule, exc_info=True)
        return DEFAULT_RETRY.delay(attempt)


AnyHandler = Handler[..., ..., Any]
"""A handler of which nothing more is known."""


@final
class _Anything:
    """What only a parameter of type ``Any`` or ``object`` takes."""


@final
class HandlerDecorator(Generic[TaskT]):
    """What ``@tasks.handler`` is: it makes a handler of a function, or takes options first."""

    def __init__(self, register: Callable[..., Any], options: Mapping[str, Any]) -> None:
        self._register = register
        self._options = options

    # A first or second parameter of type Any would pass for an injected one: nothing is known
    # then of what enqueueing takes.
    @overload
    def __call__(
        self, function: Callable[Concatenate[_Anything, ...], R], /
    ) -> Handler[..., ..., R]: ...
    @overload
    def __call__(
        self, function: Callable[Concatenate[FirstT, _Anything, ...], R], /
    ) -> Handler[..., ..., R]: ...
    @overload
    def __call__(
        self, function: Callable[Concatenate[FirstT, SecondT, _Anything, ...], R], /
    ) -> Handler[..., ..., R]: ...
    @overload
    def __call__(
        self, function: Callable[Concatenate[FirstT, SecondT, ThirdT, Q], R], /
    ) -> Handler[Concatenate[FirstT, SecondT, ThirdT, Q], Q, R]: ...
    @overload
    def __call__(
        self, function: Callable[Concatenate[FirstT, SecondT, Q], R], /
    ) -> Handler[Concatenate[FirstT, SecondT, Q], Q, R]: ...
    @overload
    def __call__(
        self, function: Callable[Concatenate[FirstT, Q], R], /
    ) -> Handler[Concatenate[FirstT, Q], Q, R]: ...
    @overload
    def __call__(self, function: Callable[Q, R], /) -> Handler[Q, Q, R]: ...
    @overload
    def __call__(
        self,
        /,
        *,
        name: str | None = None,
        queue: QueueSettings[TaskT] | None = None,
        priority: int = 0,
        max_attempts: MaxAttempts = "default",
        retry: RetryRule | None = None,
        time_limit: timedelta | None = None,
        lease: timedelta | None = None,
    ) -> HandlerDecorator[TaskT]: ...
    def __call__(self, function: Any = None, /, **options: Any) -> Any:
        """Make a handler of *function*, or return a decorator with these options.

        Args:
            function: The function, a coroutine function or not.
            name: Which tasks it works on; by default the function's own name.
            queue: Another queue of the same class than the registry's.
            priority: Of its tasks.
            max_attempts: Of its tasks; None for no limit, by default the queue's.
            retry: When the next attempt comes. A policy; or policies by class of error, of which
                the most specific counts, None stands for no further attempt, and classes that
                are not named follow the queue's policy; or a function of the error and the
                attempt that returns the wait, or None.
            time_limit: How long one attempt may take.
            lease: How long its tasks are leased, within the queue's limits.

        Raises:
            InvalidArgument: An option is out of range, or the name is taken in the queue.
            UnsupportedHandler: The function takes what no payload has, or what is not injected.
        """
        if function is None:
            return HandlerDecorator[TaskT](self._register, {**self._options, **options})
        return self._register(function, **self._options)


class Handlers(Generic[TaskT]):
    """The handlers of one application, or of a part of it.

    Args:
        queue: The queue of handlers that name none, a ``Queue`` or an ``AsyncQueue``.

    Raises:
        InvalidArgument: It is no queue.
    """

    def __init__(self, queue: QueueSettings[TaskT]) -> None:
        self._queue: QueueSettings[TaskT] = _checked_queue(queue)
        self._handlers: dict[tuple[str, str], AnyHandler] = {}

    @property
    def handler(self) -> HandlerDecorator[TaskT]:
        """Decorate a function to make it a handler, with or without options.

        ::

            @tasks.handler
            def send_welcome(user_id: int) -> None: ...


            @tasks.handler(max_attempts=3, time_limit=timedelta(minutes=1))
            async def resize(session: AsyncSession, picture_id: int) -> None: ...

        The options are *name*, *queue*, *priority*, *max_attempts*, *retry*, *time_limit* and
        *lease*, the attributes of :class:`Handler`. A *retry* rule is a policy; or policies by
        class of error, of which the most specific counts and None stands for no further attempt;
        or a function of the error and the attempt that returns the wait, or None.

        Raises:
            InvalidArgument: An option is out of range, or the name is taken in the queue.
            UnsupportedHandler: The function takes what no payload has, or what is not injected.
        """
        return HandlerDecorator(self._register, {})

    @property
    def model(self) -> type[TaskT]:
        """The host's task class."""
        return self._queue.model

    @property
    def queues(self) -> tuple[QueueSettings[TaskT], ...]:
        """The queues by name, each once: the registry's own first, then in order of handlers."""
        found = {self._queue.name: self._queue}
        for handler in self:
            found.setdefault(handler.queue.name, handler.queue)
        return tuple(found.values())

    def get(self, queue_name: str, name: str) -> AnyHandler | None:
        """Return the handler of the tasks with this name in this queue, if there is one."""
        return self._handlers.get((queue_name, name))

    def __iter__(self) -> Iterator[AnyHandler]:
        return iter(self._handlers.values())

    def __len__(self) -> int:
        return len(self._handlers)

    def __repr__(self) -> str:
        return f"<Handlers of {self._queue!r}: {', '.join(one.name for one in self) or 'none'}>"

    def _register(
        self,
        function: Any,
        *,
        name: str | None = None,
        queue: QueueSettings[TaskT] | None = None,
        priority: int = 0,
        max_attempts: MaxAttempts = "default",
        retry: RetryRule | None = None,
        time_limit: timedelta | None = None,
        lease: timedelta | None = None,
    ) -> AnyHandler:
        """Make a handler, all of it checked, and keep it."""
        if isinstance(function, Handler):
            # A handler of another registry, or of another queue.
            function = function.function
        elif isinstance(function, staticmethod):
            function = function.__func__
        queue = self._queue if queue is None else _checked_queue(queue, self.model)
        limits = queue.limits
        name = checks.text("name", _name_of(function) if name is None else name, size=limits.name)
        if (queue.name, name) in self._handlers:
            raise InvalidArgument("name", name, f"has a handler in queue {queue.name!r} already")
        if not (isinstance(max_attempts, str) and max_attempts == "default"):
            max_attempts = checks.max_attempts(max_attempts)
        handler: AnyHandler = Handler(
            function,
            queue,
            TaskSpec(name, priority=checks.priority(priority), max_attempts=max_attempts),
            retry=checked_rule(retry),
            time_limit=None if time_limit is None else _positive("time_limit", time_limit),
            lease=None if lease is None else limits.clamp_lease(_positive("lease", lease)),
        )
        self._handlers[queue.name, name] = handler
        return handler


def _checked_queue(
    queue: QueueSettings[TaskT], model: type[TaskT] | None = None
) -> QueueSettings[TaskT]:
    if not isinstance(queue, QueueSettings):
        raise InvalidArgument(
            "queue", queue, f"must be a Queue or AsyncQueue, not {type(queue).__name__}"
        )
    if model is not None and queue.model is not model:
        problem = f"must be a queue of {model.__name__}, as the registry's is"
        raise InvalidArgument("queue", queue, problem)
    return queue


def _name_of(function: Any) -> str:
    name = getattr(function, "__name__", None)
    if not isinstance(name, str) or name == "<lambda>":
        problem = f"must be given: {described(function)} has none of its own"
        raise InvalidArgument("name", None, problem)
    return name


def _positive(argument: str, value: timedelta) -> timedelta:
    if not checks.duration(argument, value):
        raise InvalidArgument(argument, value, "must be more than zero")
    return value
