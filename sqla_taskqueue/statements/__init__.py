"""All SQL of the library: Core statements, built once for each task class and then only run."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain, combinations, product
from typing import Any, Concatenate, ParamSpec

from ..models import TaskModel
from ..states import TaskState
from . import batch, catalogue, claim, enqueue, finish, lease, reading, turn, wakeup
from ._parts import Parts

P = ParamSpec("P")

__all__ = [
    "Statements",
    "batch",
    "catalogue",
    "claim",
    "enqueue",
    "finish",
    "lease",
    "reading",
    "turn",
    "wakeup",
]


class Statements:
    """The statements about one task class, each built at its first use.

    Building one costs several times what running it does, so operations never do: they ask for
    ``statements(finish.complete, "id", "token")`` and get the same object every time.
    """

    def __init__(self, model: TaskModel[Any]) -> None:
        self._parts = Parts(model)
        self._built: dict[Any, Any] = {}

    def __call__(
        self, build: Callable[Concatenate[Parts, P], Any], *args: P.args, **kwargs: P.kwargs
    ) -> Any:
        """Return the statement that *build* makes for these variants."""
        variant = (build, args, *kwargs.values())
        statement = self._built.get(variant)
        if statement is None:
            statement = self._built[variant] = build(self._parts, *args, **kwargs)
        return statement

    def _columns(self) -> tuple[str, ...]:
        """Return the columns of a batch whose tasks say what they must, and no more."""
        model = self._parts.model
        said = ("queue", "name", "payload", "priority", "max_attempts", "key", "unique_key")
        keys = {column.key for column in (*model.primary_key, *model.scope.values())}
        return tuple(sorted({*said, "created_by", *keys}))

    def all(self) -> dict[str, Any]:
        """Build every statement there is, by name: what guards and plan tests walk over."""
        model = self._parts.model
        full = tuple(model.scope)
        scopes = [*chain.from_iterable(combinations(full, n) for n in range(len(full) + 1))]
        by_fence = [("id", "token"), ("id", "holder"), ("key", "holder")]
        forced = [("id", "live"), ("key", "live")]
        variants: list[tuple[Callable[..., Any], list[tuple[Any, ...]]]] = [
            (enqueue.insert_task, [*product(("delay", "run_at"), ("nothing", "raise"))]),
            (enqueue.existing, [("id",), ("key",), ("unique_key",)]),
            (enqueue.record_created, [()] if model.events else []),
            (claim.claim, [()]),
            (claim.take, [("queued",), ("held",), ("expired",)]),
            (lease.heartbeat, [*by_fence]),
            (lease.reclaim, [*product(scopes, ("lease", "heartbeat"), (False, True))]),
            (lease.reclaim, [*product(scopes, ("lease",), (False, True), (True,))]),
            (lease.oldest, [*product(scopes, (False, True))]),
            (lease.give_up, [()]),
            (lease.look, [*product(("id", "key"), (False, True))]),
            (finish.complete, [*by_fence, *forced]),
            (
                finish.fail,
                [
                    (*pair, ending)
                    for pair in by_fence
                    for ending in ("retry", "final", "exhausted")
                ],
            ),
            (finish.release, [*by_fence]),
            (finish.snooze, [*by_fence]),
            (finish.cancel, [("id",), ("key",)]),
            (finish.retry, [("id",), ("key",)]),
            (reading.get, [*product(scopes, ("id", "key"))]),
            (
                reading.find,
                [
                    *product(
                        scopes,
                        ((), (TaskState.DONE, TaskState.FAILED)),
                        ((), (*reading.FILTERS, "after")),
                        (False, True),
                    )
                ],
            ),
            (reading.history, [()] if model.events else []),
            (reading.stats, [(scope,) for scope in scopes]),
            (catalogue.whole_index, [()]),
            (wakeup.notify, [()]),
            (
                batch.insert_tasks,
                [*product([self._columns()], ("now", "given"), ("nothing", "raise"))],
            ),
            (batch.existing_tasks, [("id",), ("key",), ("unique_key",)]),
            (batch.record_created, [()] if model.events else []),
            (batch.heartbeats, [()]),
            (batch.completions, [()]),
            (batch.failures, [(False,), (True,)]),
            (batch.look, [()]),
            (batch.by_keys, [()]),
            (
                turn.turn,
                [
                    pair
                    for pair in product(("none", "direct", "careful"), ("none", "full", "floor"))
                    if pair != ("none", "none")
                ],
            ),
            (turn.claimed_under, [()]),
            (turn.next_due, [()]),
            (turn.scopes, [()]),
            (batch.prune, [(scope, ()) for scope in scopes]),
        ]
        return {
            f"{build.__module__.rpartition('.')[2]}.{build.__name__}{args!r}": self(build, *args)
            for build, rows in variants
            for args in rows
        }
