"""What a worker is told, and how it is started and stopped."""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Self

from sqlalchemy import Engine
from sqlalchemy.orm import Session, sessionmaker

from .. import checks
from ..errors import InvalidArgument, UnsupportedDialect
from ..handlers import AnyHandler, Handlers
from ..states import ENDED, TaskState
from ..values import Holder
from ._run import Run

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, async_sessionmaker

    from .._core import QueueCore

    Sessions = sessionmaker[Any] | async_sessionmaker[Any] | Callable[[], Session | AsyncSession]

_MOST = 10_000
_NO_TIME = timedelta(0)


class Worker:
    """Works on the tasks of some queues, in an event loop of the application's or its own.

    ::

        worker = Worker(engine, tasks, concurrency=20)
        asyncio.run(worker.run())

    Handlers that are coroutine functions run in the event loop, the others in threads. The engine
    is the application's, synchronous or asynchronous, with any supported driver. The worker holds
    four connections beside its pool: for claiming and ending, for leases, for upkeep and, with
    *listen*, for wake-ups.

    Args:
        engine: The application's ``Engine`` or ``AsyncEngine``.
        handlers: The registries whose queues it works on.
        queues: Names of those of their queues to work on; all by default.
        scopes: For a scoped class, the scopes to work in, as mappings. By default all that have
            tasks, found once per *poll*. In either case queues and scopes take turns.
        concurrency: How many tasks it works on at once, in threads or as coroutines.
        name: The worker's name as holder; by default the host's name, process id and some
            random characters. Two workers at once never share one.
        lease: How long it may be silent before others take its tasks; by default the queue's. It
            is renewed every third of that, at least every 30 s.
        poll: How long between two looks at a queue that seems empty: how late a task starts when
            no notification came.
        grace: How long handlers may go on once the worker is to stop.
        listen: Whether to be woken by notifications; without it, the worker polls only.
        sessions: Makes the sessions that handlers are given; by default sessions of *engine*
            that expire nothing at commit.
        sweep: How long between two looks for leases that ran out.
        prune: How long ended tasks are kept, or how long by state; for ever by default.

    Raises:
        InvalidArgument: An argument is out of range.
        UnsupportedDialect: The engine is not PostgreSQL's.
    """

    def __init__(
        self,
        engine: Engine | AsyncEngine,
        *handlers: Handlers[Any],
        queues: Iterable[str] | None = None,
        scopes: Iterable[Mapping[str, Any]] | None = None,
        concurrency: int = 10,
        name: str | None = None,
        lease: timedelta | None = None,
        poll: timedelta = timedelta(seconds=1),
        grace: timedelta = timedelta(seconds=30),
        listen: bool = True,
        sessions: Sessions | None = None,
        sweep: timedelta = timedelta(seconds=5),
        prune: timedelta | Mapping[TaskState | str, timedelta] | None = None,
    ) -> None:
        self.engine = engine
        self.is_async = not isinstance(engine, Engine)
        if (dialect := engine.dialect.name) != "postgresql":
            raise UnsupportedDialect(dialect)
        self._registries = _registries(handlers)
        self.cores = _chosen(self._registries, queues)
        self.scopes = None if scopes is None else _checked_scopes(self.cores, scopes)
        self.concurrency = checks.whole("concurrency", concurrency, least=1, most=_MOST)
        size = min(core.limits.name for core in self.cores)
        self.holder = Holder.of(_own_name() if name is None else name, size)
        self.poll = _positive("poll", poll)
        self.grace = checks.duration("grace", grace)
        self.sweep = _positive("sweep", sweep)
        self.listen = checks.flag("listen", listen)
        self.ages = _ages(prune)
        self._handlers = {
            (handler.queue.model, handler.queue.name, handler.name): handler
            for registry in self._registries
            for handler in registry
        }
        self._check_handlers()
        self.lease = {
            core: core.limits.clamp_lease(self._longest_lease(core, lease)) for core in self.cores
        }
        self.sessions: Callable[[], Any] = _sessions(engine) if sessions is None else sessions
        self._run: Run | None = None
        self._options: dict[str, Any] = {
            "queues": None if queues is None else [core.name for core in self.cores],
            "scopes": self.scopes,
            "concurrency": concurrency,
            "name": name,
            "lease": lease,
            "poll": poll,
            "grace": grace,
            "listen": listen,
            "sessions": sessions,
            "sweep": sweep,
            "prune": prune,
        }

    def __repr__(self) -> str:
        queues = ", ".join(repr(core.name) for core in self.cores)
        return f"<Worker {self.holder.worker!r} of {queues}>"

    @property
    def name(self) -> str:
        """The worker's name, as holders are called."""
        return self.holder.worker

    @property
    def handlers(self) -> list[AnyHandler]:
        """Its handlers."""
        return list(self._handlers.values())

    def find(self, model: type[Any], queue: str, name: str) -> AnyHandler | None:
        """Return the handler of a task."""
        return self._handlers.get((model, queue, name))

    def replace(self, **options: Any) -> Self:
        """Return a worker with the same engine, handlers and options, but for those given.

        Raises:
            InvalidArgument: An option is out of range.
        """
        return type(self)(self.engine, *self._registries, **{**self._options, **options})

    async def run(self) -> None:
        """Work until :meth:`stop` is called, and end in order.

        Nothing more is claimed then. Handlers may go on for the grace period; afterwards
        coroutines are cancelled and their tasks given back, the attempt with them. A thread that
        does not end is named in the log, and its task left to its lease.

        Cancelling this coroutine ends the worker at once: it gives back what it has. It works in
        any thread and inside a running loop, and leaves signal handlers alone.

        Raises:
            WorkerFailed: The worker cannot go on, for the reason that is its cause: a table that
                is missing, a password that is wrong. Whatever passes by itself, such as a server
                that restarts, is waited for.
            RuntimeError: It runs already.
        """
        if self._run is not None:
            raise RuntimeError(f"{self!r} runs already")
        self._run = Run(self)
        try:
            await self._run.perform()
        finally:
            self._run = None

    def stop(self) -> None:
        """Ask the worker to end; from any thread, or from a signal handler."""
        run = self._run
        if run is not None:
            run.stop()

    # --- Checks ---------------------------------------------------------------------------------

    def _longest_lease(self, core: QueueCore[Any], lease: timedelta | None) -> timedelta:
        """Return the lease of a queue's claims: long enough for each of its handlers."""
        leases = [core.limits.lease if lease is None else core.limits.clamp_lease(lease)]
        for (model, queue, _), handler in self._handlers.items():
            if model is core.model.cls and queue == core.name and handler.lease is not None:
                leases.append(handler.lease)
        return max(leases)

    def _check_handlers(self) -> None:
        wanted = "AsyncSession" if self.is_async else "Session"
        for handler in self._handlers.values():
            kind = handler.session_type
            if kind is None:
                continue
            if issubclass(kind, Session) is self.is_async:
                problem = f"takes a {kind.__name__}, but the worker's engine makes {wanted}s"
                raise InvalidArgument("handlers", handler, problem)
            if handler.is_async is False and self.is_async:
                problem = "is a plain function and takes a session of an asynchronous engine"
                raise InvalidArgument("handlers", handler, problem)
        for handler in self._handlers.values():
            if handler.takes_task and self.is_async and not handler.is_async:
                problem = (
                    "is a plain function and takes the task, which an asynchronous engine "
                    "cannot load for it; take the Claim"
                )
                raise InvalidArgument("handlers", handler, problem)


def _registries(handlers: Sequence[Any]) -> list[Handlers[Any]]:
    if not handlers:
        raise InvalidArgument("handlers", handlers, "must be one registry or more")
    for one in handlers:
        if not isinstance(one, Handlers):
            raise InvalidArgument(
                "handlers", one, f"must be registries, Handlers(queue), not {type(one).__name__}"
            )
    return list(handlers)


def _chosen(
    registries: Sequence[Handlers[Any]], names: Iterable[str] | None
) -> list[QueueCore[Any]]:
    """Return the queues to work on, each once."""
    cores: dict[tuple[type[Any], str], QueueCore[Any]] = {}
    first: dict[type[Any], QueueCore[Any]] = {}
    for registry in registries:
        for queue in registry.queues:
            core = queue._core  # noqa: SLF001 # pyright: ignore[reportPrivateUsage]
            # One statement may end tasks of several queues.
            core = core.sharing(first.setdefault(queue.model, core))
            kept = cores.setdefault((queue.model, queue.name), core)
            if kept.scope != core.scope:
                problem = (
                    f"has other scope values than another registry's queue {queue.name!r}; leave "
                    "them out, and give the worker its scopes"
                )
                raise InvalidArgument("handlers", registry, problem)
    if names is None:
        return list(cores.values())
    wanted = checks.items("queues", names, "names")
    known = {name for _, name in cores}
    for name in wanted:
        if name not in known:
            listed = ", ".join(sorted(known))
            raise InvalidArgument("queues", name, f"has no handlers here; there are {listed}")
    chosen = [core for core in cores.values() if core.name in wanted]
    if not chosen:
        raise InvalidArgument("queues", names, "must name one queue or more")
    return chosen


def _checked_scopes(
    cores: Sequence[QueueCore[Any]], scopes: Iterable[Mapping[str, Any]]
) -> list[Mapping[str, Any]]:
    given: list[Any] = checks.items("scopes", scopes, "mappings")
    if not given:
        raise InvalidArgument("scopes", given, "must be one scope or more; None finds them")
    for scope in given:
        if not isinstance(scope, Mapping):
            problem = f"must be mappings of scope columns, not {type(scope).__name__}"
            raise InvalidArgument("scopes", scope, problem)
        for core in cores:
            if core.model.scope:
                core.scoped(scope).need_scope("the worker")
    return given


def _positive(name: str, value: timedelta) -> timedelta:
    if checks.duration(name, value) == _NO_TIME:
        raise InvalidArgument(name, value, "must be more than zero")
    return value


def _ages(prune: Any) -> dict[TaskState, timedelta]:
    if prune is None:
        return {}
    if not isinstance(prune, Mapping):
        return dict.fromkeys(ENDED, checks.duration("prune", prune))
    ages: dict[TaskState, timedelta] = {}
    for state, age in prune.items():
        if state not in tuple(ENDED):
            known = ", ".join(ENDED)
            raise InvalidArgument("prune", state, f"must name ended states: {known}")
        ages[TaskState(state)] = checks.duration("prune", age)
    return ages


def _own_name() -> str:
    return f"{socket.gethostname()[:60]}:{os.getpid()}:{secrets.token_hex(3)}"


def _sessions(engine: Any) -> Callable[[], Any]:
    if isinstance(engine, Engine):
        return sessionmaker(engine, expire_on_commit=False)
    from sqlalchemy.ext.asyncio import async_sessionmaker  # noqa: PLC0415 - needs greenlet

    return async_sessionmaker(engine, expire_on_commit=False)
