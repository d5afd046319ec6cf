"""What the statements are made of: binds, conditions, fences and recorded events.

Every bind is named ``tq_…``, which no host column is, and every state in a predicate is a
literal. A statement is built once per queue class and compiled through the caller's own
execution options.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Literal

from sqlalchemy import (
    CTE,
    Boolean,
    Column,
    ColumnElement,
    FromClause,
    Integer,
    Interval,
    Select,
    Text,
    Uuid,
    and_,
    any_,
    bindparam,
    case,
    cast,
    delete,
    func,
    insert,
    literal_column,
    select,
    update,
)
from sqlalchemy import column as sql_column
from sqlalchemy import table as sql_table
from sqlalchemy.dialects.postgresql import ARRAY, JSONB
from sqlalchemy.dialects.postgresql import insert as postgresql_insert

from .._columns import is_text
from .._schema import is_state
from ..dialects import StoredJSON, array_of, now
from ..models import EventModel, TaskModel, evaluate
from ..states import LIVE, EventType, TaskState

By = Literal["id", "key"]
"""How the caller names one task."""
Fence = Literal["token", "holder", "live"]
"""What a write demands: the claim's token, the holder's names, or only that the task is live."""

NULL: ColumnElement[Any] = literal_column("NULL")
ONE: ColumnElement[int] = literal_column("1", Integer)

CLAIMED = ("name", "payload", "attempt", "max_attempts", "key", "lease_expires_at")
"""Columns that a claim's value shows, beside the primary key."""

NO_LEASE: dict[str, Any] = {"lease_token": NULL, "lease_expires_at": NULL}
"""What every end of a claim sets; an ended task keeps its holder."""
NO_HOLDER: dict[str, Any] = {**NO_LEASE, "claimed_by": NULL, "claimed_session": NULL}
"""What a return to the queue sets."""


def _make_annotated_classes() -> None:
    """Make SQLAlchemy's annotated twin of each class of writes before any thread needs one.

    A session makes it at its first write, in two steps, without a lock. A thread that takes the
    twin between them finds a class that may not be cached, and from then on no statement of the
    class is, as long as the process lives. An import has a lock.
    """
    for write in (insert, postgresql_insert, update, delete):
        # There is no public way.
        write(sql_table("tq_any"))._annotate({})  # noqa: SLF001 # pyright: ignore[reportPrivateUsage]


_make_annotated_classes()


def bind(name: str, type_: Any) -> ColumnElement[Any]:
    """Return the named bind ``tq_<name>``."""
    return bindparam(f"tq_{name}", type_=type_)


def sent_json(name: str) -> ColumnElement[Any]:
    """Return the named bind ``tq_<name>``, JSON that was made here, as ``jsonb``.

    As text: a serialiser of the host's own may know fewer numbers than were accepted here, and
    must not keep a task from its end.
    """
    return cast(bind(name, Text), StoredJSON)


def arrays(prefix: str, columns: dict[str, Any]) -> Any:
    """Return the arrays ``tq_<prefix>_<column>`` as a table, with the row number ``tq_n``.

    Text has no length in them: a cast to VARCHAR(5)[] cuts in silence what a column refuses.
    """
    types = {key: Text() if is_text(of) else of for key, of in columns.items()}
    binds = [bind(f"{prefix}_{key}", ARRAY(of)) for key, of in types.items()]
    return (
        func.unnest(*binds)
        .table_valued(*(sql_column(key, of) for key, of in types.items()), with_ordinality="tq_n")
        .render_derived()
    )


def json_at(name: str, rows: FromClause) -> ColumnElement[Any]:
    """Return what the JSON array of the bind ``tq_<name>`` has for each of *rows*; null is NULL.

    One text for all of them: a host's driver may have codecs of its own for ``jsonb``, and in an
    array of texts psycopg escapes the quotation marks one by one, in Python.
    """
    # Without FROM: read once, before the rows.
    every = select(sent_json(name)).scalar_subquery()
    value = every.op("->", return_type=JSONB())(cast(rows.c.tq_n, Integer) - ONE)
    return func.nullif(value, literal_column("'null'::jsonb", JSONB), type_=JSONB)


def event_type(value: EventType) -> ColumnElement[str]:
    """Return the type of an event as a literal."""
    return literal_column(f"'{value}'", Text)


def state(value: TaskState) -> ColumnElement[str]:
    """Return a state as a literal."""
    return literal_column(f"'{value}'", Text)


class Parts:
    """Building blocks for the statements about one task class."""

    def __init__(self, model: TaskModel[Any]) -> None:
        self.model = model
        self.table = model.table
        self.c = model.table.c

    def inside(
        self, scope: Iterable[str] | None = None, of: FromClause | None = None
    ) -> list[ColumnElement[bool]]:
        """Return the conditions of the queue and of scope columns (all, or those named)."""
        source = self.table if of is None else of
        return [*self.scoped(scope, of), source.c.queue == bind("queue", Text)]

    def scoped(
        self, scope: Iterable[str] | None = None, of: FromClause | None = None
    ) -> list[ColumnElement[bool]]:
        """Return the conditions of scope columns: all, or those named."""
        source = self.table if of is None else of
        columns = self.model.scope if scope is None else {n: self.model.scope[n] for n in scope}
        return [
            source.c[column.key] == bind(f"scope_{name}", column.type)
            for name, column in columns.items()
        ]

    def named(self, by: By) -> list[ColumnElement[bool]]:
        """Return the condition that finds the one task the caller names."""
        if by == "key":
            return [self.c.key == bind("key", Text)]
        return [
            column == bind(f"pk_{index}", column.type)
            for index, column in enumerate(self.model.primary_key)
        ]

    def fenced(self, fence: Fence) -> ColumnElement[bool]:
        """Return the condition under which a write after a claim may happen.

        One expression, which no index serves: the row is found by its name, and a planner that
        expects few claimed tasks would rather walk those.
        """
        c = self.c
        match fence:
            case "token":
                return self.token_held == bind("token", Uuid)
            case "holder":
                held = (c.claimed_by == bind("worker", Text)) & (
                    c.claimed_session == bind("session", Text)
                )
                return case((is_state(c.state, TaskState.CLAIMED), held))
            case "live":
                return self.in_state(*LIVE)

    def in_state(self, *states: TaskState) -> ColumnElement[bool]:
        """Return whether the row is in one of these states, as an expression no index serves."""
        return case((is_state(self.c.state, *states), literal_column("true", Boolean)))

    @property
    def token_held(self) -> ColumnElement[Any]:
        """The token that the row is claimed under, NULL if it is not.

        One expression: as two conditions the planner multiplies their selectivities, expects a
        single row and goes quadratic in batches; or it walks the index of the claimed rows.
        """
        return case((is_state(self.c.state, TaskState.CLAIMED), self.c.lease_token))

    def in_key_scope(self) -> list[ColumnElement[bool]]:
        """Return the conditions of the columns within which a key is unique."""
        return [
            column == bind("queue" if name == "queue" else f"scope_{name}", column.type)
            for name, column in self.model.key_scope.items()
        ]

    def of_key(self, scope: Iterable[str]) -> list[ColumnElement[bool]]:
        """Return the conditions of the named scope columns that are part of the primary key."""
        return self.scoped(name for name in scope if name in self.model.scope_of_key)

    def beside(
        self, scope: Iterable[str], when: ColumnElement[bool], *more: ColumnElement[bool]
    ) -> list[ColumnElement[bool]]:
        """Return the conditions of queue and scope, and *more*, such that no index serves them.

        For what has an index of its own order: a planner without good statistics would rather
        walk all of a queue in another index. Columns of the primary key stay as they are: they
        choose the partition.

        Args:
            scope: The names of the scope columns that are bound.
            when: A condition that holds of every row wanted.
            more: Further conditions.
        """
        others = [name for name in scope if name not in self.model.scope_of_key]
        return [*self.of_key(scope), case((when, and_(*self.inside(others), *more)))]

    def leased(self) -> list[ColumnElement[bool]]:
        """Return the conditions of claimed rows that the lease index serves.

        The range holds of every claim. Without statistics the planner takes nearly all rows for
        claimed and reads the table in sequence; of a range it expects few.
        """
        c = self.c
        return [
            c.lease_token.is_not(None),
            c.claimed_at > literal_column("'-infinity'", c.claimed_at.type),
            c.claimed_at < literal_column("'infinity'", c.claimed_at.type),
        ]

    def among(self, picked: CTE, scope: Iterable[str] | None = None) -> list[ColumnElement[bool]]:
        """Return the conditions that find the rows whose keys *picked* has."""
        return self.match(picked, scope)[0]

    def match(
        self, picked: CTE, scope: Iterable[str] | None = None
    ) -> tuple[list[ColumnElement[bool]], ColumnElement[int]]:
        """Return the conditions that find the rows whose keys *picked* has, and their place in it.

        As arrays: read once, before the scan. A join with the CTE scans the whole table under a
        generic plan, and ``IN (subselect)`` may run the locking subselect again for each row. A
        key of several columns is joined with its unnested arrays, which the planner takes for a
        few rows; an array per column would be searched in every combination.
        """
        bound = self.model.scope if scope is None else dict.fromkeys(scope)
        columns = self._unbound(bound)
        keys = [array_of(select(picked.c[column.key]), column.type) for column in columns]
        if len(columns) == 1:
            position = func.array_position(keys[0], columns[0], type_=Integer)
            return [columns[0] == any_(keys[0])], position
        found = (
            func.unnest(*keys)
            .table_valued(
                *(sql_column(column.key, column.type) for column in columns),
                with_ordinality="tq_n",
            )
            .render_derived()
        )
        return [column == found.c[column.key] for column in columns], found.c.tq_n

    def _unbound(self, bound: Iterable[str]) -> list[Column[Any]]:
        fixed = [self.model.scope[name] for name in bound]
        columns = [c for c in self.model.primary_key if all(c is not one for one in fixed)]
        return columns or [self.model.primary_key[-1]]

    @staticmethod
    def once(query: Select[Any]) -> CTE:
        """Return *query* as the CTE ``tq_picked``, evaluated exactly once.

        Without MATERIALIZED a planner with poor statistics may run a locking subselect once per
        outer row; each run skips what is locked already and takes further rows.
        """
        return query.cte("tq_picked").prefix_with("MATERIALIZED")

    @staticmethod
    def locking(query: Select[Any], *, skip: bool, of: Any = None) -> Select[Any]:
        """Return *query* locking its rows; those that others lock are skipped or waited for.

        FOR NO KEY UPDATE: the lock that an UPDATE takes anyway. FOR UPDATE would pass over tasks
        that an open insert refers to by a foreign key.
        """
        return query.with_for_update(key_share=True, skip_locked=skip, of=of)

    def key_and_counters(self, of: FromClause | None = None) -> list[ColumnElement[Any]]:
        """Return what events need to know of a row: its key, attempt and round."""
        source = self.table if of is None else of
        columns = [*self.model.primary_key, self.c.attempt, self.c.round]
        return [source.c[column.key] for column in columns]

    def write(
        self,
        values: dict[str, Any],
        *,
        where: list[ColumnElement[bool]],
        event: EventType | None,
        counted: ColumnElement[int] | None = None,
    ) -> Any:
        """Return the conditional UPDATE of one task, which also records its event.

        With an event class the row is locked and judged in a CTE that both the UPDATE and the
        INSERT of the event read: one statement, so that no isolation level, not even autocommit,
        can see one without the other.

        Args:
            values: What is set, beside ``updated_at`` (pass ``updated_at`` to overrule).
            where: Which row, and the fence.
            event: What to record; None for nothing.
            counted: What is added to the row's attempt in the event.
        """
        if event is None or self.model.events is None:
            return self.set(values).where(*where)
        query: Select[Any] = select(*self.key_and_counters()).where(*where)
        picked = self.once(self.locking(query, skip=False))
        return (
            self.set(values)
            .where(*self.inside(), *self.among(picked))
            .add_cte(self.recorded(picked, event, counted=counted))
        )

    def set(self, values: dict[str, Any], *returning: Any) -> Any:
        """Return the ORM-enabled UPDATE without its conditions.

        ORM-enabled, because transaction managers roll back what they did not see and sessions
        with several engines must route it; unsynchronised, because the library expires nothing.
        """
        return (
            update(self.model.cls)
            .values({"updated_at": now(), **self._forgotten(values), **values})
            .returning(*(returning or self.answer))
            .execution_options(synchronize_session=False)
        )

    def delete(self) -> Any:
        """Return the ORM-enabled DELETE without its conditions, returning the keys."""
        return (
            delete(self.model.cls)
            .returning(*self.model.primary_key)
            .execution_options(synchronize_session=False)
        )

    def _forgotten(self, values: dict[str, Any]) -> dict[str, Any]:
        """Return the host's ``onupdate`` values where SQLAlchemy would forget them.

        It does when the statement also holds an INSERT, as it does wherever events are recorded.
        """
        return {} if self.model.events is None else self.on_update(values)

    def on_update(self, values: dict[str, Any]) -> dict[str, Any]:
        """Return the host's Python-side ``onupdate`` values, evaluated at each execution."""
        return {
            column.key: bindparam(
                f"tq_onupdate_{column.key}",
                callable_=partial(evaluate, column.onupdate, {}),
                type_=column.type,
            )
            for column in self.table.c
            if column.key not in values
            and column.onupdate is not None
            and (column.onupdate.is_callable or column.onupdate.is_scalar)
        }

    @staticmethod
    def _made_columns(events: EventModel) -> list[Column[Any]]:
        """Return the columns of an event whose values are made in Python, one for each."""
        return [events.table.c.id, *events.defaults]

    def entity(self) -> list[Any]:
        """Return the entity, and under labels what becomes of the claim's value.

        Labels, because SQLAlchemy 2.0 reads the columns of a class with children from the wrong
        places when they are returned twice under one name.
        """
        labelled = [*self.model.primary_key, *(self.c[name] for name in CLAIMED)]
        return [self.model.cls, *(of.label(f"tq_{of.key}") for of in labelled)]

    @property
    def answer(self) -> list[ColumnElement[Any]]:
        """What every write returns of the row it changed."""
        c = self.c
        return [
            *self.model.primary_key,
            c.state,
            c.attempt,
            c.run_at,
            c.lease_token,
            c.lease_expires_at,
            c.heartbeat_at,
        ]

    def recorded(
        self,
        picked: CTE,
        event: EventType | Callable[[FromClause], ColumnElement[str]],
        *,
        counted: ColumnElement[int] | None = None,
        detail: Callable[[FromClause], ColumnElement[Any]] | None = None,
        actor: Callable[[FromClause], ColumnElement[Any]] | None = None,
    ) -> CTE:
        """Return the CTE that inserts one event for each row of *picked*.

        The ids are made in Python, like all ids, and dealt out by number.
        """
        events = self.model.events
        assert events is not None
        rows = select(picked, func.row_number().over().label("tq_number")).subquery("tq_rows")
        made = arrays("event", {column.key: column.type for column in self._made_columns(events)})
        attempt: ColumnElement[Any] = rows.c[self.c.attempt.key]
        columns: dict[str, Any] = {
            **{
                event_column.key: rows.c[column.key]
                for event_column, column in zip(
                    events.task_key, self.model.primary_key, strict=True
                )
            },
            **{column.key: made.c[column.key] for column in self._made_columns(events)},
            "type": event_type(event) if isinstance(event, EventType) else event(rows),
            "actor": bind("actor", Text) if actor is None else actor(rows),
            "attempt": attempt if counted is None else attempt + counted,
            "round": rows.c[self.c.round.key],
            "detail": sent_json("detail") if detail is None else detail(rows),
            "created_at": now(),
        }
        source = select(*columns.values()).select_from(
            rows.join(made, rows.c.tq_number == made.c.tq_n)
        )
        return (
            insert(events.table)
            .from_select([events.table.c[name] for name in columns], source)
            .cte("tq_recorded")
        )


def renewed_end(parts: Parts) -> ColumnElement[Any]:
    """Return the end of a renewed lease: as long as before, if the bind is NULL.

    A deadline that was moved by hand, into the past say, tells no length: then the default.
    """
    before = parts.c.lease_expires_at - parts.c.heartbeat_at
    as_before = case(
        (before >= bind("lease_min", Interval), before), else_=bind("lease_default", Interval)
    )
    return now() + func.coalesce(bind("lease", Interval), as_before)


def lease_end() -> ColumnElement[Any]:
    """Return the end of a lease that begins with the statement."""
    return now() + bind("lease", Interval)
