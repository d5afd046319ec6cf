"""Hosts that want the driver's own exceptions: SQLSTATEs are recognised on whatever comes (B4)."""

from __future__ import annotations

import pytest
from sqlalchemy import UniqueConstraint, event, exc, text
from sqlalchemy.orm import DeclarativeBase, Mapped

from sqla_taskqueue import (
    EnqueueConflict,
    RefusalReason,
    TaskEventMixin,
    TaskMixin,
    TaskSpec,
    UuidId,
)
from tests.hosts.life import lead_a_life


class Base(DeclarativeBase):
    pass


class Task(UuidId, TaskMixin, Base):
    __tablename__ = "tasks"
    __table_args__ = (UniqueConstraint("label", name="one_label"),)

    label: Mapped[str | None]


class TaskEvent(TaskEventMixin, Base):
    __tablename__ = "task_events"
    __task_model__ = Task


@pytest.fixture
def unwrapped(twin):
    """An engine whose host wants the driver's exceptions, not SQLAlchemy's."""
    twin.create(Base.metadata)
    twin.engine = twin.new_engine()

    engine = twin.engine.sync_engine if twin.is_async else twin.engine

    @event.listens_for(engine, "handle_error")
    def unwrap(context):
        # Of asyncpg's own, beneath SQLAlchemy's adapter.
        raise context.original_exception.__cause__ or context.original_exception

    return twin


def is_drivers_own(error: BaseException) -> bool:
    """Tell whether an exception is none of SQLAlchemy's, nor of this library."""
    return type(error).__module__.partition(".")[0] in ("psycopg", "psycopg2", "asyncpg")


async def test_conflicts_are_recognised_without_sqlalchemys_errors(unwrapped):
    """A host's own constraint is named, and the transaction goes on, in single and batch form."""
    queue = unwrapped.queue(Task)
    clash = {"values": {"label": "taken"}}
    async with unwrapped.begin() as session:
        await queue.enqueue(session, key="first", **clash)
        for call in (
            lambda: queue.enqueue(session, key="second", **clash),
            lambda: queue.enqueue_many(session, [TaskSpec(key="third", **clash)]),
            lambda: queue.enqueue_many(session, [TaskSpec(**clash)]),
        ):
            with pytest.raises(EnqueueConflict, match="one_label") as caught:
                await call()
            assert caught.value.constraint == "one_label"
            assert is_drivers_own(caught.value.__cause__)
        assert (await queue.enqueue(session, key="last")).created
    assert unwrapped.sql("SELECT key FROM tasks ORDER BY 1") == [("first",), ("last",)]


async def test_a_taken_key_is_recognised_without_sqlalchemys_errors(unwrapped):
    """A retry whose unique key has a new owner is refused; a life is led as anywhere."""
    queue = await lead_a_life(unwrapped, Task)
    async with unwrapped.begin() as session:
        old = await queue.enqueue(session, unique_key="u")
        await queue.cancel(session, id=old.id)
        new = await queue.enqueue(session, unique_key="u")
        refused = await queue.retry(session, id=old.id)
        assert refused.reason is RefusalReason.KEY_TAKEN
        assert (await queue.get(session, id=new.id)).state == "queued"


async def test_serialization_failures_pass_through_untouched(unwrapped):
    """The error that the host wants to retry on arrives as its engine made it, not in disguise."""
    queue = unwrapped.queue(Task)
    async with unwrapped.begin() as session:
        sent = await queue.enqueue(session, key="k")
    for operation in (
        lambda session: queue.claim(session, holder="w2"),
        lambda session: queue.claim_task(session, id=sent.id, holder="w2"),
        lambda session: queue.cancel(session, key="k"),
    ):
        unwrapped.sql(
            "UPDATE tasks SET state = 'queued', lease_token = NULL, lease_expires_at = NULL"
        )
        engine = unwrapped.engine.execution_options(isolation_level="REPEATABLE READ")
        async with unwrapped.session(engine) as session:
            await session.execute(text("SELECT 1 FROM tasks"))  # takes its snapshot
            async with unwrapped.begin() as other:
                [claim] = await queue.claim(other, holder="w1")
            with pytest.raises(Exception, match="could not serialize") as caught:
                await operation(session)
            assert is_drivers_own(caught.value)
            assert not isinstance(caught.value, exc.SQLAlchemyError)
            state = getattr(caught.value, "sqlstate", None) or caught.value.pgcode
            assert state == "40001"
            await session.rollback()
        async with unwrapped.begin() as session:
            assert await queue.heartbeat(session, claim)
