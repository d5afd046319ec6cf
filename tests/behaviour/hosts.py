"""The host classes of the behaviour suite: one application with four kinds of task table."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sqlalchemy import Integer
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from sqla_taskqueue import BoardMixin, TaskEventMixin, TaskMixin, UuidId


class Base(DeclarativeBase):
    pass


class Task(UuidId, TaskMixin, Base):
    """Scoped as the first source system's work queue is, without a history."""

    __tablename__ = "tasks"
    __scope__ = ("project_hash", "role")
    project_hash: Mapped[str]
    role: Mapped[str]
    reviewer: Mapped[str | None]


class Logged(UuidId, TaskMixin, Base):
    """Without a scope; every change is recorded."""

    __tablename__ = "logged"


class LoggedEvent(TaskEventMixin, Base):
    __tablename__ = "logged_events"
    __task_model__ = Logged


class Pair(TaskMixin, Base):
    """With a composite key that the scope is part of, as on partitioned tables."""

    __tablename__ = "pairs"
    __scope__ = ("tenant_id",)
    tenant_id: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    id: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)


class Board(UuidId, BoardMixin, TaskMixin, Base):
    """A team's board, with history."""

    __tablename__ = "board"
    __scope__ = ("team_id",)
    team_id: Mapped[int]


class BoardEvent(TaskEventMixin, Base):
    __tablename__ = "board_events"
    __task_model__ = Board


# --- What most tests do with them --------------------------------------------------------------

MODELS = (Task, Logged, Pair, Board)

SCOPES: dict[type, dict[str, Any]] = {
    Task: {"project_hash": "9f2c", "role": "coder"},
    Logged: {},
    Pair: {"tenant_id": 7},
    Board: {"team_id": 7},
}
"""The scope that ``queue_of`` binds."""


_queues: dict[Any, Any] = {}


def queue_of(twin: Any, model: type, name: str = "default") -> Any:
    """Return the queue of *model* with its whole scope bound; made once, as applications do."""
    which = (twin.is_async, model, name)
    if which not in _queues:
        _queues[which] = twin.queue(model, name).scope(**SCOPES[model])
    return _queues[which]


def named(model: type, number: int = 1) -> dict[str, Any]:
    """Return the ``id=`` that ``enqueue`` needs where the key is the host's own."""
    return {"id": (SCOPES[Pair]["tenant_id"], number)} if model is Pair else {}


async def committed(
    twin: Any, method: Callable[..., Any], *args: Any, bind: Any = None, **options: Any
) -> Any:
    """Call one method of a queue in a session and transaction of its own."""
    async with twin.begin(bind) as session:
        return await method(session, *args, **options)


async def take(twin: Any, queue: Any, holder: Any = "w1", **options: Any) -> Any:
    """Claim the one task that must be there, in a transaction of its own."""
    [claim] = await committed(twin, queue.claim, holder=holder, **options)
    return claim


async def send_and_take(twin: Any, queue: Any, holder: Any = "w1", **options: Any) -> Any:
    """Enqueue a task and claim it, each in a transaction of its own."""
    lease = {"lease": options.pop("lease")} if "lease" in options else {}
    sent = await committed(twin, queue.enqueue, **{**named(queue.model), **options})
    claim = await take(twin, queue, holder, **lease)
    assert claim.id == sent.id
    return claim


def expire(twin: Any, queue: Any, seconds: float = 1) -> None:
    """Move the deadline of every live lease of the class into the past."""
    twin.sql(
        f"UPDATE {queue.model.__tablename__}"
        " SET lease_expires_at = statement_timestamp() - make_interval(secs => %(s)s)"
        " WHERE lease_token IS NOT NULL",
        s=seconds,
    )


def row_of(twin: Any, queue: Any) -> Any:
    """Return the only row of the class's table."""
    [row] = twin.sql(f"SELECT * FROM {queue.model.__tablename__}")
    return row


_EVERYTHING = " UNION ALL ".join(
    f"SELECT '{table}', t.ctid::text, t.xmin::text, t.*::text FROM {table} AS t"
    for table in Base.metadata.tables
)


def everything(twin: Any) -> list[Any]:
    """Return every row of every table as text, with its place and the transaction that wrote it.

    Equal before and after means: nothing was written, not even the same again.
    """
    return sorted(twin.sql(_EVERYTHING))


def events(twin: Any, model: type, *types: str) -> list[Any]:
    """Return the recorded events of these types (all if none is given), oldest first."""
    table = {Logged: "logged_events", Board: "board_events"}[model]
    rows = twin.sql(f"SELECT * FROM {table} ORDER BY created_at, id")
    return [row for row in rows if not types or row.type in types]
