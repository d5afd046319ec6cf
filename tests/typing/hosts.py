# pyright: strict
"""Hosts of every declarative kind, as the type checkers see them. Checked, never run."""

from __future__ import annotations

from datetime import datetime
from typing import Any, ClassVar, assert_type
from uuid import UUID

from sqlalchemy import ForeignKey, select
from sqlalchemy.orm import (
    DeclarativeBase,
    Mapped,
    MappedAsDataclass,
    declarative_base,
    mapped_column,
    registry,
    relationship,
)

from sqla_taskqueue import (
    AsyncQueue,
    BigIntId,
    BoardMixin,
    Queue,
    TaskEventMixin,
    TaskMixin,
    UuidId,
)

# --- Plain declarative classes -----------------------------------------------------------------


class Base(DeclarativeBase):
    pass


class User(Base):
    __tablename__ = "users"

    id: Mapped[int] = mapped_column(primary_key=True)


class Task(UuidId, TaskMixin, Base):
    __tablename__ = "tasks"
    __scope__ = ("project",)

    project: Mapped[str]
    user_id: Mapped[int | None] = mapped_column(ForeignKey(User.id))
    user: Mapped[User | None] = relationship()
    events: Mapped[list[TaskEvent]] = relationship(back_populates="task")


class TaskEvent(TaskEventMixin, Base):
    __tablename__ = "task_events"
    __task_model__ = Task

    task: Mapped[Task] = relationship(back_populates="events")


class Board(Base, BigIntId, BoardMixin, TaskMixin):
    __tablename__ = "board"
    __scope__: ClassVar[tuple[str, ...]] = ("team_id",)
    __key_scope__ = ("team_id", "queue")

    team_id: Mapped[int]


class Numbered(TaskMixin, Base):
    __tablename__ = "numbered"

    job_no: Mapped[str] = mapped_column(primary_key=True)


assert_type(Queue(Task).model, type[Task])
assert_type(Queue(Task), Queue[Task])
assert_type(AsyncQueue(Board, "board"), AsyncQueue[Board])
assert_type(Queue(Numbered), Queue[Numbered])


def attributes(task: Task, board: Board, event: TaskEvent, data: MappedData) -> None:
    """Our columns are typed attributes of the host's entities, and expressions of its class."""
    assert_type(task.id, UUID)
    assert_type(board.id, int)
    assert_type(data.id, int)
    assert_type(data.label, str)
    assert_type(Numbered.job_no.key, str)
    assert_type(task.state, str)
    assert_type(task.run_at, datetime)
    assert_type(task.max_attempts, int | None)
    assert_type(task.lease_token, UUID | None)
    assert_type(task.user, User | None)
    assert_type(task.events, list[TaskEvent])
    assert_type(board.title, str)
    assert_type(event.type, str)
    assert_type(event.task, Task)
    assert_type(select(Task.id, Task.key).subquery().c.id.key, str)
    select(Task).where(Task.priority < 3, Task.run_at.is_not(None)).order_by(Task.id.desc())


# --- Dataclasses -------------------------------------------------------------------------------


class DataBase(MappedAsDataclass, DeclarativeBase):
    pass


class DataTask(UuidId, TaskMixin, DataBase):
    __tablename__ = "data_tasks"

    title: Mapped[str]
    note: Mapped[str | None] = mapped_column(default=None)


assert_type(DataTask("t").title, str)
assert_type(DataTask(title="t", note=None).id, UUID)
assert_type(Queue(DataTask), Queue[DataTask])

# --- Registries --------------------------------------------------------------------------------

mapped = registry()


@mapped.mapped
class MappedTask(UuidId, TaskMixin):
    __tablename__ = "mapped_tasks"

    label: Mapped[str]


@mapped.mapped_as_dataclass
class MappedData(BigIntId, TaskMixin):
    __tablename__ = "mapped_data"

    label: Mapped[str]


class ImperativeTask(UuidId, TaskMixin):
    pass


assert_type(Queue(MappedTask), Queue[MappedTask])
assert_type(Queue(MappedData), Queue[MappedData])
assert_type(Queue(ImperativeTask), Queue[ImperativeTask])

# --- Older forms -------------------------------------------------------------------------------

LegacyBase: Any = declarative_base()


class LegacyTask(UuidId, TaskMixin, LegacyBase):  # type: ignore[misc]
    __tablename__ = "legacy_tasks"


class Abstract(UuidId, TaskMixin, Base):
    __abstract__ = True


class Concrete(Abstract):
    __tablename__ = "concrete_tasks"


assert_type(Queue(LegacyTask), Queue[LegacyTask])
assert_type(Queue(Concrete), Queue[Concrete])
