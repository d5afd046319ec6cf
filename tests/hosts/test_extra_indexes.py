"""Indexes that a class asks for change plans, and nothing that anybody sees."""

from __future__ import annotations

from datetime import timedelta

import pytest
from sqlalchemy import Integer
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from sqla_taskqueue import Limits, TaskMixin, TaskState, UnsupportedModel, UuidId
from tests.hosts.catalogue import indexes

two_drivers = pytest.mark.parametrize("driver", ["psycopg", "asyncpg"], indirect=True)


class Base(DeclarativeBase):
    pass


class Plain(UuidId, TaskMixin, Base):
    __tablename__ = "plain"
    __scope__ = ("team",)
    team: Mapped[int] = mapped_column(Integer)


class Indexed(UuidId, TaskMixin, Base):
    __tablename__ = "indexed"
    __scope__ = ("team",)
    __extra_indexes__ = ("list", "finished")
    team: Mapped[int] = mapped_column(Integer)


class Cell(TaskMixin, Base):
    """With a composite key that the scope is part of."""

    __tablename__ = "cells"
    __scope__ = ("team",)
    __extra_indexes__ = ("list", "finished")
    team: Mapped[int] = mapped_column(Integer, primary_key=True)
    id: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)


async def fill(twin, model):
    """Make three tasks of each state but blocked, and some of other queues and scopes."""
    twin.create(Base.metadata)
    team = twin.queue(model, limits=Limits(page=4, counted=2)).scope(team=1)
    numbers = iter(range(100))

    async def send(queue, number):
        for n in range(number):
            id_ = next(numbers) if model is Cell else None
            await queue.enqueue(session, f"{n}", {"n": n}, id=id_, actor="ann")

    async with twin.begin() as session:
        for end in ("complete", "fail", "cancel", "hold", "leave"):
            await send(team, 3)
            if end in ("leave", "cancel"):
                continue
            for claim in await team.claim(session, holder="w", limit=3):
                if end == "complete":
                    assert await team.complete(session, claim)
                elif end == "fail":
                    assert await team.fail(session, claim, error="no", final=True)
        waiting = (await team.find(session, state="queued")).tasks
        for task in waiting[:3]:
            assert await team.cancel(
                session, id=(task.team, task.id) if model is Cell else task.id
            )
        await send(twin.queue(model).scope(team=2), 2)
        await send(twin.queue(model, "other").scope(team=1), 2)
    return team


async def pages(session, queue, **filters):
    """Return the (name, state) of every task that pages show, in their order."""
    shown, after = [], None
    while True:
        page = await queue.find(session, after=after, **filters)
        shown += [(task.name, task.state) for task in page.tasks]
        after = page.next
        if after is None:
            return shown


@two_drivers
@pytest.mark.parametrize("model", [Indexed, Cell], ids=lambda model: model.__name__)
async def test_pages_and_counts_are_the_same(twin, model):
    """Whatever is asked, a class with the indexes answers like one without."""
    asked = [
        {},
        *({"state": state} for state in TaskState),
        {"state": ("done", "failed", "claimed")},
        {"name": "1"},
        {"holder": "w", "state": ("done", "claimed")},
        {"created_by": "ann", "limit": 2},
        {"created_by": "bob"},
    ]
    answers = []
    for one in (Plain, model):
        team = await fill(twin, one)
        async with twin.begin() as session:
            stats = await team.stats(session)
            answers.append([await pages(session, team, **filters) for filters in asked])
            answers[-1] += [stats.as_dict(), stats.capped, stats.due, stats.expired]
    assert answers[0] == answers[1]
    assert len(answers[0][0]) == 15
    assert stats.capped == {TaskState.DONE, TaskState.FAILED, TaskState.CANCELLED}


@two_drivers
@pytest.mark.parametrize("model", [Plain, Indexed, Cell], ids=lambda model: model.__name__)
async def test_prune_deletes_what_ended_long_ago(twin, model):
    """By age and state, bounded, whichever way it goes."""
    team = await fill(twin, model)
    table = model.__tablename__
    twin.sql(f"UPDATE {table} SET finished_at = '2001-01-01Z' WHERE state IN ('done', 'failed')")
    async with twin.begin() as session:
        day = timedelta(days=1)
        assert await team.prune(session, older_than=day, state="failed", limit=2) == 2
        assert await team.prune(session, older_than=day) == 4
        assert await team.prune(session, older_than=day) == 0
        assert await team.prune(session, older_than=timedelta(0), state="cancelled") == 3
    assert twin.scalar(f"SELECT count(*) FROM {table}") == 10


def test_the_indexes_are_in_the_catalogue(database):
    """Both, with the primary key's columns at the end of the list's."""
    database.create(Base.metadata)
    found = indexes(database, "cells")
    assert found["ix_cells_list"].columns == ("state", "team", "queue", "id")
    assert found["ix_cells_finished"].columns == ("finished_at",)
    assert found["ix_cells_finished"].predicate == "(finished_at IS NOT NULL)"
    assert not {"ix_plain_list", "ix_plain_finished"} & set(indexes(database, "plain"))


@pytest.mark.parametrize("names", ["list", ("lists",), ("list", None), {"list"}])
def test_an_unknown_index_is_refused(names):
    """When the class is made, naming what there is."""

    class Own(DeclarativeBase):
        pass

    with pytest.raises(UnsupportedModel, match=r"__extra_indexes__ .* 'list', 'finished'"):

        class Wrong(UuidId, TaskMixin, Own):
            __tablename__ = "wrong"
            __extra_indexes__ = names
