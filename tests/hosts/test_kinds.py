"""Every kind of declarative class carries a queue: mapped, created, and living on PostgreSQL."""

from __future__ import annotations

import inspect

import pytest
from sqlalchemy import Table, select
from sqlalchemy.orm import DeclarativeBase, Session, configure_mappers

from sqla_taskqueue import Queue, TaskMixin, UuidId, uuid7
from tests.hosts import eager_annotations, kinds
from tests.hosts.catalogue import assert_furnished, indexes
from tests.hosts.life import lead_a_life

DATACLASSES = [kind for kind in kinds.KINDS if kind.is_dataclass]

every_kind = pytest.mark.parametrize("kind", kinds.KINDS, ids=str)
every_dataclass = pytest.mark.parametrize("kind", DATACLASSES, ids=str)
two_drivers = pytest.mark.parametrize("driver", ["psycopg", "asyncpg"], indirect=True)


@every_kind
def test_indexes_and_checks_are_in_the_catalogue(database, kind):
    """`create_all` makes the four indexes with their predicates, and both checks."""
    model = kind.make()
    database.create(model.__table__.metadata)
    assert_furnished(database, model)


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(kind, marks=pytest.mark.smoke if str(kind) == "plain" else ())
        for kind in kinds.KINDS
    ],
    ids=str,
)
@two_drivers
async def test_tasks_lead_a_life(twin, kind):
    """Enqueue, claim, heartbeat, complete and the refusal after a loss work on the class."""
    model = kind.make()
    twin.create(model.__table__.metadata)
    await lead_a_life(twin, model, values=kind.values)


@every_kind
@two_drivers
async def test_a_constructed_task_can_be_claimed(twin, kind):
    """`session.add(Task(…))` needs the host's fields only, and makes a queued task."""
    model = kind.make()
    twin.create(model.__table__.metadata)
    async with twin.begin() as session:
        session.raw.add(model(**kind.values))
        await session.flush()
    async with twin.begin() as session:
        [claim] = await twin.queue(model).claim(session, holder="w1", limit=5)
        assert (claim.name, claim.payload, claim.attempt, claim.max_attempts) == ("", None, 1, 20)
        assert await twin.queue(model).complete(session, claim)


@two_drivers
async def test_annotations_that_are_evaluated_at_once(twin):
    """A host without `from __future__ import annotations` is a host like any other."""
    twin.create(eager_annotations.Base.metadata)
    assert_furnished(twin.database, eager_annotations.Task)
    queue = await lead_a_life(twin, eager_annotations.Task)
    async with twin.begin() as session:
        events = await queue.history(session, key="k0")
    assert {type(event) for event in events} == {eager_annotations.TaskEvent}


# --- Dataclasses -------------------------------------------------------------------------------


@every_dataclass
def test_a_dataclass_takes_the_hosts_fields_only(kind):
    """None of our columns is an argument of a dataclass's constructor, or a field of it."""
    model = kind.make()
    assert set(inspect.signature(model).parameters) == {"title", "note"}
    assert set(model.__dataclass_fields__) == {"title", "note"}
    with pytest.raises(TypeError, match="queue"):
        model(title="t", queue="q")


@every_dataclass
def test_columns_of_a_new_dataclass_entity_are_readable(kind):
    """Before the flush our attributes are None, as on any new entity."""
    task = kind.make()(title="t")
    assert (task.id, task.state, task.payload, task.note) == (None, None, None, None)


@pytest.mark.parametrize(
    "kind", [kind for kind in DATACLASSES if str(kind) != "dataclass_class"], ids=str
)
@two_drivers
async def test_tasks_that_are_equal_stay_apart(twin, kind):
    """Entities equal by the host's `__eq__`, and without a hash, are claimed in one batch."""
    model = kind.make()
    twin.create(model.__table__.metadata)
    queue = twin.queue(model)
    async with twin.begin() as session:
        for _ in range(3):
            await queue.enqueue(session, values=kind.values)
    async with twin.begin() as session:
        claims = await queue.claim(session, holder="w1", limit=3)
        tasks = [claim.task for claim in claims]
        assert tasks[0] == tasks[1] == tasks[2]
        assert model.__hash__ is None
        assert len({id(task) for task in tasks}) == len({claim.id for claim in claims}) == 3
        assert [task.id for task in tasks] == [claim.id for claim in claims]
        assert len(await queue.find(session, limit=3)) == 3


# --- Tables of the host's own ------------------------------------------------------------------


def test_a_reflected_table_keeps_its_indexes(database):
    """A class on a table that was reflected has each index and check once."""
    database.create(kinds.plain().__table__.metadata)

    class Base(DeclarativeBase):
        pass

    class Task(TaskMixin, Base):
        __table__ = Table("tasks", Base.metadata, autoload_with=database._ddl)

    for found in (Task.__table__.indexes, Task.__table__.constraints):
        names = [one.name for one in found]
        assert sorted(names) == sorted(set(names))
    assert {index.name for index in Task.__table__.indexes} == set(indexes(database, "tasks"))
    with Session(database._ddl) as session:
        assert Queue(Task).enqueue(session, "work", id=uuid7())
        assert session.scalars(select(Task.name)).all() == ["work"]


def test_mappers_are_not_configured_early():
    """Making a task class and its queue configures no mapper: other classes may come later."""

    class Base(DeclarativeBase):
        pass

    task = type("Task", (UuidId, TaskMixin, Base), {"__tablename__": "tasks"})
    Queue(task)
    assert not task.__mapper__.configured
    configure_mappers()
