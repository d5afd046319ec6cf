"""Event classes of every kind."""

from __future__ import annotations

import functools
import inspect
import itertools
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import (
    Column,
    ForeignKey,
    ForeignKeyConstraint,
    Integer,
    Table,
    delete,
    func,
    text,
)
from sqlalchemy.orm import (
    DeclarativeBase,
    Mapped,
    MappedAsDataclass,
    mapped_column,
    registry,
    relationship,
)

from sqla_taskqueue import (
    TaskEventMixin,
    TaskMixin,
    UuidId,
)
from tests.hosts import keys
from tests.hosts.catalogue import constraints, indexes
from tests.hosts.kinds import library_columns
from tests.hosts.life import lead_a_life

two_drivers = pytest.mark.parametrize("driver", ["psycopg", "asyncpg"], indirect=True)

COUNTER = itertools.count(1)


def mixin_first(base: Any, task: Any) -> Any:
    """The mixin before the base."""

    class Event(TaskEventMixin, base):
        __tablename__ = "events"
        __task_model__ = task

    return Event


def base_first(base: Any, task: Any) -> Any:
    """The base before the mixin."""

    class Event(base, TaskEventMixin):
        __tablename__ = "events"
        __task_model__ = task

    return Event


def with_own_columns(base: Any, task: Any) -> Any:
    """Columns of the host's with every kind of default."""

    class Event(TaskEventMixin, base):
        __tablename__ = "events"
        __task_model__ = task

        serial: Mapped[int] = mapped_column(default=lambda: next(COUNTER))
        source: Mapped[str] = mapped_column(default="app")
        checked: Mapped[bool] = mapped_column(server_default=text("false"))
        seen_at = mapped_column(Integer, insert_default=func.length("four"))

    return Event


def with_own_task_id(base: Any, model: Any) -> Any:
    """The host declares the foreign key itself."""

    class Event(TaskEventMixin, base):
        __tablename__ = "events"
        __task_model__ = model

        task_id: Mapped[UUID] = mapped_column(
            ForeignKey(model.id, ondelete="CASCADE", name="own_key"), primary_key=True
        )
        task: Mapped[Any] = relationship(model, lazy="raise")

    return Event


def with_own_table_args(base: Any, task: Any) -> Any:
    """A schema of the history's own."""

    class Event(TaskEventMixin, base):
        __tablename__ = "events"
        __task_model__ = task
        __table_args__ = ({"schema": "audit"},)

    return Event


def with_own_constraint(base: Any, task: Any) -> Any:
    """A foreign key of the host's."""

    class Event(TaskEventMixin, base):
        __tablename__ = "events"
        __task_model__ = task
        __table_args__ = (ForeignKeyConstraint(["kind"], ["kinds.name"]),)

        kind: Mapped[str | None]

    class Kind(base):
        __tablename__ = "kinds"
        name: Mapped[str] = mapped_column(primary_key=True)

    base.Kind = Kind
    return Event


def of_a_dataclass(base: Any, task: Any) -> Any:
    """A dataclass."""

    class Event(MappedAsDataclass, TaskEventMixin, base):
        __tablename__ = "events"
        __task_model__ = task

        note: Mapped[str | None] = mapped_column(default=None)

    assert list(inspect.signature(Event).parameters) == ["note"]
    return Event


def by_the_registry(base: Any, task: Any) -> Any:
    """Mapped by a decorator."""

    @base.registry.mapped
    class Event(TaskEventMixin):
        __tablename__ = "events"
        __task_model__ = task

    return Event


def through_an_abstract_class(base: Any, task: Any) -> Any:
    """An abstract class between mixin and event class."""

    class History(TaskEventMixin, base):
        __abstract__ = True

    class Event(History):
        __tablename__ = "events"
        __task_model__ = task

    return Event


def of_its_own_table(base: Any, task: Any) -> Any:
    """A table that the host wrote."""

    class Event(TaskEventMixin, base):
        __table__ = Table(
            "events",
            base.metadata,
            Column("task_id", ForeignKey(task.id, ondelete="CASCADE"), primary_key=True),
            *library_columns(mixin=TaskEventMixin),
        )
        __task_model__ = task

    return Event


def of_another_registry(base: Any, task: Any) -> Any:
    """Not on the task class's base."""

    @registry(metadata=base.metadata).mapped
    class Event(TaskEventMixin):
        __tablename__ = "events"
        __task_model__ = task

    return Event


FORMS = [
    mixin_first,
    base_first,
    with_own_columns,
    with_own_task_id,
    with_own_table_args,
    with_own_constraint,
    of_a_dataclass,
    by_the_registry,
    through_an_abstract_class,
    of_its_own_table,
    of_another_registry,
]


@functools.cache
def host(form):
    """Map a task class and its event class."""

    class Base(DeclarativeBase):
        pass

    class Task(UuidId, TaskMixin, Base):
        __tablename__ = "tasks"

    Base.Task, Base.Event = Task, form(Base, Task)
    return Base


@pytest.mark.parametrize("form", FORMS)
@two_drivers
async def test_a_history_is_written_and_read(twin, form):
    """Every change is one event of the host's class, with its defaults, deleted with the task."""
    base = host(form)
    twin.create(base.metadata)
    schema = base.Event.__table__.schema or "public"
    queue = await lead_a_life(twin, base.Task)
    async with twin.begin() as session:
        first = await queue.history(session, key="k0")
        second = await queue.history(session, key="k1")
        assert {type(one) for one in (*first, *second)} == {base.Event}
        assert [one.type for one in first] == ["created", "claimed", "completed"]
        assert [one.type for one in second] == [
            "created",
            "claimed",
            "released",
            "claimed",
            "failed",
            "restarted",
            "cancelled",
        ]
        assert [one.actor for one in first] == [None, "w1", "w1"]
        assert [one.attempt for one in first] == [0, 1, 1]
        assert len({one.id for one in (*first, *second)}) == 10
    count = f"SELECT count(*) FROM {schema}.events"
    assert twin.scalar(count) == 10
    async with twin.begin() as session:
        await session.execute(delete(base.Task).where(base.Task.key == "k1"))
    assert twin.scalar(count) == 3
    # The primary key serves the reading of one task's history: there is no other index.
    assert indexes(twin.database, "events", schema) == {}
    keys_ = constraints(twin.database, "events", schema, kind="f").values()
    assert sum("REFERENCES tasks(id) ON DELETE CASCADE" in key for key in keys_) == 1
    assert set(constraints(twin.database, "events", schema, kind="p").values()) in (
        {"PRIMARY KEY (task_id, id)"},
        {"PRIMARY KEY (id, task_id)"},
    )


@two_drivers
async def test_the_hosts_columns_of_events_get_their_defaults(twin):
    """The host's event columns get their defaults, one value for each event, also in a batch."""
    base = host(with_own_columns)
    twin.create(base.metadata)
    queue = twin.queue(base.Task)
    async with twin.begin() as session:
        for _ in range(3):
            await queue.enqueue(session)
        claims = await queue.claim(session, holder="w1", limit=3)
        await queue.complete(session, claims[0])
    rows = twin.sql("SELECT serial, source, checked, seen_at FROM events")
    assert {row[1:] for row in rows} == {("app", False, 4)}
    assert len(rows) == len({row.serial for row in rows}) == 7


@pytest.mark.parametrize("key", keys.KEYS, ids=str)
def test_events_carry_exactly_the_tasks_key(database, key):
    """The columns `task_<key column>` have the key's types and lead the event's primary key."""
    database.create(keys.Base.metadata)
    task = key.model.__table__
    table = keys.Base.metadata.tables[f"{task.name}_events"]
    for column in task.primary_key:
        own = table.c[f"task_{column.name}"]
        assert own.type is column.type or repr(own.type) == repr(column.type)
        assert own.primary_key
        assert not own.nullable
        assert own.default is None
    assert [c.name for c in table.primary_key] == [
        *(f"task_{column.name}" for column in task.primary_key),
        "id",
    ]
    [foreign] = constraints(database, table.name, kind="f").values()
    assert "ON DELETE CASCADE" in foreign


@pytest.mark.smoke
def test_an_event_class_alone_adds_nothing_to_the_constructor():
    """An event of a dataclass host takes the host's fields only, and no column is lost."""
    columns = set(host(of_a_dataclass).Event.__table__.c.keys())
    assert columns == {
        "task_id",
        "id",
        "type",
        "actor",
        "attempt",
        "round",
        "detail",
        "created_at",
        "note",
    }
