"""Classes with a version column: it guards what the host edits, and the queue leaves it alone."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from sqlalchemy import FetchedValue, text
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
from sqlalchemy.orm.exc import StaleDataError
from sqlalchemy.types import UserDefinedType

from sqla_taskqueue import TaskEventMixin, TaskMixin, TaskSpec, UuidId
from tests.hosts.life import lead_a_life

pytestmark = pytest.mark.parametrize("driver", ["psycopg", "asyncpg"], indirect=True)


class Base(DeclarativeBase):
    pass


class Noted:
    note: Mapped[str | None]


class Counted(Noted, UuidId, TaskMixin, Base):
    """SQLAlchemy counts from 1."""

    __tablename__ = "counted"

    version: Mapped[int] = mapped_column(nullable=False)
    __mapper_args__ = {"version_id_col": version}  # noqa: RUF012


class Logged(Noted, UuidId, TaskMixin, Base):
    """The same, with a history: its statements have another form."""

    __tablename__ = "logged"

    version: Mapped[int] = mapped_column("row version", nullable=False)
    __mapper_args__ = {"version_id_col": version}  # noqa: RUF012


class LoggedEvent(TaskEventMixin, Base):
    __tablename__ = "logged_events"
    __task_model__ = Logged


class Random(Noted, UuidId, TaskMixin, Base):
    """A generator of the host's."""

    __tablename__ = "random"

    version: Mapped[str] = mapped_column(nullable=False)
    __mapper_args__ = {  # noqa: RUF012
        "version_id_col": version,
        "version_id_generator": lambda _: uuid.uuid4().hex,
    }


class Manual(Noted, UuidId, TaskMixin, Base):
    """The host counts, by hand."""

    __tablename__ = "manual"

    version: Mapped[int] = mapped_column(default=1)
    __mapper_args__ = {"version_id_col": version, "version_id_generator": False}  # noqa: RUF012


class Moved(Noted, UuidId, TaskMixin, Base):
    """A version that is to move with every write."""

    __tablename__ = "moved"

    version: Mapped[int] = mapped_column(nullable=False, onupdate=text("version + 1"))
    __mapper_args__ = {"version_id_col": version}  # noqa: RUF012


class MovedEvent(TaskEventMixin, Base):
    __tablename__ = "moved_events"
    __task_model__ = Moved


class Xid(UserDefinedType[Any]):
    """A type without conversions."""

    cache_ok = True

    def get_col_spec(self, **_: Any) -> str:
        return "xid"


class Stamped(Noted, UuidId, TaskMixin, Base):
    """PostgreSQL's own version of a row."""

    __tablename__ = "stamped"

    xmin: Mapped[Any] = mapped_column(Xid, system=True, server_default=FetchedValue())
    __mapper_args__ = {"version_id_col": xmin, "version_id_generator": False}  # noqa: RUF012


every_class = pytest.mark.parametrize("model", [Counted, Logged, Random, Manual, Moved, Stamped])
left_alone = pytest.mark.parametrize("model", [Counted, Logged, Random, Manual])


def versions(twin: Any, model: Any) -> list[Any]:
    """Return the versions in the table, oldest task first."""
    [column] = model.__mapper__.version_id_col.base_columns
    rows = twin.sql(f'SELECT "{column.name}" FROM {model.__tablename__} ORDER BY id')
    return [version for (version,) in rows]


@every_class
async def test_versioned_tasks_lead_a_life(twin, model):
    """A version column is no obstacle to any operation."""
    twin.create(Base.metadata)
    await lead_a_life(twin, model)


@pytest.mark.parametrize("model", [Counted, Logged, Moved])
async def test_a_new_task_has_the_first_version(twin, model):
    """One or many, a task begins with the version that a flush would give it, or the host gives."""
    twin.create(Base.metadata)
    queue = twin.queue(model)
    async with twin.begin() as session:
        session.raw.add(model())
        await session.flush()
        await queue.enqueue(session)
        await queue.enqueue_many(session, [TaskSpec(), TaskSpec(values={"version": 7})])
        await queue.enqueue(session, values={"version": 8})
    assert sorted(versions(twin, model)) == [1, 1, 1, 7, 8]


async def test_a_generator_makes_each_first_version(twin):
    """The host's generator is called for each task, also in a batch."""
    twin.create(Base.metadata)
    queue = twin.queue(Random)
    async with twin.begin() as session:
        await queue.enqueue(session)
        await queue.enqueue_many(session, [TaskSpec(), TaskSpec()])
    found = versions(twin, Random)
    assert len(set(found)) == 3
    assert {len(version) for version in found} == {32}


@left_alone
async def test_the_queue_leaves_the_version(twin, model):
    """The queue's writes have a fence of their own: what the host edits meanwhile is not stale."""
    twin.create(Base.metadata)
    queue = twin.queue(model)
    async with twin.begin() as session:
        await queue.enqueue(session, key="a")
    before = versions(twin, model)
    async with twin.begin() as editing:
        task = await queue.get(editing, key="a")
        async with twin.begin() as session:
            [claim] = await queue.claim(session, holder="w1")
            assert await queue.heartbeat(session, claim)
            assert await queue.complete(session, claim)
        assert versions(twin, model) == before
        task.note = "edited"
    assert twin.sql(f"SELECT note, state FROM {model.__tablename__}") == [("edited", "done")]


@left_alone
async def test_a_claimed_task_can_be_edited(twin, model):
    """Edits of `claim.task` before, between and after the queue's writes are all written."""
    twin.create(Base.metadata)
    queue = twin.queue(model)
    async with twin.begin() as session:
        await queue.enqueue(session)
    async with twin.begin() as session:
        [claim] = await queue.claim(session, holder="w1")
        claim.task.note = "one"
        await queue.heartbeat(session, claim)
        claim.task.note += " two"
        await queue.complete(session, claim)
        claim.task.note += " three"
    assert twin.scalar(f"SELECT note FROM {model.__tablename__}") == "one two three"


@every_class
async def test_a_claim_has_the_version_of_now(twin, model):
    """Claiming a task that the session had loaded before refreshes its version."""
    twin.create(Base.metadata)
    queue = twin.queue(model)
    async with twin.begin() as session:
        await queue.enqueue(session, key="a")
    async with twin.begin() as session:
        await queue.get(session, key="a")
        async with twin.begin() as other:
            (await queue.get(other, key="a")).note = "before"
        [claim] = await queue.claim(session, holder="w1")
        claim.task.note += ", after"
    assert twin.scalar(f"SELECT note FROM {model.__tablename__}") == "before, after"


@pytest.mark.parametrize("model", [Counted, Logged, Random])
async def test_a_version_still_guards_the_hosts_edits(twin, model):
    """Of two edits of one version the second is stale, whatever the queue did between them."""
    twin.create(Base.metadata)
    queue = twin.queue(model)
    async with twin.begin() as session:
        await queue.enqueue(session, key="a")
    with pytest.raises(StaleDataError):
        async with twin.begin() as session:
            (await queue.get(session, key="a")).note = "second"
            async with twin.begin() as other:
                (await queue.get(other, key="a")).note = "first"
                await other.flush()
                await queue.claim(other, holder="w1")
    assert twin.scalar(f"SELECT note FROM {model.__tablename__}") == "first"


@pytest.mark.parametrize("model", [Moved, Stamped])
async def test_a_version_that_moves_with_every_write(twin, model):
    """By `onupdate` or by the database, the queue's writes move it: what was read before is stale."""
    twin.create(Base.metadata)
    queue = twin.queue(model)
    async with twin.begin() as session:
        await queue.enqueue(session, key="a")
    seen = versions(twin, model)
    with pytest.raises(StaleDataError):
        async with twin.begin() as editing:
            task = await queue.get(editing, key="a")
            for change in (
                lambda session: queue.claim(session, holder="w1"),
                lambda session: queue.claim_task(session, key="a", holder="w1"),
                lambda session: queue.release(session, key="a", holder="w1"),
                lambda session: queue.cancel(session, key="a"),
            ):
                async with twin.begin() as session:
                    assert await change(session)
                seen += versions(twin, model)
            task.note = "edited"
    assert len(set(seen)) == 5
    async with twin.begin() as session:
        (await queue.get(session, key="a")).note = "read again"
    assert twin.scalar(f"SELECT note FROM {model.__tablename__}") == "read again"
