"""Classes with `BoardMixin`: endless attempts, longer leases, and columns to read."""

from __future__ import annotations

from datetime import timedelta

import pytest
from sqlalchemy.orm import DeclarativeBase, Mapped, MappedAsDataclass

from sqla_taskqueue import (
    BigIntId,
    BoardMixin,
    Holder,
    Limits,
    TaskEventMixin,
    TaskMixin,
    UuidId,
)
from tests.hosts.life import lead_a_life

two_drivers = pytest.mark.parametrize("driver", ["psycopg", "asyncpg"], indirect=True)


class Base(DeclarativeBase):
    pass


class Board(BigIntId, BoardMixin, TaskMixin, Base):
    __tablename__ = "board"
    __scope__ = ("team_id",)

    team_id: Mapped[int]


class BoardFirst(Base, TaskMixin, BoardMixin, UuidId):
    __tablename__ = "board_first"
    __scope__ = ("team_id",)

    team_id: Mapped[int]


class BoardEvent(TaskEventMixin, Base):
    __tablename__ = "board_events"
    __task_model__ = Board


class DataBoard(MappedAsDataclass, UuidId, BoardMixin, TaskMixin, Base):
    __tablename__ = "data_board"
    __scope__ = ("team_id",)

    team_id: Mapped[int]


boards = pytest.mark.parametrize("model", [Board, BoardFirst, DataBoard])


@pytest.mark.smoke
@boards
@two_drivers
async def test_a_boards_tasks_have_endless_attempts(twin, model):
    """`enqueue` and `session.add` both leave `max_attempts` NULL; a number can be given."""
    twin.create(Base.metadata)
    await lead_a_life(twin, model, scope={"team_id": 7})
    queue = twin.queue(model).scope(team_id=7)
    assert queue.limits == Limits.board()
    async with twin.begin() as session:
        await queue.enqueue(session, "sent")
        await queue.enqueue(session, "given", max_attempts=2)
        session.raw.add(model(team_id=7))
    rows = twin.sql(
        f"SELECT name, max_attempts FROM {model.__tablename__} WHERE queue = 'default' ORDER BY 1"
    )
    assert rows == [("", None), ("given", 2), ("sent", None)]


@boards
@two_drivers
async def test_a_boards_columns_are_values(twin, model):
    """Title, description and the column "metadata" are set by `values=`, with defaults else."""
    twin.create(Base.metadata)
    queue = twin.queue(model).scope(team_id=7)
    values = {"title": "T", "description": "D" * 5_000, "meta": {"tags": ["a"], "n": None}}
    async with twin.begin() as session:
        sent = await queue.enqueue(session, values=values)
        task = await session.get(model, sent.id)
        assert (task.title, task.description, task.meta) == tuple(values.values())
        bare = await session.get(model, (await queue.enqueue(session)).id)
        assert (bare.title, bare.description, bare.meta) == ("", "", None)
    assert twin.sql(
        f"SELECT metadata ->> 'n', jsonb_typeof(metadata) FROM {model.__tablename__}"
        " WHERE title = 'T'"
    ) == [(None, "object")]


@boards
@two_drivers
async def test_a_boards_leases(twin, model):
    """A lease is 900 s by default, and kept between 30 s and 24 h."""
    twin.create(Base.metadata)
    queue = twin.queue(model).scope(team_id=7)
    seconds = (
        f"SELECT extract(epoch FROM lease_expires_at - heartbeat_at)::int"
        f" FROM {model.__tablename__}"
    )
    async with twin.begin() as session:
        await queue.enqueue(session, key="a")
        [claim] = await queue.claim(session, holder=Holder("agent", "s1"))
        assert claim.lease.duration == timedelta(seconds=900)
    assert twin.scalar(seconds) == 900
    for lease, kept in ((1, 30), (29, 30), (31, 31), (86_401, 86_400), (10**7, 86_400)):
        async with twin.begin() as session:
            renewed = await queue.heartbeat(session, claim, lease=timedelta(seconds=lease))
            assert renewed.duration == timedelta(seconds=kept)
        assert twin.scalar(seconds) == kept
