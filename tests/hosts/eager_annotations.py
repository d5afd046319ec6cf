# ruff: noqa: I002 - the point of this module: annotations that are evaluated at once
"""A host's module without ``from __future__ import annotations``."""

from typing import Optional

from sqlalchemy import ForeignKey
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, relationship

from sqla_taskqueue import BigIntId, TaskEventMixin, TaskMixin


class Base(DeclarativeBase):
    pass


class Team(Base):
    __tablename__ = "teams"

    id: Mapped[int] = mapped_column(primary_key=True)


class Task(BigIntId, TaskMixin, Base):
    __tablename__ = "tasks"

    team_id: Mapped[Optional[int]] = mapped_column(ForeignKey("teams.id"))  # noqa: UP045
    team: Mapped[Optional[Team]] = relationship()  # noqa: UP045
    events: Mapped[list["TaskEvent"]] = relationship(viewonly=True)


class TaskEvent(TaskEventMixin, Base):
    __tablename__ = "task_events"
    __task_model__ = Task
