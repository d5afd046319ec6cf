"""The host classes whose operations are counted: alike, but for the events of one."""

from __future__ import annotations

from sqlalchemy.orm import DeclarativeBase, Mapped

from sqla_taskqueue import AsyncQueue, Queue, TaskEventMixin, TaskMixin, UuidId


class Base(DeclarativeBase):
    pass


class Plain(UuidId, TaskMixin, Base):
    __tablename__ = "plain"
    __scope__ = ("team_id",)
    team_id: Mapped[int]


class Logged(UuidId, TaskMixin, Base):
    __tablename__ = "logged"
    __scope__ = ("team_id",)
    team_id: Mapped[int]


class LoggedEvent(TaskEventMixin, Base):
    __tablename__ = "logged_events"
    __task_model__ = Logged


QUEUES = {
    kind: [facade(model, "work").scope(team_id=7) for facade in (Queue, AsyncQueue)]
    for kind, model in {"plain": Plain, "logged": Logged}.items()
}
"""The queue of each kind of class in both facades: made once, as applications do."""
