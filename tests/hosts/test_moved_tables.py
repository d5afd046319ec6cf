"""Tables that change their schema after mapping, or are copied; classes that share a name."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import ForeignKey, Integer, MetaData
from sqlalchemy.orm import DeclarativeBase, mapped_column, relationship

from sqla_taskqueue import TaskEventMixin, TaskMixin, TaskSpec, UuidId
from tests.hosts.catalogue import assert_furnished
from tests.hosts.life import lead_a_life

two_drivers = pytest.mark.parametrize("driver", ["psycopg", "asyncpg"], indirect=True)


def host() -> Any:
    """Map a task class with history, without a schema."""

    class Base(DeclarativeBase):
        pass

    class Task(UuidId, TaskMixin, Base):
        __tablename__ = "tasks"

    class TaskEvent(TaskEventMixin, Base):
        __tablename__ = "task_events"
        __task_model__ = Task

    Base.Task, Base.TaskEvent = Task, TaskEvent  # keeps them
    return Base


def move(base: Any, schema: str | None) -> None:
    """Set the schema of every table, as some hosts do around `create_all`."""
    for table in base.metadata.tables.values():
        table.schema = schema


async def create(twin: Any, base: Any) -> None:
    """Create the tables in the schemas that they have now."""
    async with twin.begin_connection() as connection:
        await connection.run_sync(base.metadata.create_all)


async def write_everything(twin: Any, queue: Any, bind: Any) -> None:
    """Use single, batch and reading statements, all of which name a table."""
    async with twin.begin(bind) as session:
        await queue.enqueue_many(session, [TaskSpec(), TaskSpec()])
        claims = await queue.claim(session, holder="w1", limit=2)
        assert len(claims) == 2
        assert await queue.heartbeat_many(session, claims)
        assert await queue.complete_many(session, claims[:1])
        assert await queue.fail(session, claims[1], final=True, error="no")
        assert len(await queue.history(session, id=claims[1].id)) == 3
        assert (await queue.stats(session)).ended == 2


@two_drivers
async def test_a_schema_for_each_tenant(twin):
    """Schemas set for `create_all` alone, and translated at work, keep tenants apart."""
    base = host()
    twin.database.reset()
    queue = twin.queue(base.Task)
    for schema in ("one", "two"):
        twin.sql(f"CREATE SCHEMA {schema}")
        move(base, schema)
        await create(twin, base)
        move(base, None)
        assert_furnished(twin.database, base.Task, schema)
        tenant = twin.engine.execution_options(schema_translate_map={None: schema})
        await write_everything(twin, queue, tenant)
        assert twin.scalar(f"SELECT count(*) FROM {schema}.tasks") == 2
        assert twin.scalar(f"SELECT count(*) FROM {schema}.task_events") == 6


@two_drivers
async def test_a_schema_that_is_set_late(twin):
    """A queue that nothing has used yet takes the schema of its tables by then; the channel stays."""
    base = host()
    twin.database.reset()
    twin.sql("CREATE SCHEMA late")
    queue = twin.queue(base.Task)
    move(base, "late")
    await create(twin, base)
    async with twin.listening("sqla_taskqueue:tasks") as listener:
        await write_everything(twin, queue, None)
        await lead_a_life(twin, base.Task)
        heard = {notification.payload for notification in await listener.so_far()}
    assert heard == {"default", "life"}
    assert twin.scalar("SELECT count(*) FROM late.tasks") == 4


def test_a_table_that_is_copied(database):
    """`to_metadata` takes indexes with their predicates and checks along, into another schema."""
    base, copies = host(), MetaData()
    for table in base.metadata.sorted_tables:
        table.to_metadata(copies, schema="copies")
    database.create(base.metadata, copies)
    for schema in ("public", "copies"):
        assert_furnished(database, base.Task, schema)
    copied = SimpleNamespace(__table__=copies.tables["copies.tasks"])
    assert_furnished(database, copied, "copies")


# --- Names that exist twice --------------------------------------------------------------------


def classes_called_task(base: Any) -> tuple[Any, Any, Any]:
    """Map the host's own Task, and two task classes with histories, all called Task."""

    class Task(base):
        __tablename__ = "task"
        __module__ = "app.todo"

        id = mapped_column(Integer, primary_key=True)
        jobs = relationship("app.jobs.Task")

    mapped = []
    for module in ("app.jobs", "app.mail"):
        namespace = {
            "__module__": module,
            "__tablename__": module.replace(".", "_"),
            "task_id": mapped_column(ForeignKey(Task.__table__.c.id)),
            "events": relationship(f"{module}.TaskEvent", viewonly=True),
        }
        task = type("Task", (UuidId, TaskMixin, base), namespace)
        names = {"__module__": module, "__tablename__": f"{task.__tablename__}_events"}
        type("TaskEvent", (TaskEventMixin, base), {**names, "__task_model__": task})
        mapped.append(task)
    return Task, *mapped


@two_drivers
async def test_classes_of_one_name(twin):
    """No class is found by its name: three called Task in one registry stay apart."""

    class Base(DeclarativeBase):
        pass

    own, jobs, mail = classes_called_task(Base)
    twin.create(Base.metadata)
    twin.sql("INSERT INTO task (id) VALUES (7)")
    for model in (jobs, mail):
        assert_furnished(twin.database, model)
        queue = await lead_a_life(twin, model, values={"task_id": 7})
        async with twin.begin() as session:
            await queue.enqueue(session, key="more")
            [claim] = await queue.claim(session, holder="w1")
            assert type(claim.task) is model
            await session.refresh(claim.task, ["events"])
            assert {type(event).__module__ for event in claim.task.events} == {model.__module__}
    async with twin.begin() as session:
        task = await session.get(own, 7)
        await session.refresh(task, ["jobs"])
        assert {type(job) for job in task.jobs} == {jobs}
