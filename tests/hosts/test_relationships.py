"""Hosts whose tasks have relationships, loaded in every way there is."""

from __future__ import annotations

import functools

import pytest
from sqlalchemy import ForeignKey
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, relationship

from sqla_taskqueue import TaskEventMixin, TaskMixin, UuidId, uuid7
from tests.hosts.life import lead_a_life

LAZY = ["select", "joined", "selectin", "subquery", "immediate", "raise", "raise_on_sql"]
EAGER = ["joined", "selectin", "subquery", "immediate"]

two_drivers = pytest.mark.parametrize("driver", ["psycopg", "asyncpg"], indirect=True)


@functools.cache
def host(lazy, inner=False):
    """Map a task with a team, notes and events, all of them loaded in one way."""

    class Base(DeclarativeBase):
        pass

    class Team(Base):
        __tablename__ = "teams"

        id: Mapped[int] = mapped_column(primary_key=True)
        tasks: Mapped[list[Task]] = relationship(back_populates="team")

    class Task(UuidId, TaskMixin, Base):
        __tablename__ = "tasks"
        __scope__ = ("team_id",)

        team_id: Mapped[int] = mapped_column(ForeignKey("teams.id"))
        team: Mapped[Team] = relationship(back_populates="tasks", lazy=lazy, innerjoin=inner)
        notes: Mapped[list[Note]] = relationship(lazy=lazy, order_by="Note.id")
        events: Mapped[list[Event]] = relationship(lazy=lazy, viewonly=True)

    class Note(Base):
        __tablename__ = "notes"

        id: Mapped[int] = mapped_column(primary_key=True)
        task_id = mapped_column(ForeignKey(Task.id, ondelete="CASCADE"))

    class Event(TaskEventMixin, Base):
        __tablename__ = "task_events"
        __task_model__ = Task

    Base.registry.configure()
    Base.Team, Base.Task, Base.Note, Base.Event = Team, Task, Note, Event  # keeps them
    return Base


@pytest.mark.parametrize("lazy", LAZY)
@two_drivers
async def test_tasks_lead_a_life(twin, lazy):
    """No way to load a relationship gets between a session and the queue."""
    base = host(lazy)
    twin.create(base.metadata)
    twin.sql("INSERT INTO teams (id) VALUES (7)")
    await lead_a_life(twin, base.Task, scope={"team_id": 7})


@pytest.mark.parametrize("lazy", LAZY)
@pytest.mark.parametrize("inner", [False, True])
@two_drivers
async def test_collections_do_not_multiply_claims(twin, lazy, inner):
    """Tasks with several notes are claimed, found and named once each, `limit` counting tasks."""
    base = host(lazy, inner)
    twin.create(base.metadata)
    twin.sql("INSERT INTO teams (id) VALUES (7)")
    queue = twin.queue(base.Task).scope(team_id=7)
    ids = [uuid7() for _ in range(4)]
    async with twin.begin() as session:
        for id_ in ids:
            assert await queue.enqueue(session, id=id_)
        session.raw.add_all(base.Note(task_id=id_) for id_ in ids for _ in range(3))
    async with twin.begin() as session:
        claims = await queue.claim(session, holder="w1", limit=2)
        assert [claim.id for claim in claims] == ids[:2]
        assert (await queue.claim_task(session, id=ids[2], holder="w1")).id == ids[2]
        page = await queue.find(session, limit=3)
        assert [task.id for task in page] == ids[:0:-1]
        assert page.next == ids[1]
        assert (await queue.get(session, id=ids[0])).id == ids[0]
        assert len(await queue.history(session, id=ids[0])) == 2


@pytest.mark.parametrize("lazy", EAGER)
@two_drivers
async def test_eager_relationships_are_there_to_be_read(twin, lazy):
    """What the host loads eagerly can be read off a claimed task, also in an AsyncSession."""
    base = host(lazy)
    twin.create(base.metadata)
    twin.sql("INSERT INTO teams (id) VALUES (7)")
    queue = twin.queue(base.Task).scope(team_id=7)
    async with twin.begin() as session:
        sent = [await queue.enqueue(session, key=key) for key in ("a", "b")]
        session.raw.add_all(base.Note(task_id=sent[0].id) for _ in range(3))
    async with twin.begin() as session:
        task = await queue.get(session, id=sent[0].id)
        assert (task.team.id, len(task.notes), len(task.events)) == (7, 3, 1)
    async with twin.begin() as session:
        [task] = [claim.task for claim in await queue.claim(session, holder="w1")]
        assert (task.team.id, len(task.notes), len(task.events)) == (7, 3, 2)
    async with twin.begin() as session:
        claim = await queue.claim_task(session, id=sent[1].id, holder="w1")
        assert (claim.task.team.id, claim.task.notes) == (7, [])


@two_drivers
async def test_pending_parents_are_flushed_first(twin):
    """A team that was only added to the session is there when its first task is enqueued."""
    base = host("select")
    twin.create(base.metadata)
    async with twin.begin() as session:
        session.raw.add(base.Team(id=7))
        sent = await twin.queue(base.Task).scope(team_id=7).enqueue(session, "work")
        assert sent.created
    assert twin.sql("SELECT team_id FROM tasks") == [(7,)]
