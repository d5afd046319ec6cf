"""Where a worker takes its tasks from: queues and scopes, in fair turns."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from math import inf
from typing import TYPE_CHECKING, Any

from ..statements import turn as statements
from ._floor import Floor, Look, Position

if TYPE_CHECKING:
    from sqlalchemy import Column, Connection

    from .._core import QueueCore
    from ..models import TaskModel
    from ._jobs import Job

_BEGINNING = timedelta(days=-36_500)
_BACK = timedelta(seconds=5)
_FIND_SHARE = 20
"""The search for scopes takes at most one part in so many of the time."""
_MOST_FORGOTTEN = 1_000
"""How many floors of scopes without tasks are kept."""


class Source:
    """One queue in one scope: its floor, and when the next look at it is due."""

    def __init__(self, core: QueueCore[Any], lease: timedelta) -> None:
        self.core = core
        self.lease = lease
        self.place = (core.name, *(core.scope[name] for name in core.model.scope))
        """Which queue and scope."""
        self.ready_at = 0.0
        self.empty = False
        """Whether the last full look found nothing."""
        key, free = core.model.primary_key, core.model.free_key
        self.key_size = len(key)
        self._free = [index for index, column in enumerate(key) if column in set(free)]
        self._names = [column.key for column in free]
        # What Python cannot put in order ranks by its time alone: a look further back finds it.
        self.rank: Callable[[Position], Any] = _all_of_it if all(map(_has_order, free)) else _time
        self.floor = Floor(self.rank)

    def __repr__(self) -> str:
        scope = "".join(f", {name}={value!r}" for name, value in self.core.scope.items())
        return f"<{self.core.name!r}{scope}>"

    @property
    def model(self) -> TaskModel[Any]:
        """The task class."""
        return self.core.model

    def free_part(self, key: Sequence[Any]) -> tuple[Any, ...]:
        """Return the part of a primary key that the scope does not determine."""
        return tuple(key[index] for index in self._free)

    def params(self, look: Look) -> dict[str, Any]:
        """Return the parameters of a look beside the limit and the lease."""
        if look == "full":
            return self.core.inside
        lanes = sorted(self.floor.lanes.items())
        positions: Iterable[Sequence[Any]] = zip(*(at for _, at in lanes), strict=True)
        columns = zip(("run_at", *self._names), positions, strict=True)
        return {
            **self.core.inside,
            "tq_lane_priority": [priority for priority, _ in lanes],
            **{f"tq_lane_{name}": list(values) for name, values in columns},
            "tq_lookback": _BACK if look == "back" else _BEGINNING,
        }

    def learn(
        self, look: Look, now: float, seconds: float, jobs: Sequence[Job], *, limit: int
    ) -> None:
        """Take in what a look has found."""
        found: list[tuple[int, Position]] = [(job.priority, job.position) for job in jobs]
        self.floor.learn(look, now, seconds, found, limit=limit)
        self.empty = look == "full" and not jobs
        # Not later than somebody has asked for meanwhile, who knows of what the look came too
        # early for.
        self.ready_at = min(
            self.ready_at, now if len(jobs) == limit else max(self.floor.next_full, now)
        )

    def rest(self, until: float) -> None:
        """Look no sooner than *until*, unless woken: nothing was there."""
        if self.ready_at > 0.0:
            self.ready_at = until

    def wake(self) -> None:
        """Look again at once."""
        self.ready_at = 0.0

    def look_by(self, then: float) -> None:
        """Look again at *then* if not before: a task is due."""
        self.ready_at = min(self.ready_at, then)


def _all_of_it(position: Position) -> Any:
    return position


def _time(position: Position) -> Any:
    return position[0]


def _has_order(column: Column[Any]) -> bool:
    """Tell whether Python can compare a column's values: an ``Enum``'s, for one, it cannot."""
    try:
        kind: Any = column.type.python_type
    except NotImplementedError:
        return False
    return any("__lt__" in vars(of) for of in kind.__mro__[:-1])  # all but object's own


class Sources:
    """The sources of one task class: known from the start, or found in its scopes.

    Args:
        cores: The queues, all of one class, none with its whole scope bound unless it has none.
        scopes: The scopes to work in; None to find them.
        lease: How long claims are held.
    """

    def __init__(
        self,
        cores: Sequence[QueueCore[Any]],
        scopes: Sequence[Mapping[str, Any]] | None,
        lease: Mapping[str, timedelta],
    ) -> None:
        self.model: TaskModel[Any] = cores[0].model
        self._cores = {core.name: core for core in cores}
        self._lease = lease
        whole = all(len(core.scope) == len(self.model.scope) for core in cores)
        self.finds = scopes is None and not whole
        """Whether its scopes have to be found."""
        self.find_at = 0.0
        self._find_not_before = 0.0
        self._forgotten: dict[tuple[Any, ...], Source] = {}
        self._known: dict[tuple[Any, ...], Source] = {}
        if not self.finds:
            for core in cores:
                for scope in scopes or [{}]:
                    bound = core.scoped(scope)
                    bound.need_scope("the worker")
                    self._add(bound)
        self._order: list[Source] = [*self._known.values()]
        self._next = 0

    def _add(self, core: QueueCore[Any]) -> None:
        source = Source(core, self._lease[core.name])
        self._known.setdefault(source.place, source)

    def __iter__(self) -> Any:
        return iter(self._order)

    def ready(self, now: float) -> Source | None:
        """Return the next source that is due for a look, each in its turn."""
        order = self._order
        for step in range(len(order)):
            index = (self._next + step) % len(order)
            if order[index].ready_at <= now:
                self._next = index + 1
                return order[index]
        return None

    @property
    def ready_at(self) -> float:
        """When the next look is due, also one for scopes."""
        times = [source.ready_at for source in self._order]
        if self.finds:
            times.append(self.find_at)
        return min(times, default=0.0)

    def wake(self, queue: str | None = None) -> None:
        """Look again at once at a queue, or at all of them."""
        for source in self._order:
            if queue is None or source.core.name == queue:
                source.wake()
        if queue is None or queue in self._cores:
            self.find_at = self._find_not_before

    def requeued(self, source: Source, then: float) -> None:
        """Take note that a task of a source is queued again, and due at *then*."""
        source.look_by(then)
        if self.finds and self._known.get(source.place) is not source:
            # Its scope had no other task, and was forgotten.
            self.find_at = min(self.find_at, max(then, self._find_not_before))

    def begin_to_find(self) -> None:
        """Take note that scopes are being looked for; whoever wakes meanwhile is heard."""
        self.find_at = inf

    def end_to_find(self, now: float, seconds: float, pause: float) -> None:
        """Look for scopes again after a pause, or when woken; within a share of the time."""
        self._find_not_before = now + _FIND_SHARE * seconds
        self.find_at = max(min(self.find_at, now + pause), self._find_not_before)

    def query(self, connection: Connection) -> list[Any]:
        """Return the scopes and queues that have queued tasks."""
        statement = next(iter(self._cores.values())).statements(statements.scopes)
        return [*connection.execute(statement)]

    def found(self, rows: Iterable[Sequence[Any]]) -> None:
        """Take in the scopes and queues that have queued tasks; forget the others."""
        names = tuple(self.model.scope)
        wanted: dict[tuple[Any, ...], dict[str, Any]] = {}
        for row in rows:
            *values, queue = row
            if queue in self._cores:
                wanted[queue, *values] = dict(zip(names, values, strict=True))
        for place in [place for place in self._known if place not in wanted]:
            # With its floor: tenants come and go, and what is dead in the index stays.
            self._forgotten[place] = self._known.pop(place)
        new: list[Source] = []
        for place, scope in wanted.items():
            if place not in self._known:
                core = self._cores[place[0]]
                if any(scope[name] != value for name, value in core.scope.items()):
                    continue
                if (source := self._forgotten.pop(place, None)) is None:
                    source = Source(core.scoped(scope), self._lease[core.name])
                source.wake()
                self._known[place] = source
                new.append(source)
        for place in list(self._forgotten)[:-_MOST_FORGOTTEN]:
            del self._forgotten[place]
        # Whoever's turn is next keeps it; those that are new come last.
        following = self._order[self._next :] + self._order[: self._next]
        self._order = [source for source in following if source.place in wanted] + new
        self._next = 0
