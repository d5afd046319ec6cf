"""The one application that is put into every surrounding: tenants, their tasks, a history."""

from __future__ import annotations

import functools
from typing import Any

from sqlalchemy import DDL, ForeignKey, MetaData, UniqueConstraint, event
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from sqla_taskqueue import TaskEventMixin, TaskMixin, UuidId

PARTITIONS = 4


@functools.cache
def application(*, schema: str | None = None, partitioned: bool = False) -> Any:
    """Map the application; the base has its classes as ``Tenant``, ``Task`` and ``Event``.

    The key of a task is composite and begins with the scope, as hash-partitioned tables need it.

    Args:
        schema: Where all tables are.
        partitioned: Whether tasks and events are partitioned by the hash of their tenant.
    """

    class Base(DeclarativeBase):
        metadata = MetaData(schema=schema)

    class Tenant(Base):
        __tablename__ = "tenants"

        id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
        paid: Mapped[int] = mapped_column(default=0)

    class Task(UuidId, TaskMixin, Base):
        __tablename__ = "tasks"
        __table_args__ = (
            UniqueConstraint("tenant_id", "order_no"),
            _by_hash("tenant_id") if partitioned else {},
        )
        __scope__ = ("tenant_id",)

        tenant_id: Mapped[int] = mapped_column(
            ForeignKey(Tenant.id), primary_key=True, sort_order=-200
        )
        order_no: Mapped[str | None]

    class Event(TaskEventMixin, Base):
        __tablename__ = "task_events"
        __table_args__ = _by_hash("task_tenant_id") if partitioned else {}
        __task_model__ = Task

    for table in (Task.__table__, Event.__table__) if partitioned else ():
        for part in range(PARTITIONS):
            event.listen(table, "after_create", _partition(table.name, part))
    Base.Tenant, Base.Task, Base.Event = Tenant, Task, Event
    return Base


def _by_hash(column: str) -> dict[str, str]:
    return {"postgresql_partition_by": f"HASH ({column})"}


def _partition(table: str, part: int) -> DDL:
    return DDL(
        f"CREATE TABLE {table}_{part} PARTITION OF {table}"
        f" FOR VALUES WITH (MODULUS {PARTITIONS}, REMAINDER {part})"
    )
