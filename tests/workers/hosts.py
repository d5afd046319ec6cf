"""The application whose tasks the workers of the tests work on."""

from __future__ import annotations

from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from sqla_taskqueue import TaskEventMixin, TaskMixin, UuidId


class Base(DeclarativeBase):
    pass


class Task(UuidId, TaskMixin, Base):
    __tablename__ = "tasks"


class Logged(UuidId, TaskMixin, Base):
    __tablename__ = "logged"


class LoggedEvent(TaskEventMixin, Base):
    __tablename__ = "logged_events"
    __task_model__ = Logged


class Tenanted(UuidId, TaskMixin, Base):
    __tablename__ = "tenanted"
    __scope__ = ("tenant",)

    tenant: Mapped[str]


class Effect(Base):
    """What handlers do: one row for each time."""

    __tablename__ = "effects"

    id: Mapped[int] = mapped_column(primary_key=True)
    number: Mapped[int]
