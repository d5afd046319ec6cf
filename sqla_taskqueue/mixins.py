"""The columns of a task, an event and their keys, to be mixed into the host's own classes.

::

    class Task(UuidId, TaskMixin, Base):
        __tablename__ = "tasks"

Columns have server defaults, so that ``session.add(Task())`` makes a queued task, and no
constructor gains an argument. The primary key is separate: :class:`UuidId`, :class:`BigIntId`,
or the host's own columns, several of them included.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, ClassVar
from uuid import UUID

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    DateTime,
    ForeignKeyConstraint,
    Identity,
    Integer,
    SmallInteger,
    Table,
    Text,
    Uuid,
    event,
    false,
    inspect,
    text,
)
from sqlalchemy.orm import Mapped, Mapper, mapped_column

from ._declarative import column_mixin
from ._schema import furnish, table_of
from .dialects import StoredJSON, server_now
from .errors import UnsupportedModel
from .ids import uuid7
from .limits import Limits

EVENT_CLASSES = "sqla_taskqueue.event_classes"
"""Under this name a task table's ``info`` lists the event classes that point at it."""

_Moment = DateTime(timezone=True)


@column_mixin
class UuidId:
    """A primary key ``id`` of UUIDs, version 7, made in Python: the recommended key."""

    id: Mapped[UUID] = mapped_column(Uuid, primary_key=True, insert_default=uuid7, sort_order=-100)


@column_mixin
class BigIntId:
    """A primary key ``id`` of whole numbers that the database counts up."""

    id: Mapped[int] = mapped_column(
        BigInteger().with_variant(Integer, "sqlite"),
        Identity(),
        primary_key=True,
        sort_order=-100,
    )


@column_mixin
class TaskMixin:
    """The columns of a task.

    The host may set these attributes of the class:

    * ``__scope__``: names of NOT NULL columns that divide the table (tenant, project …). They lead
      the claim index, and every claim and write names a value for each.
    * ``__key_scope__``: names of the scope columns, or ``"queue"``, within which ``key`` is
      unique. By default the scope.
    * ``__extra_indexes__``: indexes for large tables, none by default, since each costs every
      task some writing. ``"list"`` keeps pages of ``find`` and counts of ``stats`` cheap beside
      millions of tasks; ``"finished"`` lets ``prune`` go by age, whatever the primary key.
    """

    __scope__: ClassVar[tuple[str, ...]] = ()
    __key_scope__: ClassVar[tuple[str, ...] | None] = None
    __extra_indexes__: ClassVar[tuple[str, ...]] = ()

    queue: Mapped[str] = mapped_column(Text, nullable=False, server_default="default")
    """Name of the queue."""
    name: Mapped[str] = mapped_column(Text, nullable=False, server_default="")
    """Which kind of task it is: the handler's name; may be ''."""
    payload: Mapped[Any] = mapped_column(StoredJSON, nullable=True)
    """What the handler is given; JSON."""
    state: Mapped[str] = mapped_column(Text, nullable=False, server_default="queued")
    """A :class:`~sqla_taskqueue.TaskState`."""
    priority: Mapped[int] = mapped_column(SmallInteger, nullable=False, server_default=text("0"))
    """The smaller number runs sooner."""
    run_at: Mapped[datetime] = mapped_column(_Moment, nullable=False, server_default=server_now())
    """From when it can be claimed."""
    attempt: Mapped[int] = mapped_column(Integer, nullable=False, server_default=text("0"))
    """Attempts that count, within the round: each claim adds one, a release gives it back."""
    max_attempts: Mapped[int | None] = mapped_column(
        Integer, nullable=True, server_default=text(str(Limits().max_attempts))
    )
    """How many attempts there may be in a round; NULL for no limit."""
    round: Mapped[int] = mapped_column(Integer, nullable=False, server_default=text("1"))
    """1, and one more each time an operator retries the ended task."""
    key: Mapped[str | None] = mapped_column(Text, nullable=True)
    """Lasting identity within ``__key_scope__``."""
    unique_key: Mapped[str | None] = mapped_column(Text, nullable=True)
    """At most one live task of the queue has this value."""
    lease_token: Mapped[UUID | None] = mapped_column(Uuid, nullable=True)
    """Proof of the claim that holds the task now; set exactly while claimed."""
    lease_expires_at: Mapped[datetime | None] = mapped_column(_Moment, nullable=True)
    heartbeat_at: Mapped[datetime | None] = mapped_column(_Moment, nullable=True)
    claimed_at: Mapped[datetime | None] = mapped_column(_Moment, nullable=True)
    claimed_by: Mapped[str | None] = mapped_column(Text, nullable=True)
    """The holder's worker; stays on an ended task."""
    claimed_session: Mapped[str | None] = mapped_column(Text, nullable=True)
    """The holder's session; '' is the shared one."""
    ended_token: Mapped[UUID | None] = mapped_column(Uuid, nullable=True)
    """Token of the claim that ended the task."""
    result: Mapped[Any] = mapped_column(StoredJSON, nullable=True)
    error: Mapped[str | None] = mapped_column(Text, nullable=True)
    """Why the last attempt failed, or why the task was cancelled."""
    pending: Mapped[int] = mapped_column(Integer, nullable=False, server_default=text("0"))
    """How many tasks it still waits for."""
    has_dependants: Mapped[bool] = mapped_column(Boolean, nullable=False, server_default=false())
    """Whether other tasks wait for it."""
    created_by: Mapped[str | None] = mapped_column(Text, nullable=True)
    created_at: Mapped[datetime] = mapped_column(
        _Moment, nullable=False, server_default=server_now()
    )
    updated_at: Mapped[datetime] = mapped_column(
        _Moment, nullable=False, server_default=server_now()
    )
    """When the state last changed; heartbeats leave it alone."""
    finished_at: Mapped[datetime | None] = mapped_column(_Moment, nullable=True)


@column_mixin
class BoardMixin:
    """Columns for tasks that people and agents read, beside :class:`TaskMixin`.

    A class with it is a *board*: its attempts are endless and its leases longer by default
    (:meth:`Limits.board() <sqla_taskqueue.Limits.board>`), and heartbeats are recorded as events.
    """

    title: Mapped[str] = mapped_column(Text, nullable=False, server_default="")
    description: Mapped[str] = mapped_column(Text, nullable=False, server_default="")
    meta: Mapped[Any] = mapped_column("metadata", StoredJSON, nullable=True)
    """The column ``metadata``; that attribute name belongs to Declarative."""


@column_mixin
class TaskEventMixin:
    """One row of a task's history, written in the transaction of the change itself.

    The host names its task class in ``__task_model__``. The columns ``task_<key column>`` with
    their foreign key are added to the table: they lead the primary key, which therefore serves
    the reading of one task's history without a further index.
    """

    __task_model__: ClassVar[type[Any]]

    id: Mapped[UUID] = mapped_column(Uuid, primary_key=True, nullable=False, insert_default=uuid7)
    type: Mapped[str] = mapped_column(Text, nullable=False)
    """An :class:`~sqla_taskqueue.EventType`."""
    actor: Mapped[str | None] = mapped_column(Text, nullable=True)
    """Who did it: a holder's worker, a creator, an operator; NULL for the queue itself."""
    attempt: Mapped[int] = mapped_column(Integer, nullable=False, server_default=text("0"))
    round: Mapped[int] = mapped_column(Integer, nullable=False, server_default=text("1"))
    detail: Mapped[Any] = mapped_column(StoredJSON, nullable=True)
    """A JSON object that says more."""
    created_at: Mapped[datetime] = mapped_column(
        _Moment, nullable=False, server_default=server_now()
    )

    @classmethod
    def __table_cls__(cls, name: str, metadata: Any, *args: Any, **options: Any) -> Table:
        """Make the table with the task's key in it; called by Declarative."""
        table = _task_table(cls)
        own = {column.name for column in args if isinstance(column, Column)}
        referred = list(table.primary_key)
        names = [f"task_{column.name}" for column in referred]
        added: list[Any] = [
            Column(name, column.type, primary_key=True, nullable=False, autoincrement=False)
            for name, column in zip(names, referred, strict=True)
            if name not in own
        ]
        if len(added) == len(names):
            added.append(ForeignKeyConstraint(names, referred, ondelete="CASCADE"))
        make = getattr(super(), "__table_cls__", Table)
        made: Table = make(name, metadata, *added, *args, **options)
        return made


def _columns_of(mixin: type[Any]) -> dict[str, Column[Any]]:
    return {name: value.column for name, value in vars(mixin).items() if hasattr(value, "column")}


LIBRARY_COLUMNS: Mapping[str, Column[Any]] = _columns_of(TaskMixin)
"""Attributes of :class:`TaskMixin`: set by the queue's operations only."""

_EVENT_COLUMNS = tuple(_columns_of(TaskEventMixin))


def _furnish_task_class(mapper: Mapper[Any], cls: type[Any]) -> None:
    furnish(mapper, cls, LIBRARY_COLUMNS)
    if issubclass(cls, BoardMixin) and (table := table_of(mapper)) is not None:
        # Endless attempts for session.add(Task()) too, as enqueue() gives a board's tasks.
        table.c.max_attempts.server_default = None


def _task_table(event_class: type[Any]) -> Table:
    """Return the table of the task class that an event class names.

    Raises:
        UnsupportedModel: It names none.
    """
    task = getattr(event_class, "__task_model__", None)
    mapper = None if task is None else inspect(task, raiseerr=False)
    table = None
    if isinstance(mapper, Mapper) and mapper.inherits is None and hasattr(task, "__scope__"):
        table = table_of(mapper)
    if table is None:
        message = f"{event_class.__name__} must name a mapped task class in __task_model__"
        raise UnsupportedModel(message)
    return table


def _announce_event_class(mapper: Mapper[Any], cls: type[Any]) -> None:
    if mapper.inherits is None:
        task_table, own = _task_table(cls), table_of(mapper)
        needed = [*(f"task_{column.name}" for column in task_table.primary_key), *_EVENT_COLUMNS]
        missing = [name for name in needed if own is None or name not in own.c]
        if missing:
            message = (
                f"{cls.__name__} lacks {', '.join(missing)}: name TaskEventMixin before the base, "
                "or give its __table__ these columns"
            )
            raise UnsupportedModel(message)
        # In the table's own dictionary for such purposes: registries hold their classes weakly.
        task_table.info.setdefault(EVENT_CLASSES, []).append(cls)


event.listen(TaskMixin, "after_mapper_constructed", _furnish_task_class, propagate=True)
event.listen(TaskEventMixin, "after_mapper_constructed", _announce_event_class, propagate=True)
