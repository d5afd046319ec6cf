"""States are text with a check: no type to create twice, in the wrong schema, or to leave behind."""

from __future__ import annotations

import functools

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import ForeignKey, MetaData, inspect
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from sqla_taskqueue import BigIntId, BoardMixin, TaskEventMixin, TaskMixin, UuidId
from tests.hosts.catalogue import objects
from tests.hosts.life import lead_a_life

two_drivers = pytest.mark.parametrize("driver", ["psycopg", "asyncpg"], indirect=True)
SCHEMAS = [None, "jobs", "My Jobs"]


@functools.cache
def host(schema=None):
    """Map two task classes, each with its events: four tables that know of states."""

    class Base(DeclarativeBase):
        metadata = MetaData(schema=schema)

    class Team(Base):
        __tablename__ = "teams"
        id: Mapped[int] = mapped_column(primary_key=True)

    class Task(BigIntId, TaskMixin, Base):
        __tablename__ = "tasks"

    class Event(TaskEventMixin, Base):
        __tablename__ = "task_events"
        __task_model__ = Task

    class Card(UuidId, BoardMixin, TaskMixin, Base):
        __tablename__ = "cards"
        __scope__ = ("team_id",)
        team_id: Mapped[int] = mapped_column(ForeignKey(Team.id))

    class CardEvent(TaskEventMixin, Base):
        __tablename__ = "card_events"
        __task_model__ = Card

    Base.Task, Base.Event, Base.Card, Base.CardEvent = Task, Event, Card, CardEvent  # keeps them
    return Base


async def in_schema(twin, schema, function, translated=False):
    """Run a function of a connection, in one transaction; perhaps with the schema translated."""
    options = {"schema_translate_map": {"tenant": schema}} if translated else {}
    async with twin.begin_connection() as connection:
        if options:
            await connection.execution_options(**options)
        return await connection.run_sync(function)


def ours(twin):
    """Return what there is, except the table and row types that tables bring with them."""
    return sorted(objects(twin.database))


def types_of_our_own(twin):
    """Return the enums, domains and other types that are not the row type of a table."""
    return twin.sql(
        "SELECT t.typname FROM pg_type AS t JOIN pg_namespace AS n ON n.oid = t.typnamespace"
        " LEFT JOIN pg_class AS c ON c.oid = t.typrelid"
        " WHERE n.nspname <> 'information_schema' AND n.nspname NOT LIKE 'pg\\_%'"
        " AND t.typelem = 0 AND c.oid IS NULL"
    )


def differences(metadata, schema):
    """Return what autogenerate would put into a migration."""

    def compare(connection):
        context = MigrationContext.configure(
            connection,
            opts={
                "include_schemas": True,
                "include_name": lambda name, kind, _: kind != "schema" or name == schema,
                "compare_type": True,
                "compare_server_default": True,
            },
        )
        return compare_metadata(context, metadata)

    return compare


@pytest.mark.parametrize("schema", SCHEMAS)
@two_drivers
async def test_tables_come_and_go_without_a_trace(twin, schema):
    """Up, down, up again and once more: every step works, and down leaves nothing (B35)."""
    base = host(schema)
    twin.database.reset()
    if schema:
        twin.sql(f'CREATE SCHEMA "{schema}"')
    before = ours(twin)
    await in_schema(twin, schema, base.metadata.create_all)
    up = ours(twin)
    assert ("r", "tasks") in up
    assert types_of_our_own(twin) == []
    await in_schema(twin, schema, base.metadata.create_all)  # looks first, and finds all of it
    assert ours(twin) == up
    await in_schema(twin, schema, base.metadata.drop_all)
    assert ours(twin) == before
    await in_schema(twin, schema, base.metadata.create_all)
    assert ours(twin) == up
    assert await in_schema(twin, schema, differences(base.metadata, schema)) == []
    await lead_a_life(twin, base.Task)


@two_drivers
async def test_two_schemas_do_not_disturb_each_other(twin):
    """One mapping in two translated schemas: dropping the first leaves the second whole (B35)."""
    base = host("tenant")
    twin.database.reset()
    twin.sql('CREATE SCHEMA jobs; CREATE SCHEMA "My Jobs"')
    for schema in ("jobs", "My Jobs"):
        await in_schema(twin, schema, base.metadata.create_all, translated=True)
    await in_schema(twin, "jobs", base.metadata.drop_all, translated=True)

    def tables(schema):
        return lambda connection: sorted(inspect(connection).get_table_names(schema=schema))

    assert await in_schema(twin, "jobs", tables("jobs")) == []
    kept = ["card_events", "cards", "task_events", "tasks", "teams"]
    assert await in_schema(twin, "jobs", tables("My Jobs")) == kept
    assert types_of_our_own(twin) == []
    await in_schema(twin, "jobs", base.metadata.create_all, translated=True)
    for schema in ("jobs", "My Jobs"):
        engine = twin.engine.execution_options(schema_translate_map={"tenant": schema})
        async with twin.begin(engine) as session:
            assert (await twin.queue(base.Task).enqueue(session, schema)).created
        assert twin.sql(f'SELECT name FROM "{schema}".tasks') == [(schema,)]
