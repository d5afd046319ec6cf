"""Classes that are mapped as usual and do something unusual besides."""

from __future__ import annotations

import enum
from datetime import UTC, datetime
from typing import Any
from uuid import UUID, uuid4

import pytest
from sqlalchemy import (
    JSON,
    BigInteger,
    DateTime,
    Enum,
    ForeignKey,
    Integer,
    LargeBinary,
    String,
    Uuid,
    func,
)
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, registry, relationship

from sqla_taskqueue import BigIntId, TaskMixin, UuidId
from tests.hosts.kinds.entry import kind


class Size(enum.Enum):
    SMALL = "small"
    LARGE = "large"


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


def _record_base() -> Any:
    class Base(DeclarativeBase):
        pass

    class Record(Base):
        """Columns that only Python fills in, and a hash that needs the key."""

        __abstract__ = True

        id: Mapped[UUID] = mapped_column(primary_key=True, default=uuid4)
        created_at: Mapped[datetime] = mapped_column(
            DateTime(timezone=True), default=lambda: datetime.now(UTC)
        )
        updated_at: Mapped[datetime | None] = mapped_column(
            DateTime(timezone=True), onupdate=lambda: datetime.now(UTC)
        )
        deleted_at: Mapped[datetime | None] = mapped_column(DateTime(timezone=True))

        def __eq__(self, other: object) -> bool:
            return isinstance(other, type(self)) and self.id == other.id

        def __hash__(self) -> int:
            return self.id.int

    return Record


@kind()
def key_on_the_base() -> Any:
    """The key, our times and a hash on the base, where our times win."""
    record = _record_base()

    class Task(TaskMixin, record):
        __tablename__ = "tasks"

    return Task


@kind()
def key_on_the_base_first() -> Any:
    """The same, where the base's times win."""
    record = _record_base()

    class Task(record, TaskMixin):
        __tablename__ = "tasks"

    return Task


@kind()
def key_on_both() -> Any:
    """A key on the base and one of ours, which wins."""
    record = _record_base()

    class Task(BigIntId, TaskMixin, record):
        __tablename__ = "tasks"

    return Task


@kind()
def key_on_both_base_first() -> Any:
    """A key on the base, which wins, and one of ours."""
    record = _record_base()

    class Task(record, BigIntId, TaskMixin):
        __tablename__ = "tasks"

    return Task


@kind(label="same")
def like_a_collection() -> Any:
    """A base whose entities are empty collections: false, and equal to nothing."""

    class Base(DeclarativeBase):
        def __len__(self) -> int:
            return 0

        def __iter__(self) -> Any:
            return iter(())

        def __eq__(self, other: object) -> Any:
            return NotImplemented if isinstance(other, int) else []

        __hash__ = None

    class Task(UuidId, TaskMixin, Base):
        __tablename__ = "tasks"

        label: Mapped[str]

    return Task


@kind(label="same", size=Size.SMALL, at=datetime(2030, 2, 28, tzinfo=UTC), extra={"a": [1]})
def type_map() -> Any:
    """A base with types of its own for every Python type there is in our columns."""

    class Base(DeclarativeBase):
        type_annotation_map = {  # noqa: RUF012
            str: String(30),
            int: BigInteger,
            bool: Integer,
            UUID: Uuid(as_uuid=False),
            datetime: DateTime(timezone=True),
            dict[str, Any]: JSONB().with_variant(JSON, "sqlite"),
            Any: LargeBinary,
            enum.Enum: Enum(enum.Enum, native_enum=True),
        }

    class Task(UuidId, TaskMixin, Base):
        __tablename__ = "tasks"

        label: Mapped[str]
        size: Mapped[Size]
        at: Mapped[datetime]
        extra: Mapped[dict[str, Any]]

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
    """A declarative class on SQLModel's registry, related by name to one of its tables."""
    sqlmodel = pytest.importorskip("sqlmodel")

    class Team(sqlmodel.SQLModel, table=True):
        id: int | None = sqlmodel.Field(default=None, primary_key=True)

    class Base(DeclarativeBase):
        registry = sqlmodel.SQLModel._sa_registry
        metadata = sqlmodel.SQLModel.metadata

    class Task(UuidId, TaskMixin, Base):
        __tablename__ = "tasks"

        team_id: Mapped[int | None] = mapped_column(ForeignKey("team.id"))
        team: Mapped[Any] = relationship("Team", lazy="joined")

    Task.Team = Team  # keeps it
    return Task


@kind(title="t")
def sqlmodel_table() -> Any:
    """A table of SQLModel's, whose fields are the host's columns only."""
    sqlmodel = pytest.importorskip("sqlmodel")

    class Base(sqlmodel.SQLModel, registry=registry()):
        pass

    class Task(UuidId, TaskMixin, Base, table=True):
        __tablename__ = "tasks"

        title: str
        copies: int = 1

    return Task
