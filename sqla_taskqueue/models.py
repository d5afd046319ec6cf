"""The host's classes as the statements see them: checked once, named columns, no entities.

Nothing in the library reads an attribute of an entity, compares entities or hashes them: hosts
define those as they please. Statements and operations work on the columns found here.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any, Generic

from sqlalchemy import BigInteger, Column, Integer, SmallInteger, inspect
from sqlalchemy.orm import Mapper
from sqlalchemy.types import TypeDecorator

from . import checks
from ._schema import key_scope_names, mapped_columns, table_of
from .errors import InvalidArgument, UnsupportedModel
from .mixins import LIBRARY_COLUMNS, BoardMixin, TaskEventMixin, TaskMixin
from .values import TaskT

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sqlalchemy import Row, Table

_BITS = {SmallInteger: 15, BigInteger: 63, Integer: 31}


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
        self.is_board: bool = issubclass(cls, BoardMixin)

    @cached_property
    def events(self) -> EventModel | None:
        """The host's event class for this task class, if it has one.

        Looked for at first use, when every class of the registry has been mapped.

        Raises:
            UnsupportedModel: Two event classes name this task class.
        """
        found = [
            mapper
            for mapper in self.mapper.registry.mappers
            if issubclass(mapper.class_, TaskEventMixin)
            and mapper.class_.__task_model__ is self.cls
        ]
        if len(found) > 1:
            names = ", ".join(sorted(mapper.class_.__name__ for mapper in found))
            message = f"{self.cls.__name__} has two event classes: {names}"
            raise UnsupportedModel(message)
        return EventModel(found[0], self.primary_key) if found else None

    @cached_property
    def free_key(self) -> tuple[Column[Any], ...]:
        """Columns of the primary key that the scope does not determine."""
        scope = set(self.scope.values())
        return tuple(column for column in self.primary_key if column not in scope)

    @cached_property
    def _attributes(self) -> dict[Column[Any], str]:
        return {column: name for name, column in self.columns.items()}

    def identity(self, values: Sequence[Any]) -> Any:
        """Return primary-key *values* the way ``Session.get`` takes them."""
        return values[0] if len(self.primary_key) == 1 else tuple(values)

    def identity_of(self, row: Row[Any]) -> Any:
        """Return the primary key out of a *row* that has its columns."""
        return self.identity([value_of(row, column) for column in self.primary_key])

    def key_values(self, id: Any, scope: Mapping[str, Any]) -> list[Any]:  # noqa: A002
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
            raise InvalidArgument("id", id, f"the primary key is a tuple of ({names})")
        for column, value in zip(self.primary_key, values, strict=True):
            self._check_key_value(column, value)
            name = self._attributes[column]
            if name in self.scope and name in scope and scope[name] != value:
                raise InvalidArgument("id", id, f"its {name} is not the scope's, {scope[name]!r}")
        return values

    @staticmethod
    def _check_key_value(column: Column[Any], value: Any) -> None:
        if isinstance(column.type, TypeDecorator):
            return  # the host's own type decides what it takes
        try:
            expected: type[Any] = column.type.python_type
        except NotImplementedError:
            return  # a type of the host's or of PostgreSQL's own
        if not isinstance(value, expected) or isinstance(value, bool):
            raise InvalidArgument(
                "id",
                value,
                f"{column.name} takes {expected.__name__}, not {type(value).__name__}",
            )
        if isinstance(value, str):
            checks.text("id", value, empty=True)
            return
        bits = next((b for of, b in _BITS.items() if isinstance(column.type, of)), None)
        if bits is not None:
            checks.whole("id", value, least=-(1 << bits), most=(1 << bits) - 1)

    def host_values(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return ``values=`` by column key, for an INSERT.

        Raises:
            InvalidArgument: A name is unknown, a library column, the key or a scope column.
        """
        by_key: dict[str, Any] = {}
        for name, value in values.items():
            column = self.columns.get(name)
            if column is None:
                known = ", ".join(sorted(self.host_attributes))
                raise InvalidArgument(
                    "values", name, f"{self.cls.__name__} has no such column ({known or 'none'})"
                )
            if name not in self.host_attributes:
                hint = "bind it with scope()" if name in self.scope else "has its own argument"
                raise InvalidArgument("values", name, f"is not the host's to set here; it {hint}")
            by_key[column.key] = value
        return by_key

    @cached_property
    def host_attributes(self) -> frozenset[str]:
        """Mapped columns that ``values=`` may set."""
        primary_key = {self._attributes[column] for column in self.primary_key}
        return frozenset(self.columns) - set(LIBRARY_COLUMNS) - self.scope.keys() - primary_key


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
