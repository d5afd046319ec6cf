"""Tables in schemas: named by the class, by the metadata, or translated at run time."""

from __future__ import annotations

import functools
from datetime import timedelta

import pytest
from sqlalchemy import ForeignKey, MetaData
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, relationship

from sqla_taskqueue import BigIntId, TaskEventMixin, TaskMixin
from tests.hosts.catalogue import assert_furnished, objects
from tests.hosts.life import lead_a_life

SCHEMAS = ["jobs", "My Schema", 'a"b%c.d', "schéma"]

two_drivers = pytest.mark.parametrize("driver", ["psycopg", "asyncpg"], indirect=True)


@functools.cache
def host(by_class=None, by_metadata=None):
    """Map a scoped task class with history, all of it in one schema."""

    class Base(DeclarativeBase):
        metadata = MetaData(schema=by_metadata)

    class Team(Base):
        __tablename__ = "teams"
        __table_args__ = {"schema": by_class} if by_class else ()

        id: Mapped[int] = mapped_column(primary_key=True)

    class Task(BigIntId, TaskMixin, Base):
        __tablename__ = "tasks"
        __table_args__ = {"schema": by_class} if by_class else ()
        __scope__ = ("team_id",)

        team_id: Mapped[int] = mapped_column(ForeignKey(Team.id))
        team: Mapped[Team] = relationship(lazy="joined")

    class Event(TaskEventMixin, Base):
        __tablename__ = "task_events"
        __table_args__ = {"schema": by_class} if by_class else ()
        __task_model__ = Task

    Base.Team, Base.Task, Base.Event = Team, Task, Event  # keeps them
    return Base


async def _live_in(twin, base, schema):
    assert_furnished(twin.database, base.Task, schema, scope=("team_id",))
    twin.sql(f'INSERT INTO "{schema}".teams (id) VALUES (7)'.replace('a"b', 'a""b'))
    queue = await lead_a_life(twin, base.Task, scope={"team_id": 7})
    async with twin.begin() as session:
        types = [event.type for event in await queue.history(session, key="k0")]
    assert types == ["created", "claimed", "completed"]


@pytest.mark.parametrize("schema", SCHEMAS)
@two_drivers
async def test_a_schema_that_the_class_names(twin, schema):
    """Indexes, foreign keys and every statement follow the schema in `__table_args__`."""
    base = host(by_class=schema)
    twin.database.reset()
    twin.sql('CREATE SCHEMA "{}"'.format(schema.replace('"', '""')))
    await _create(twin, base)
    await _live_in(twin, base, schema)


@pytest.mark.parametrize("schema", SCHEMAS)
@two_drivers
async def test_a_schema_that_the_metadata_names(twin, schema):
    """`MetaData(schema=…)` works like a schema that each class names."""
    base = host(by_metadata=schema)
    twin.database.reset()
    twin.sql('CREATE SCHEMA "{}"'.format(schema.replace('"', '""')))
    await _create(twin, base)
    await _live_in(twin, base, schema)


async def _create(twin, base, **translate):
    async with twin.begin_connection() as connection:
        await connection.execution_options(schema_translate_map=translate or {None: None})
        await connection.run_sync(base.metadata.create_all)


@pytest.mark.parametrize("where", ["engine", "session", "connection"])
@two_drivers
async def test_schemas_that_are_translated(twin, where):
    """One mapping serves many schemas, whether engine, connection or transaction translates."""
    base = host(by_metadata="tenant")
    twin.database.reset()
    twin.sql("CREATE SCHEMA first; CREATE SCHEMA second")
    for schema in ("first", "second"):
        await _create(twin, base, tenant=schema)
        assert_furnished(twin.database, base.Task, schema, scope=("team_id",))
        twin.sql(f"INSERT INTO {schema}.teams (id) VALUES (7)")
    queue = twin.queue(base.Task).scope(team_id=7)
    for schema, others in (("first", 0), ("second", 1), ("first", 1)):
        translate = {"schema_translate_map": {"tenant": schema}}
        engine = twin.engine.execution_options(**translate)

        if where == "engine":
            async with twin.begin(engine) as session:
                await _translated(queue, session, schema)
        elif where == "session":
            async with twin.begin() as session:
                await session.connection(execution_options=translate)
                await _translated(queue, session, schema)
        else:
            async with twin.begin_connection() as connection:
                await connection.execution_options(**translate)
                await _translated(queue, connection, schema)
        other = "second" if schema == "first" else "first"
        assert twin.scalar(f"SELECT count(DISTINCT name) FROM {other}.tasks") == others
    assert ("r", "tasks") in objects(twin.database)


async def _translated(queue, session, schema):
    """Use every statement there is in a translated schema."""
    sent = await queue.enqueue(session, schema, key="a")
    again = await queue.enqueue(session, schema, key="a")
    assert (again.id, again.created) == (sent.id, False)
    await queue.enqueue(session, schema, unique_key="u")
    [claim] = await queue.claim(session, holder="w1", take_expired=True)
    assert (claim.name, claim.task.name) == (schema, schema)
    assert await queue.heartbeat(session, claim)
    assert await queue.release(session, claim)
    claim = await queue.claim_task(session, id=claim.id, holder="w2")
    assert await queue.snooze(session, claim, delay=timedelta(0))
    claim = await queue.claim_task(session, id=claim.id, holder="w2")
    assert await queue.fail(session, claim, error="no", final=True)
    assert await queue.retry(session, id=claim.id)
    assert not await queue.reclaim(session)
    assert await queue.cancel(session, id=claim.id)
    assert (await queue.get(session, id=claim.id)).name == schema
    assert {task.name for task in await queue.find(session)} == {schema}
    assert (await queue.stats(session)).cancelled >= 1
    assert len(await queue.history(session, id=claim.id)) == 9
