"""The forms in which SQLAlchemy lets a class be mapped."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Column, MetaData, String, Table, Uuid
from sqlalchemy.orm import (
    DeclarativeBase,
    DeclarativeBaseNoMeta,
    Mapped,
    MappedAsDataclass,
    declarative_base,
    declared_attr,
    mapped_column,
    registry,
)

from sqla_taskqueue import BigIntId, TaskMixin, UuidId, uuid7
from tests.hosts.kinds.entry import kind


@kind()
def plain() -> Any:
    """A class on a `DeclarativeBase`, as the README has it."""

    class Base(DeclarativeBase):
        pass

    class Task(UuidId, TaskMixin, Base):
        __tablename__ = "tasks"

    return Task


@kind()
def base_first() -> Any:
    """The base before the mixins."""

    class Base(DeclarativeBase):
        pass

    class Task(Base, TaskMixin, UuidId):
        __tablename__ = "tasks"

    return Task


@kind()
def without_metaclass() -> Any:
    """A base without a metaclass."""

    class Base(DeclarativeBaseNoMeta):
        pass

    class Task(BigIntId, TaskMixin, Base):
        __tablename__ = "tasks"

    return Task


@kind(is_dataclass=True, title="same")
def dataclass_base() -> Any:
    """A dataclass by its base."""

    class Base(MappedAsDataclass, DeclarativeBase):
        pass

    class Task(UuidId, TaskMixin, Base):
        __tablename__ = "tasks"

        title: Mapped[str]
        note: Mapped[str | None] = mapped_column(default=None)

    return Task


@kind(is_dataclass=True, title="same")
def dataclass_base_first() -> Any:
    """A dataclass with keyword-only fields, its base before the mixins."""

    class Base(DeclarativeBase, MappedAsDataclass, kw_only=True):
        pass

    class Task(Base, TaskMixin, UuidId):
        __tablename__ = "tasks"

        note: Mapped[str | None] = mapped_column(default=None)
        title: Mapped[str]

    return Task


@kind(is_dataclass=True, title="same")
def dataclass_class() -> Any:
    """A dataclass on a base that is none."""

    class Base(DeclarativeBase):
        pass

    class Task(MappedAsDataclass, UuidId, TaskMixin, Base, unsafe_hash=True):
        __tablename__ = "tasks"

        title: Mapped[str]
        note: Mapped[str | None] = mapped_column(default=None)

    return Task


@kind()
def registry_mapped() -> Any:
    """A class mapped by a decorator."""

    @registry().mapped
    class Task(UuidId, TaskMixin):
        __tablename__ = "tasks"

    return Task


@kind(is_dataclass=True, title="same")
def registry_mapped_as_dataclass() -> Any:
    """A class made a dataclass and mapped by a decorator."""

    @registry().mapped_as_dataclass
    class Task(UuidId, TaskMixin):
        __tablename__ = "tasks"

        title: Mapped[str]
        note: Mapped[str | None] = mapped_column(default=None)

    return Task


@kind(title="t")
def generated_base() -> Any:
    """A base that a registry generated."""
    base: Any = registry().generate_base()

    class Task(UuidId, TaskMixin, base):
        __tablename__ = "tasks"

        title: Mapped[str]

    return Task


@kind(title="t")
def legacy_base() -> Any:
    """A base and columns as in SQLAlchemy 1.4."""
    base: Any = declarative_base(metadata=MetaData())

    class Task(base, UuidId, TaskMixin):
        __tablename__ = "tasks"

        title = Column(String, nullable=False)

    return Task


@kind(title="t")
def own_table() -> Any:
    """A declarative class with a `__table__` of its own."""

    class Base(DeclarativeBase):
        pass

    class Task(UuidId, TaskMixin, Base):
        __table__ = Table(
            "tasks",
            Base.metadata,
            Column("id", Uuid, primary_key=True, default=uuid7),
            *library_columns(),
            Column("title", String(20), nullable=False),
        )

    return Task


@kind(title="t")
def mapped_imperatively() -> Any:
    """A class and a table that know nothing of each other."""

    class Task(TaskMixin):
        def __init__(self, title: str) -> None:
            self.title = title

    columns = [Column("id", Uuid, primary_key=True, default=uuid7), *library_columns()]
    mapped = registry()
    table = Table("tasks", mapped.metadata, *columns, Column("title", String, nullable=False))
    mapped.map_imperatively(Task, table)
    return Task


def library_columns(*without: str, mixin: Any = TaskMixin) -> list[Column[Any]]:
    """Return columns as a host writes them into a table of its own."""
    return [
        Column(
            name,
            attribute.column.type,
            primary_key=attribute.column.primary_key,
            nullable=attribute.column.nullable,
            default=attribute.column.default and attribute.column.default.arg,
            server_default=attribute.column.server_default and attribute.column.server_default.arg,
        )
        for name, attribute in vars(mixin).items()
        if hasattr(attribute, "column") and name not in without
    ]


@kind()
def abstract_class_between() -> Any:
    """An abstract class between the mixins and the task class."""

    class Base(DeclarativeBase):
        pass

    class QueueTable(UuidId, TaskMixin, Base):
        __abstract__ = True

    class Task(QueueTable):
        __tablename__ = "tasks"

    return Task


@kind()
def mixin_between() -> Any:
    """A mixin of the host's that carries ours."""

    class Base(DeclarativeBase):
        pass

    class OurTask(TaskMixin, UuidId):
        pass

    class Task(OurTask, Base):
        __tablename__ = "tasks"

    return Task


@kind()
def other_names() -> Any:
    """Classes and tables of any name, the latter made by the base."""

    class Model(DeclarativeBase):
        @declared_attr.directive
        def __tablename__(cls) -> str:  # noqa: N805 - a class method, says declared_attr
            return f"app_{cls.__name__.lower()}s"

    class PrintJob(BigIntId, TaskMixin, Model):
        pass

    return PrintJob
