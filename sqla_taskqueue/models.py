"""The host's classes as the statements see them: checked once, named columns, no entities.

Nothing in the library reads an attribute of an entity, compares entities or hashes them: hosts
define those as they please. Statements and operations work on the columns found here.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, Generic

from sqlalchemy import ARRAY, JSON, Column, inspect
from sqlalchemy.orm import Mapper, selectinload
from sqlalchemy.types import TypeDecorator

from ._columns import flaw, is_cut, usable
from ._schema import key_scope_names, mapped_columns, table_of
from .dialects import StoredJSON
from .errors import InvalidArgument, UnsupportedModel, shorten
from .ids import uuid7
from .mixins import EVENT_CLASSES, LIBRARY_COLUMNS, BoardMixin, TaskMixin
from .values import TaskT

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from sqlalchemy import Row, Table


def value_of(row: Row[Any], column: Column[Any]) -> Any:
    """Return what a *row* has for a *column*, whatever the row's order and labels."""
    return row._mapping[column]  # noqa: SLF001 # pyright: ignore[reportPrivateUsage] - public


class TaskModel(Generic[TaskT]):
    """A task class of the host and what belongs to it.

    Args:
        cls: A mapped class with :class:`~sqla_taskqueue.TaskMixin`.

    Raises:
        UnsupportedModel: It is not mapped, has no task columns, or is an inheriting child.
    """

    def __init__(self, cls: type[TaskT]) -> None:
        mapper = inspect(cls, raiseerr=False)
        if not isinstance(mapper, Mapper):
            message = f"Queue() takes a mapped class, not {cls!r}"
            raise UnsupportedModel(message)
        if not issubclass(cls, TaskMixin):
            message = f"{cls.__name__} has no TaskMixin"
            raise UnsupportedModel(message)
        if mapper.inherits is not None:
            message = (
                f"{cls.__name__} cannot carry a task queue: it inherits the mapping of "
                f"{mapper.inherits.class_.__name__}; make the queue on that class"
            )
            raise UnsupportedModel(message)
        self.cls: type[TaskT] = cls
        self.mapper: Mapper[Any] = mapper
        table = table_of(self.mapper)
        assert table is not None  # furnish() has seen to it
        self.table: Table = table
        self.columns: Mapping[str, Column[Any]] = {
            name: column
            for name, column in self.mapper.columns.items()
            if isinstance(column, Column)
        }
        self.scope: dict[str, Column[Any]] = mapped_columns(
            self.mapper, cls.__scope__, "__scope__"
        )
        self.key_scope: dict[str, Column[Any]] = mapped_columns(
            self.mapper, key_scope_names(cls), "__key_scope__"
        )
        self.primary_key: tuple[Column[Any], ...] = tuple(self.table.primary_key)
        self.key_names: tuple[str, ...] = tuple(column.key for column in self.primary_key)
        self.extra_indexes: frozenset[str] = frozenset(cls.__extra_indexes__)
        self.is_board: bool = issubclass(cls, BoardMixin)

    @cached_property
    def events(self) -> EventModel | None:
        """The host's event class for this task class, if it has one.

        Looked for at first use, when the host has mapped its classes.

        Raises:
            UnsupportedModel: Two event classes name this task class.
        """
        found: list[type[Any]] = self.table.info.get(EVENT_CLASSES, [])
        if len(found) > 1:
            names = ", ".join(sorted(cls.__name__ for cls in found))
            message = f"{self.cls.__name__} has two event classes: {names}"
            raise UnsupportedModel(message)
        return EventModel(inspect(found[0]), self.primary_key) if found else None

    @cached_property
    def unjoined(self) -> list[Any]:
        """Loader options for UPDATE … RETURNING, which has nothing to join to or to wrap."""
        return [
            selectinload(relationship.class_attribute)
            for relationship in self.mapper.relationships
            if relationship.lazy in ("joined", "subquery", False)
        ]

    def check_events(self) -> None:
        """Refuse two event classes, before anything is sent.

        Raises:
            UnsupportedModel: Two event classes name this task class.
        """
        _ = self.events

    @cached_property
    def tables(self) -> tuple[Table, ...]:
        """The task table, and the event table if there is one."""
        return (self.table,) if self.events is None else (self.table, self.events.table)

    @cached_property
    def free_key(self) -> tuple[Column[Any], ...]:
        """Columns of the primary key that the scope does not determine."""
        scope = set(self.scope.values())
        return tuple(column for column in self.primary_key if column not in scope)

    @cached_property
    def scope_of_key(self) -> frozenset[str]:
        """Names of the scope columns that are part of the primary key."""
        key = set(self.primary_key)
        return frozenset(name for name, column in self.scope.items() if column in key)

    @cached_property
    def _attributes(self) -> dict[Column[Any], str]:
        return {column: name for name, column in self.columns.items()}

    def identity(self, values: Sequence[Any]) -> Any:
        """Return primary-key *values* the way ``Session.get`` takes them."""
        return values[0] if len(self.primary_key) == 1 else tuple(values)

    def identity_of(self, row: Row[Any]) -> Any:
        """Return the primary key out of a *row* that has its columns."""
        return self.identity([value_of(row, column) for column in self.primary_key])

    def key_values(
        self,
        id: Any,  # noqa: A002
        scope: Mapping[str, Any],
        argument: str = "id",
    ) -> list[Any]:
        """Return the value of each primary-key column for an ``id=`` argument.

        A composite key is a tuple in the key's order; where the scope determines all columns
        but one, that one's value is enough.

        Raises:
            InvalidArgument: The wrong number or type of values, or another scope's key.
        """
        if len(self.primary_key) == 1:
            values: list[Any] = [id]
        elif isinstance(id, tuple):
            values = [*id]
        elif len(self.free_key) == 1:
            by_column = {self.scope[name]: value for name, value in scope.items()}
            by_column[self.free_key[0]] = id
            values = [by_column[column] for column in self.primary_key if column in by_column]
        else:
            values = [id]
        if len(values) != len(self.primary_key):
            names = ", ".join(self._attributes[column] for column in self.primary_key)
            raise InvalidArgument(argument, id, f"must be a tuple of ({names})")
        for index, column in enumerate(self.primary_key):
            values[index] = usable(argument, column, values[index])
            name = self._attributes[column]
            if name in self.scope and name in scope and scope[name] != values[index]:
                problem = f"is of another scope: its {name} is not the scope's, {scope[name]!r}"
                raise InvalidArgument(argument, id, problem)
        return values

    def host_values(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return ``values=`` by column key, for an INSERT.

        Raises:
            InvalidArgument: A name is unknown, a library column, the key or a scope column.
        """
        if not isinstance(values, Mapping):
            raise InvalidArgument(
                "values",
                values,
                f"must map names to values, not be of type {type(values).__name__}",
            )
        by_key: dict[str, Any] = {}
        for name, value in values.items():
            column, place = self.columns.get(name), f"[{shorten(name)}]"
            if column is None or name not in self.host_attributes:
                raise InvalidArgument("values", value, self._why_not(name), place)
            if (problem := flaw(column, value)) is not None:
                raise InvalidArgument("values", value, problem, place)
            by_key[column.key] = value
        return by_key

    def _why_not(self, name: Any) -> str:
        """Return why ``values=`` cannot set this."""
        if name not in self.columns:
            known = ", ".join(sorted(self.host_attributes)) or "none"
            return f"cannot be set: {self.cls.__name__} has no such column of yours, only {known}"
        if name in self.scope:
            return "is not the host's to set here; it is bound with scope()"
        if name in LIBRARY_COLUMNS:
            return "is not the host's to set here; the queue does"
        return "is not the host's to set here; it has its own argument, id="

    def need_values(self, row: Mapping[str, Any]) -> None:
        """Insist on a value for each NOT NULL column that nothing fills in.

        Raises:
            InvalidArgument: A column of the key, or of the host's, has none.
        """
        for column in self._without_default:
            if row.get(column.key) is None:
                if column.primary_key:
                    problem = "must be given: the primary key has no default"
                    raise InvalidArgument("id", None, problem)
                raise InvalidArgument(
                    "values",
                    None,
                    "must be given: the column has no default",
                    f"[{self._attributes[column]!r}]",
                )

    @cached_property
    def _without_default(self) -> tuple[Column[Any], ...]:
        library = {self.columns[name] for name in LIBRARY_COLUMNS}
        return tuple(
            column
            for column in self.table.c
            if not column.nullable
            and column not in library
            and column.default is None
            and column.server_default is None
            and column.computed is None
            and column.identity is None
            and column is not self.table.autoincrement_column
            and column in self._attributes
        )

    @cached_property
    def _python_defaults(self) -> tuple[Column[Any], ...]:
        return tuple(
            column
            for column in self.table.c
            if column.default is not None
            and (column.default.is_callable or column.default.is_scalar)
        )

    def with_defaults(self, row: dict[str, Any]) -> dict[str, Any]:
        """Return *row* with the Python-side defaults of the columns it lacks, evaluated for it.

        In the order of the columns, as SQLAlchemy does: a default may ask for those before it.
        """
        filled = dict(row)
        for column in self._python_defaults:
            if column.key not in filled:
                filled[column.key] = evaluate(column.default, filled)
        return filled

    @cached_property
    def keeps_json(self) -> bool:
        """Whether payloads are stored as the mixin says, not in a type of the host's own."""
        return type(self.columns["payload"].type) is type(StoredJSON)

    def fits_arrays(self, keys: Iterable[str]) -> bool:
        """Tell whether values of these columns can travel as arrays, one per column."""
        return self.keeps_json and self._array_columns.issuperset(keys)

    @cached_property
    def _array_columns(self) -> frozenset[str]:
        """Keys of the columns whose values arrays carry whole; payloads travel as JSON."""
        return frozenset(
            column.key
            for column in self.table.c
            if column is self.columns["payload"]
            or (_is_plain(column.type) and not is_cut(column.type))
        )

    @cached_property
    def host_attributes(self) -> frozenset[str]:
        """Mapped columns that ``values=`` may set."""
        primary_key = {self._attributes[column] for column in self.primary_key}
        return frozenset(self.columns) - set(LIBRARY_COLUMNS) - self.scope.keys() - primary_key


def _is_plain(type_: Any) -> bool:
    """Tell whether a type is a scalar whose array any driver can send."""
    if isinstance(type_, TypeDecorator):
        type_ = type_.impl_instance
    return not isinstance(type_, JSON | ARRAY) and type(type_).__module__.startswith(
        ("sqlalchemy.sql.", "sqlalchemy.dialects.postgresql")
    )


class _Context:
    """What a context-sensitive default is given: the parameters of its row."""

    def __init__(self, row: dict[str, Any]) -> None:
        self.current_parameters = row

    def get_current_parameters(self, isolate_multiinsert_groups: bool = True) -> dict[str, Any]:  # noqa: ARG002, FBT001, FBT002
        """Return the row."""
        return self.current_parameters


def evaluate(default: Any, row: dict[str, Any]) -> Any:
    """Return the value of a Python-side default or ``onupdate`` for *row*."""
    return default.arg(_Context(row)) if default.is_callable else default.arg


def sql_default(column: Column[Any]) -> Any:
    """Return the SQL expression that SQLAlchemy inserts where a column has no value, or None."""
    default: Any = column.default
    if default is None:
        return None
    if default.is_sequence:
        return default.next_value()
    return default.arg if default.is_clause_element else None


class EventModel:
    """The host's event class: its table and the columns that point at the task."""

    def __init__(self, mapper: Mapper[Any], task_key: tuple[Column[Any], ...]) -> None:
        table = table_of(mapper)
        assert table is not None  # TaskEventMixin made it
        self.cls: type[Any] = mapper.class_
        self.table: Table = table
        self.task_key: tuple[Column[Any], ...] = tuple(
            self.table.c[f"task_{column.name}"] for column in task_key
        )
        # The host's own columns with Python-side defaults: evaluated for each event, and sent.
        self.defaults: tuple[Column[Any], ...] = tuple(
            column
            for column in self.table.c
            if column.key != "id"
            and column.default is not None
            and (column.default.is_callable or column.default.is_scalar)
            and _is_plain(column.type)
        )

    def rows(self, number: int) -> dict[str, list[Any]]:
        """Return the parameters that differ between recorded events: ids, and the defaults."""
        return {
            "tq_event_id": [uuid7() for _ in range(number)],
            **{
                f"tq_event_{column.key}": [evaluate(column.default, {}) for _ in range(number)]
                for column in self.defaults
            },
        }
