"""The host application: its own base class, its own tables, and the queue in them."""

from __future__ import annotations

from uuid import UUID

from sqlalchemy import ForeignKey
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, relationship

from .. import AsyncQueue, Queue, TaskEventMixin, TaskMixin, UuidId


class Base(DeclarativeBase):
    """The host's own base."""


class User(Base):
    """Somebody who signed up."""

    __tablename__ = "users"

    id: Mapped[int] = mapped_column(primary_key=True)
    email: Mapped[str] = mapped_column(unique=True)


class Task(UuidId, TaskMixin, Base):
    """The host's task class: the library's columns, and a user whom the task is about."""

    __tablename__ = "tasks"

    user_id: Mapped[int] = mapped_column(ForeignKey("users.id"), index=True)
    user: Mapped[User] = relationship()


class TaskEvent(TaskEventMixin, Base):
    """What happened to each task."""

    __tablename__ = "task_events"
    __task_model__ = Task


class Delivery(Base):
    """The effect of a task: a welcome that was sent."""

    __tablename__ = "deliveries"

    id: Mapped[int] = mapped_column(primary_key=True)
    # Not unique: a second delivery must show up in the count, not be kept out by the table.
    task_id: Mapped[UUID] = mapped_column(ForeignKey("tasks.id"), index=True)
    email: Mapped[str]
    worker: Mapped[str]


welcomes = Queue(Task, "welcomes")
async_welcomes = AsyncQueue(Task, "welcomes")
