"""SQLite, where hosts run their own test suites: tables work, the queue refuses."""

from __future__ import annotations

from datetime import timedelta
from uuid import UUID

import pytest
from sqlalchemy import create_engine, event, inspect, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column
from sqlalchemy.pool import StaticPool

from sqla_taskqueue import (
    BigIntId,
    BoardMixin,
    Queue,
    TaskEventMixin,
    TaskMixin,
    UnsupportedDialect,
    UuidId,
)
from tests.hosts import keys, kinds


class Base(DeclarativeBase):
    pass


class Task(UuidId, TaskMixin, Base):
    __tablename__ = "tasks"
    __scope__ = ("team_id",)

    team_id: Mapped[int] = mapped_column(default=7)


class TaskEvent(TaskEventMixin, Base):
    __tablename__ = "task_events"
    __task_model__ = Task


class Board(BigIntId, BoardMixin, TaskMixin, Base):
    __tablename__ = "board"


@pytest.fixture
def engine():
    """An empty SQLite database in memory."""
    engine = create_engine("sqlite://", poolclass=StaticPool)
    event.listen(engine, "connect", lambda dbapi, _: dbapi.execute("PRAGMA foreign_keys = ON"))
    yield engine
    engine.dispose()


@pytest.fixture
def session(engine):
    """A session on a database with the tables."""
    Base.metadata.create_all(engine)
    with Session(engine) as session:
        yield session


@pytest.mark.parametrize("kind", kinds.KINDS, ids=str)
def test_every_kind_of_class_is_created(engine, kind):
    """`create_all` and `session.add(Task(…))` work for every kind of class; `drop_all` cleans up."""
    model = kind.make()
    model.__table__.metadata.create_all(engine)
    with Session(engine) as session:
        values = {name: value for name, value in kind.values.items() if value is not None}
        session.add(model(**values))
        session.commit()
        assert session.execute(select(model.state, model.queue)).all() == [("queued", "default")]
    assert {index["name"] for index in inspect(engine).get_indexes(model.__table__.name)} == {
        index.name for index in model.__table__.indexes
    }
    model.__table__.metadata.drop_all(engine)
    assert inspect(engine).get_table_names() == []


def test_every_kind_of_key_is_created(engine):
    """`create_all` works whatever key the host has."""
    keys.Base.metadata.create_all(engine)
    assert len(inspect(engine).get_table_names()) == len(keys.Base.metadata.tables)


@pytest.mark.smoke
def test_a_task_is_added(session):
    """A task added to the session is queued, with the server defaults read back."""
    task = Task(name="work", payload={"a": [1, None]}, key="k")
    board = Board(title="T", meta={"tags": []})
    session.add_all([task, board])
    session.commit()
    assert (task.state, task.queue, task.priority, task.attempt) == ("queued", "default", 0, 0)
    assert (task.max_attempts, board.max_attempts) == (20, None)
    assert (task.payload, board.meta, task.result) == ({"a": [1, None]}, {"tags": []}, None)
    assert task.run_at is not None
    session.add(TaskEvent(task_id=task.id, type="created"))
    session.commit()
    session.delete(task)
    session.commit()
    assert session.scalars(select(TaskEvent)).all() == []


@pytest.mark.parametrize(
    "values",
    [
        {"state": "waiting"},
        {"state": "claimed"},
        {"lease_token": UUID(int=1)},
        {"key": "k"},
        {"unique_key": "u"},
    ],
    ids=str,
)
def test_checks_and_unique_indexes_hold(session, values):
    """What PostgreSQL would refuse, SQLite refuses too."""
    session.add(Task(key="k", unique_key="u"))
    session.commit()
    session.add(Task(**values))
    with pytest.raises(IntegrityError):
        session.commit()


def test_a_key_that_ended_is_free(session):
    """The partial unique indexes are partial on SQLite: a unique key is free once a task ended."""
    session.add_all([Task(unique_key="u", state="done"), Task(unique_key="u"), Task(), Task()])
    session.commit()


@pytest.mark.parametrize(
    "operation",
    [
        lambda queue, session: queue.enqueue(session),
        lambda queue, session: queue.enqueue(session, key="k", run_at=None),
        lambda queue, session: queue.claim(session, holder="w1"),
        lambda queue, session: queue.claim_task(session, key="k", holder="w1"),
        lambda queue, session: queue.heartbeat(session, key="k", holder="w1"),
        lambda queue, session: queue.complete(session, key="k", holder="w1"),
        lambda queue, session: queue.complete(session, key="k", force=True),
        lambda queue, session: queue.fail(session, key="k", holder="w1"),
        lambda queue, session: queue.release(session, key="k", holder="w1"),
        lambda queue, session: queue.snooze(
            session, key="k", holder="w1", delay=timedelta(seconds=1)
        ),
        lambda queue, session: queue.cancel(session, key="k"),
        lambda queue, session: queue.retry(session, key="k"),
        lambda queue, session: queue.reclaim(session),
        lambda queue, session: queue.get(session, key="k"),
        lambda queue, session: queue.find(session),
        lambda queue, session: queue.history(session, key="k"),
        lambda queue, session: queue.stats(session),
    ],
)
@pytest.mark.parametrize("through", ["session", "connection"])
def test_the_queue_refuses(session, operation, through):
    """Every operation of the queue says that it needs PostgreSQL and was given sqlite."""
    queue = Queue(Task).scope(team_id=7)
    session.add(Task(key="k"))
    session.commit()
    target = session if through == "session" else session.connection()
    with pytest.raises(UnsupportedDialect, match=r"PostgreSQL .* 'sqlite'") as caught:
        operation(queue, target)
    assert caught.value.dialect == "sqlite"
    # Nothing was sent: the transaction goes on.
    assert session.scalars(select(Task.key)).all() == ["k"]
    session.commit()
