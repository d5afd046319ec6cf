"""Classes that are mapped as usual and do something unusual besides."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest
from sqlalchemy import DateTime, ForeignKey, Integer, func
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from sqla_taskqueue import TaskMixin, UuidId
from tests.hosts.kinds.entry import kind


def _timed_base() -> Any:
    class Base(DeclarativeBase):
        created_at: Mapped[datetime] = mapped_column(server_default=func.now())
        updated_at: Mapped[datetime | None] = mapped_column(
            DateTime(timezone=True), onupdate=func.now()
        )

    return Base


@kind()
def times_on_the_base() -> Any:
    """Columns of our names on the base, where ours win."""
    base = _timed_base()

    class Task(UuidId, TaskMixin, base):
        __tablename__ = "tasks"

    return Task


@kind()
def times_on_the_base_first() -> Any:
    """Columns of our names on the base, which win."""
    base = _timed_base()

    class Task(base, UuidId, TaskMixin):
        __tablename__ = "tasks"

    return Task


@kind(label="same")
def hash_that_raises() -> Any:
    """Entities that can be neither compared, hashed, tested nor shown."""

    class Base(DeclarativeBase):
        pass

    class Task(UuidId, TaskMixin, Base):
        __tablename__ = "tasks"

        label: Mapped[str]

        def __eq__(self, other: object) -> bool:
            raise RuntimeError("compared")

        def __hash__(self) -> int:
            raise RuntimeError("hashed")

        def __bool__(self) -> bool:
            raise RuntimeError("tested")

        def __repr__(self) -> str:
            raise RuntimeError("shown")

    return Task


@kind(label="x")
def constructor_that_raises() -> Any:
    """A constructor that only the host knows how to call."""

    class Base(DeclarativeBase):
        pass

    class Task(UuidId, TaskMixin, Base):
        __tablename__ = "tasks"

        label: Mapped[str]

        def __init__(self, label: str | None = None) -> None:
            if label is None:
                raise RuntimeError("made by the library")
            super().__init__(label=label)

    return Task


@kind(number=7)
def renamed_columns() -> Any:
    """Attributes whose columns have other names, with spaces."""

    class Base(DeclarativeBase):
        pass

    class Task(TaskMixin, Base):
        __tablename__ = "tasks"

        id: Mapped[int] = mapped_column("task id", Integer, primary_key=True)
        number: Mapped[int] = mapped_column("Number of", Integer, unique=False)

    return Task


@kind(team_id=None)
def sqlmodel_registry() -> Any:
    """A declarative class on SQLModel's registry, with a key to one of its tables."""
    sqlmodel = pytest.importorskip("sqlmodel")

    class Team(sqlmodel.SQLModel, table=True):
        id: int | None = sqlmodel.Field(default=None, primary_key=True)

    class Base(DeclarativeBase):
        registry = sqlmodel.SQLModel._sa_registry
        metadata = sqlmodel.SQLModel.metadata

    class Task(UuidId, TaskMixin, Base):
        __tablename__ = "tasks"

        team_id: Mapped[int | None] = mapped_column(ForeignKey(Team.__table__.c.id))

    return Task
