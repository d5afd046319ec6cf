"""Further host classes, for guards over statements and for plans; see also tests/behaviour."""

from __future__ import annotations

from datetime import UTC, datetime

from sqlalchemy import DateTime, Integer, Text
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from sqla_taskqueue import TaskEventMixin, TaskMixin, UuidId


class Base(DeclarativeBase):
    pass


class Grid(TaskMixin, Base):
    """Without a scope, with a composite key."""

    __tablename__ = "grid"
    row: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    column: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)


class Word(TaskMixin, Base):
    """With a key of text."""

    __tablename__ = "words"
    id: Mapped[str] = mapped_column(Text, primary_key=True)


class Audited(UuidId, TaskMixin, Base):
    """With events, a scope and a column that Python keeps up to date."""

    __tablename__ = "audited"
    __scope__ = ("tenant",)
    tenant: Mapped[str]
    touched: Mapped[datetime | None] = mapped_column(
        DateTime(timezone=True), onupdate=lambda: datetime.now(UTC)
    )


class AuditedEvent(TaskEventMixin, Base):
    __tablename__ = "audited_events"
    __task_model__ = Audited


class Cell(TaskMixin, Base):
    """With events, a scope and a key of three columns, one of them the scope's."""

    __tablename__ = "cells"
    __scope__ = ("tenant",)
    tenant: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    row: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    column: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)


class CellEvent(TaskEventMixin, Base):
    __tablename__ = "cell_events"
    __task_model__ = Cell


class Listed(UuidId, TaskMixin, Base):
    """With every index that a class can ask for."""

    __tablename__ = "listed"
    __scope__ = ("tenant",)
    __extra_indexes__ = ("list", "finished")
    tenant: Mapped[str]
