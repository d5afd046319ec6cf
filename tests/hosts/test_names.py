"""Names in the database: unique and short under every naming convention and table name (B37)."""

from __future__ import annotations

import pytest
from sqlalchemy import CheckConstraint, ForeignKey, Index, MetaData, UniqueConstraint
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from sqla_taskqueue import BigIntId, BoardMixin, Queue, TaskEventMixin, TaskMixin, UuidId
from tests.hosts.catalogue import assert_furnished, constraints, indexes, objects
from tests.hosts.life import lead_a_life

CONVENTIONS = {
    "none": None,
    "classic": {
        "ix": "ix_%(column_0_label)s",
        "uq": "uq_%(table_name)s_%(column_0_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s_%(referred_table_name)s",
        "pk": "pk_%(table_name)s",
    },
    "postgresql": {
        "ix": "%(column_0_N_label)s_idx",
        "uq": "%(table_name)s_%(column_0_N_name)s_key",
        "ck": "%(table_name)s_%(constraint_name)s_check",
        "fk": "%(table_name)s_%(column_0_N_name)s_fkey",
        "pk": "%(table_name)s_pkey",
    },
    "columns": {"ck": "ck_%(table_name)s_%(column_0_name)s", "ix": "ix_%(table_name)s"},
    "one for all": {"ck": "ck_%(constraint_name)s", "ix": "ix_%(column_0_name)s"},
}

# PostgreSQL allows 63 bytes, and SQLAlchemy 63 characters.
TABLES = {
    "short": "tasks",
    "60 characters": "a" * 60,
    "63 bytes": "table_" + "x" * 57,
    "two bytes each": "ä" * 28,
    "three bytes each": "任" * 18,
    "four bytes each": "🦉" * 14,
    "quoted": 'My "tasks" %(and)s more. $1',
}


def host(convention, table):
    """Map a task class with history, a board of a similar name, and a table of the host's."""

    class Base(DeclarativeBase):
        metadata = MetaData(naming_convention=convention)

    class Owner(Base):
        __tablename__ = "owners"

        id: Mapped[int] = mapped_column(primary_key=True)

    class Task(UuidId, TaskMixin, Base):
        __tablename__ = table
        __scope__ = ("owner_id",)
        __table_args__ = (
            Index(None, "created_by"),
            UniqueConstraint("label", "owner_id"),
            CheckConstraint("label <> ''", name="not_empty"),
        )

        owner_id: Mapped[int] = mapped_column(ForeignKey(Owner.id))
        label: Mapped[str | None]

    class Event(TaskEventMixin, Base):
        __tablename__ = f"e{table[1:]}"
        __task_model__ = Task

    class Board(BigIntId, BoardMixin, TaskMixin, Base):
        __tablename__ = f"{table[:-1]}_"

    Base.Task, Base.Event, Base.Board = Task, Event, Board
    return Base


@pytest.mark.parametrize("table", TABLES.values(), ids=TABLES.keys())
@pytest.mark.parametrize("convention", CONVENTIONS.values(), ids=CONVENTIONS.keys())
def test_names_are_unique_and_short(database, engine, convention, table):
    """Two task classes and their history are created, whatever the convention makes of names."""
    base = host(convention, table)
    base.metadata.create_all(engine)
    unique = [
        name for name, kind in constraints(database, table, kind="u").items() if "label" in kind
    ]
    [own] = [name for name, index in indexes(database, table).items() if not _ours(index)]
    assert_furnished(database, base.Task, besides=(own, *unique), scope=("owner_id",))
    assert_furnished(database, base.Board)
    assert len(constraints(database, table)) == 3
    base.metadata.drop_all(engine)
    assert objects(database) == []


def _ours(index):
    return index.is_unique or index.predicate is not None


def test_an_explicit_name_is_the_same_under_every_convention():
    """Our index names depend on the table's name only: migrations can state them."""
    names = {
        frozenset(index.name for index in host(convention, "tasks").Board.__table__.indexes)
        for convention in CONVENTIONS.values()
    }
    assert len(names) == 1
    [found] = names
    assert {name.removeprefix("ix_task__") for name in found} >= {"claim", "key", "lease"}


@pytest.mark.parametrize(
    "tables",
    [("jobs", "jobs_unique"), ("jobs", "jobs_key"), ("a" * 62, "a" * 63), ("t", "T")],
    ids=["unique", "key", "long", "case"],
)
def test_similar_tables_coexist(engine, tables):
    """No two tables get indexes of one name, however much their own names resemble each other."""

    class Base(DeclarativeBase):
        pass

    for number, name in enumerate(tables):
        type(f"Task{number}", (UuidId, TaskMixin, Base), {"__tablename__": name})
    Base.metadata.create_all(engine)
    found = [index.name for table in Base.metadata.tables.values() for index in table.indexes]
    assert len(set(found)) == len(found) == 8


@pytest.mark.smoke
@pytest.mark.parametrize("driver", ["psycopg", "asyncpg"], indirect=True)
async def test_two_classes_and_several_queues_live_side_by_side(twin):
    """Queues of one class and classes of one metadata see nothing of each other's tasks."""
    base = host(CONVENTIONS["classic"], "a" * 60)
    twin.create(base.metadata)
    twin.sql("INSERT INTO owners (id) VALUES (1), (2)")
    for owner in (1, 2):
        for name in ("first", "second"):
            twin.sql("UPDATE " + "a" * 60 + " SET key = NULL")
            await lead_a_life(twin, base.Task, scope={"owner_id": owner}, name=name)
    await lead_a_life(twin, base.Board)
    assert twin.sql(
        "SELECT owner_id, queue, count(*) FROM " + "a" * 60 + " GROUP BY 1, 2 ORDER BY 1, 2"
    ) == [(1, "first", 2), (1, "second", 2), (2, "first", 2), (2, "second", 2)]
    assert twin.scalar(f"SELECT count(*) FROM {'a' * 59}_") == 2


@pytest.mark.parametrize("table", TABLES.values(), ids=TABLES.keys())
def test_tasks_live_in_tables_of_any_name(engine, table):
    """Enqueue, which also names the channel after the table, and claim work on any table."""
    base = host(None, table)
    base.metadata.create_all(engine)
    queue = Queue(base.Board)
    with Session(engine) as session, session.begin():
        sent = queue.enqueue(session, "work", key="a")
        [claim] = queue.claim(session, holder="w1")
        assert claim.id == sent.id
        assert queue.complete(session, claim)
