"""Hosts with every kind of primary key, each with two keys that it makes and some that are wrong."""

from __future__ import annotations

import uuid
from datetime import date
from typing import Any, NamedTuple

from sqlalchemy import BigInteger, Date, Integer, SmallInteger, String, TypeDecorator, Uuid
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from sqla_taskqueue import BigIntId, TaskEventMixin, TaskMixin, UuidId, uuid7


class Base(DeclarativeBase):
    pass


class WithUuid(UuidId, TaskMixin, Base):
    __tablename__ = "with_uuid"


class WithBigInt(BigIntId, TaskMixin, Base):
    __tablename__ = "with_bigint"


class WithInteger(TaskMixin, Base):
    __tablename__ = "with_integer"

    id: Mapped[int] = mapped_column(primary_key=True)


class WithSmallInt(TaskMixin, Base):
    __tablename__ = "with_smallint"

    number: Mapped[int] = mapped_column(SmallInteger, primary_key=True, autoincrement=False)


class WithText(TaskMixin, Base):
    __tablename__ = "with_text"

    job_no: Mapped[str] = mapped_column(primary_key=True)


class WithHexUuid(TaskMixin, Base):
    """UUIDs that the host sees as text."""

    __tablename__ = "with_hex_uuid"

    id: Mapped[str] = mapped_column(
        Uuid(as_uuid=False), primary_key=True, default=lambda: str(uuid7())
    )


class Prefixed(TypeDecorator):
    """Whole numbers that the host sees as ``J-7``."""

    impl = Integer
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: Any) -> Any:
        return None if value is None else int(value.removeprefix("J-"))

    def process_result_value(self, value: Any, dialect: Any) -> Any:
        return None if value is None else f"J-{value}"


class WithDecorated(TaskMixin, Base):
    __tablename__ = "with_decorated"

    id: Mapped[str] = mapped_column(Prefixed, primary_key=True)


class Scoped(TaskMixin, Base):
    """As on partitioned tables: the key begins with the scope."""

    __tablename__ = "scoped"
    __scope__ = ("tenant_id",)

    tenant_id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    id: Mapped[uuid.UUID] = mapped_column(Uuid, primary_key=True, insert_default=uuid7)


class ScopedLast(TaskMixin, Base):
    """The scope's attribute has a name other than its column, which ends the key."""

    __tablename__ = "scoped_last"
    __scope__ = ("tenant",)

    id: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=False)
    tenant: Mapped[str] = mapped_column("tenant id", String(20), primary_key=True)


class Unscoped(TaskMixin, Base):
    __tablename__ = "unscoped"

    day: Mapped[date] = mapped_column(Date, primary_key=True)
    number: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    part: Mapped[str] = mapped_column(primary_key=True)


class OnlyScope(TaskMixin, Base):
    """One task for each tenant: the scope is the whole key."""

    __tablename__ = "only_scope"
    __scope__ = ("tenant_id",)

    tenant_id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)


for _model in [mapper.class_ for mapper in list(Base.registry.mappers)]:
    _name = f"{_model.__name__}Event"
    globals()[_name] = type(
        _name,
        (TaskEventMixin, Base),
        {"__tablename__": f"{_model.__tablename__}_events", "__task_model__": _model},
    )


class Key(NamedTuple):
    """A kind of key.

    Attributes:
        model: The task class.
        ids: Two keys, in their order.
        wrong: What is no such key.
        scope: Values of the scope columns.
        foreign: A key of another scope.
        has_default: Whether a task may come without a key.
    """

    model: Any
    ids: tuple[Any, Any]
    wrong: tuple[Any, ...]
    scope: dict[str, Any] = {}  # noqa: RUF012 - never changed
    foreign: tuple[Any, ...] = ()
    has_default: bool = True

    def __str__(self) -> str:
        return self.model.__name__


_ONE, _TWO = uuid7(), uuid7()
_TODAY = date(2030, 2, 28)

KEYS = [
    Key(WithUuid, (_ONE, _TWO), (str(_ONE), 7, b"7", (_ONE, _TWO), [_ONE], object())),
    Key(WithBigInt, (5, 6), ("5", 5.0, True, 1 << 63, -(1 << 63) - 1, 1 << 200, (5, 6), _ONE)),
    Key(WithInteger, (5, 6), ("5", 5.0, False, 1 << 31, -(1 << 31) - 1, (5,), {"id": 5})),
    Key(WithSmallInt, (-5, 6), ("5", 1 << 15, -(1 << 15) - 1), has_default=False),
    Key(
        WithText,
        ("J-1", "J-2"),
        (7, b"J-1", ("J-1", "J-2"), "J\x00", "J\ud800", _ONE),
        has_default=False,
    ),
    Key(WithHexUuid, (str(_ONE), str(_TWO)), (7, _ONE, "no uuid")),
    Key(WithDecorated, ("J-1", "J-2"), ()),
    Key(
        Scoped,
        ((7, _ONE), (7, _TWO)),
        ((_ONE, 7), (7,), (7, _ONE, 1), (None, _ONE), ("7", _ONE), 7, [7, _ONE]),
        {"tenant_id": 7},
        foreign=((8, _ONE),),
    ),
    Key(
        ScopedLast,
        ((1, "t"), (2, "t")),
        (("t", 1), (1,), (1 << 63, "t"), "t", (1, 7)),
        {"tenant": "t"},
        foreign=((1, "u"),),
        has_default=False,
    ),
    Key(
        Unscoped,
        ((_TODAY, 1, "a"), (_TODAY, 1, "b")),
        ((_TODAY, 1), _TODAY, ("2030-02-28", 1, "a"), (_TODAY, 1, "a", 4), (_TODAY, True, "a")),
        has_default=False,
    ),
]
