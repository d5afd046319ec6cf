"""Hosts whose framework makes the base class, the session or the commit."""

from __future__ import annotations

import functools
import warnings
from collections import Counter
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
import sqlalchemy
from sqlalchemy import Text, event
from sqlalchemy.orm import (
    DeclarativeBase,
    DeclarativeBaseNoMeta,
    Mapped,
    MappedAsDataclass,
    mapped_column,
    relationship,
    scoped_session,
    sessionmaker,
)
from sqlalchemy.pool import NullPool

from sqla_taskqueue import (
    EnqueueConflict,
    Queue,
    TaskEventMixin,
    TaskMixin,
    TaskSpec,
    UnsupportedModel,
    UuidId,
)
from tests.hosts import kinds
from tests.hosts.catalogue import assert_furnished
from tests.hosts.life import lead_a_life
from tests.servers import DRIVERS
from tests.twin import QueueAdapter, SessionAdapter

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

one_driver = pytest.mark.parametrize("driver", ["psycopg"], indirect=True)
two_drivers = pytest.mark.parametrize("driver", ["psycopg", "asyncpg"], indirect=True)


class Framework(NamedTuple):
    """A host whose framework makes and ends its sessions: what `lead_a_life` needs of a twin.

    Attributes:
        open: Returns the session, whether new or the one at hand.
        commit: Commits it the framework's way.
        abort: Rolls it back the framework's way.
    """

    open: Callable[[], Any]
    commit: Callable[[], Any]
    abort: Callable[[], Any]

    def queue(self, model: Any, name: str = "default") -> Any:
        """Return an awaitable queue."""
        return QueueAdapter(Queue(model, name))

    @asynccontextmanager
    async def begin(self) -> AsyncIterator[Any]:
        """Yield the session; commit at the end, or roll back on an error."""
        try:
            yield SessionAdapter(self.open())
        except BaseException:
            self.abort()
            raise
        self.commit()

    session = begin


def commits(session: Any) -> Counter[str]:
    """Count what a session, or all of a factory's, announces from now on."""
    seen: Counter[str] = Counter()
    for name in ("before_commit", "after_commit", "after_rollback"):
        event.listen(session, name, lambda *_, name=name: seen.update([name]))
    return seen


ONE_COMMIT = {"before_commit": 1, "after_commit": 1}


# --- Flask-SQLAlchemy --------------------------------------------------------------------------


FLASK_BASES = {
    "its own base": (),
    "DeclarativeBase": (DeclarativeBase,),
    "DeclarativeBaseNoMeta": (DeclarativeBaseNoMeta,),
    "dataclasses": (DeclarativeBase, MappedAsDataclass),
}


@pytest.fixture(params=FLASK_BASES)
def flask_db(request, twin):
    """Flask-SQLAlchemy in an application with a second database, which holds the tasks."""
    flask = pytest.importorskip("flask")
    extension = pytest.importorskip("flask_sqlalchemy")
    if request.param == "dataclasses" and not sqlalchemy.__version__.startswith("2.0."):
        pytest.skip("Flask-SQLAlchemy makes dataclasses twice, which SQLAlchemy 2.1 refuses")
    bases = FLASK_BASES[request.param]
    options = {"model_class": type("Base", bases, {})} if bases else {}
    url = DRIVERS[0].url(twin.database.url)
    app = flask.Flask(__name__)
    app.config["SQLALCHEMY_DATABASE_URI"] = url
    # As good as a second database: neither sees the other's tables.
    elsewhere = {"url": url, "connect_args": {"options": "-csearch_path=elsewhere"}}
    app.config["SQLALCHEMY_BINDS"] = {"jobs": elsewhere}
    app.config["SQLALCHEMY_ENGINE_OPTIONS"] = {"poolclass": NullPool}
    db = extension.SQLAlchemy(app, **options)
    twin.database.reset()
    twin.sql("CREATE SCHEMA elsewhere")
    with app.app_context():
        yield db
        db.session.remove()
        for engine in db.engines.values():
            engine.dispose()


def flask_models(db):
    """Map classes without naming their tables: one in the first database, two in the second."""

    class User(db.Model):
        id: Mapped[int] = mapped_column(primary_key=True)

    class PrintJob(UuidId, TaskMixin, db.Model):
        __bind_key__ = "jobs"

        copies: Mapped[int] = mapped_column(default=1)
        events = relationship("PrintJobEvent", viewonly=True)

    class PrintJobEvent(TaskEventMixin, db.Model):
        __bind_key__ = "jobs"
        __task_model__ = PrintJob

    db.create_all()
    return User, PrintJob, PrintJobEvent


@one_driver
async def test_flask_sqlalchemy(twin, flask_db):
    """Tasks in a bind of their own live in `db.session`, beside rows of another bind."""
    user, job, _ = flask_models(flask_db)
    assert_furnished(twin.database, job, "elsewhere")
    session = flask_db.session
    host = Framework(lambda: session, session.commit, session.rollback)
    queue = await lead_a_life(host, job, values={"copies": 2})
    assert twin.sql("SELECT key, state, copies FROM elsewhere.print_job ORDER BY 1") == [
        ("k0", "done", 2),
        ("k1", "cancelled", 2),
    ]
    assert twin.scalar("SELECT count(*) FROM elsewhere.print_job_event") == 10
    task = flask_db.session.get(job, (await queue.get(session, key="k0")).id)
    assert len(task.events) == 3
    # In one session with another bind's rows, and with the batch forms.
    flask_db.session.add(user(id=1))
    await queue.enqueue_many(session, [TaskSpec("a"), TaskSpec("b")])
    await queue.complete_many(session, await queue.claim(session, holder="w1", limit=2))
    flask_db.session.commit()
    assert twin.scalar("SELECT count(*) FROM elsewhere.print_job WHERE state = 'done'") == 3
    assert twin.scalar('SELECT count(*) FROM public."user"') == 1


@one_driver
async def test_one_enqueue_of_flask_sqlalchemy_commits_once(twin, flask_db):
    """Listeners on `db.session` hear one commit for one, also after a conflict's savepoint."""
    _, job, _ = flask_models(flask_db)
    session = flask_db.session
    queue = Queue(job)
    seen = commits(session)
    sent = queue.enqueue(session)
    assert seen == {}
    session.commit()
    assert seen == ONE_COMMIT
    assert twin.sql("SELECT id FROM elsewhere.print_job") == [(sent.id,)]
    twin.sql("CREATE UNIQUE INDEX one_each ON elsewhere.print_job (copies)")
    seen.clear()
    queue.claim(session, holder="w1")
    with pytest.raises(EnqueueConflict):
        queue.enqueue(session)
    session.commit()
    assert seen == ONE_COMMIT
    assert twin.sql("SELECT id, state FROM elsewhere.print_job") == [(sent.id, "claimed")]


@one_driver
def test_an_event_class_that_flask_sqlalchemy_makes_without_its_key(twin, flask_db):
    """The base first, its own making of tables wins over the mixin's: complete, or refused."""
    _, job, _ = flask_models(flask_db)
    job.__table__.info.clear()  # its first event class
    namespace = {"__tablename__": "log", "__task_model__": job, "__bind_key__": "jobs"}
    try:
        log = type("JobLog", (flask_db.Model, TaskEventMixin), namespace)
    except UnsupportedModel as error:
        assert "JobLog lacks task_id" in str(error)  # noqa: PT017 - half a table is wrong
        assert Queue(job).model is job
    else:
        assert "task_id" in log.__table__.primary_key


# --- zope.sqlalchemy ---------------------------------------------------------------------------


class Base(DeclarativeBase):
    pass


class Task(UuidId, TaskMixin, Base):
    __tablename__ = "tasks"


class Logged(UuidId, TaskMixin, Base):
    __tablename__ = "logged"


class LoggedEvent(TaskEventMixin, Base):
    __tablename__ = "logged_events"
    __task_model__ = Logged


@pytest.fixture(params=["scoped_session", "sessionmaker", "on a connection", "two-phase"])
def pyramid(request, twin):
    """Sessions that join the transaction manager's transaction, in the ways there are."""
    zope = pytest.importorskip("zope.sqlalchemy")
    manager = pytest.importorskip("transaction").TransactionManager(explicit=False)
    twin.create(Base.metadata)
    options = {"twophase": True} if request.param == "two-phase" else {}
    bind = twin.engine.connect() if request.param == "on a connection" else twin.engine
    factory = sessionmaker(bind, **options)
    opened = factory
    if request.param == "scoped_session":
        factory = opened = scoped_session(factory)
    zope.register(factory, transaction_manager=manager)
    yield Framework(opened, manager.commit, manager.abort)
    manager.abort()
    if bind is not twin.engine:
        bind.close()


@pytest.mark.parametrize("model", [Task, Logged])
@one_driver
async def test_zope_sqlalchemy(twin, pyramid, model):
    """Every step survives the transaction manager's commit; it alone commits or aborts."""
    await lead_a_life(pyramid, model)
    assert twin.sql(f"SELECT key, state FROM {model.__tablename__} ORDER BY 1") == [
        ("k0", "done"),
        ("k1", "cancelled"),
    ]
    async with pyramid.begin() as session:
        with pytest.raises(AssertionError, match="using the transaction manager"):
            session.raw.commit()
        session.raw.rollback()


@pytest.mark.parametrize("model", [Task, Logged])
@one_driver
async def test_zope_sqlalchemy_sees_every_write(twin, pyramid, model):
    """Each operation, alone in its transaction, is marked as a change: nothing is rolled back."""
    queue = pyramid.queue(model)
    written = f"SELECT md5(string_agg(t::text, '|' ORDER BY t::text)) FROM {model.__tablename__} t"

    async def kept(operation: str, *args: Any, **options: Any) -> Any:
        before = twin.scalar(written)
        async with pyramid.begin() as session:
            answer = await getattr(queue, operation)(session, *args, **options)
        assert answer, operation
        assert twin.scalar(written) != before, f"{operation} was rolled back"
        return answer

    await kept("enqueue", key="a")
    await kept("enqueue_many", [TaskSpec(key=key) for key in "bcdef"])
    a, b, c, d, e = await kept("claim", holder="w1", limit=5)
    await kept("heartbeat", a)
    await kept("heartbeat_many", [b, c])
    await kept("complete", a)
    await kept("complete_many", [b])
    await kept("fail", c, final=True)
    await kept("fail_many", [d], errors=["no"])
    await kept("release", e)
    e = await kept("claim_task", id=e.id, holder="w1")
    await kept("snooze", e, delay=timedelta(0))
    await kept("cancel", key="f")
    await kept("retry", key="f")
    await kept("claim_task", key="f", holder="w1")
    await kept("reclaim", stale_after=timedelta(0))
    await kept("prune", older_than=timedelta(0))


@one_driver
async def test_one_enqueue_of_zope_sqlalchemy_commits_once(twin, pyramid):
    """The host's listeners hear one commit; a conflict's savepoint asks for none of its own."""
    queue = pyramid.queue(Task)
    twin.sql("CREATE UNIQUE INDEX one_each ON tasks (name)")
    async with pyramid.begin() as session:
        inner = session.raw() if isinstance(session.raw, scoped_session) else session.raw
        seen = commits(inner)
        sent = await queue.enqueue(session)
        with pytest.raises(EnqueueConflict):
            await queue.enqueue(session)
        assert seen == {}
    assert seen == ONE_COMMIT
    assert twin.sql("SELECT id FROM tasks") == [(sent.id,)]


# --- SQLModel ----------------------------------------------------------------------------------


@pytest.fixture
def tables(twin):
    """A host with nothing but SQLModel tables, created, with a team."""
    pytest.importorskip("sqlmodel")
    from tests.hosts import sqlmodel_tables

    twin.create(sqlmodel_tables.Base.metadata)
    twin.sql("INSERT INTO team (id) VALUES (7)")
    return sqlmodel_tables


@one_driver
async def test_sqlmodel(twin, tables):
    """Tables of SQLModel carry a board and its history; fields and relationships are the host's."""
    assert_furnished(twin.database, tables.Ticket, scope=("team_id",))
    assert set(tables.Ticket.model_fields) == {"team_id", "copies"}
    sqlmodel = pytest.importorskip("sqlmodel")
    session = sqlmodel.Session(twin.engine)
    host = Framework(lambda: session, session.commit, session.rollback)
    values = {"copies": 2, "title": "T", "meta": {"a": [1]}}
    queue = await lead_a_life(host, tables.Ticket, scope={"team_id": 7}, values=values)
    task = session.exec(sqlmodel.select(tables.Ticket).filter_by(key="k0")).one()
    assert (task.team.id, task.copies, task.title, task.meta) == (7, 2, "T", {"a": [1]})
    assert [one.type for one in task.events] == ["created", "claimed", "renewed", "completed"]
    assert {one.source for one in task.events} == {"app"}
    assert (await queue.enqueue(session, key="defaults")).created
    session.close()
    assert twin.sql("SELECT key, state FROM ticket ORDER BY 1") == [
        ("k0", "done"),
        ("k1", "cancelled"),
    ]


@one_driver
async def test_what_sqlmodel_tables_cannot_do(twin, tables):
    """Pydantic knows the host's fields only: others are ignored by it, or cannot be assigned."""
    task = tables.Ticket(team_id=7, name="ignored", queue="ignored")
    assert set(task.model_dump()) == {"team_id", "copies"}
    with pytest.raises(ValueError, match="no field"):
        tables.Ticket(team_id=7).name = "refused"
    async with twin.begin() as session:
        session.raw.add(task)
    assert twin.sql("SELECT queue, name, state, copies FROM ticket") == [
        ("default", "", "queued", 1)
    ]


@one_driver
async def test_a_declarative_class_on_the_registry_of_sqlmodel(twin):
    """A class beside SQLModel's tables is an ordinary one, related to them by their names."""
    model = kinds.sqlmodel_registry()
    twin.create(model.__table__.metadata)
    queue = twin.queue(model, "by hand")
    async with twin.begin() as session:
        session.raw.add(model.Team(id=7))
        session.raw.add(model(name="made", queue="by hand", payload={"a": 1}, team_id=7))
    async with twin.begin() as session:
        [claim] = await queue.claim(session, holder="w1")
        assert (claim.name, claim.payload, claim.task.team.id) == ("made", {"a": 1}, 7)


# --- advanced-alchemy --------------------------------------------------------------------------


def alchemy():
    """Import advanced-alchemy, which still uses what SQLAlchemy 2.1 calls superfluous."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The declarative_mixin decorator")
        return pytest.importorskip("advanced_alchemy.base"), pytest.importorskip(
            "advanced_alchemy.config"
        )


@functools.cache
def alchemy_models(name, order):
    """Map a task class and its history on one of the audit bases, in either order of bases."""
    base = getattr(alchemy()[0], name)
    bases = (TaskMixin, base) if order == "mixin first" else (base, TaskMixin)
    own_metadata = {"__bind_key__": f"{name} {order}"}
    called = f"{name}{order.title().replace(' ', '')}"  # they all share one registry
    note = mapped_column(Text, default="none")
    task = type(f"{called}Task", bases, {**own_metadata, "__tablename__": "tasks", "note": note})
    named = {**own_metadata, "__tablename__": "task_events", "__task_model__": task}
    return task, type(f"{called}Event", (TaskEventMixin, base), named)


class Alchemy(NamedTuple):
    """Sessions of advanced-alchemy's configuration: what `lead_a_life` needs of a twin."""

    twin: Any
    config: Any

    @property
    def queue(self) -> Any:
        """Make a queue."""
        return self.twin.queue

    @asynccontextmanager
    async def begin(self) -> AsyncIterator[Any]:
        """Yield a session of the configuration, committed at the end as its handlers do."""
        if self.twin.is_async:
            async with self.config.get_session() as session:
                yield session
                await session.commit()
        else:
            with self.config.get_session() as session:
                yield SessionAdapter(session)
                session.commit()

    session = begin


@pytest.mark.filterwarnings("ignore:Call to deprecated function 'set_async_context'")
@pytest.mark.parametrize("order", ["mixin first", "base first"])
@pytest.mark.parametrize("base", ["UUIDv7AuditBase", "BigIntAuditBase", "IdentityAuditBase"])
@two_drivers
async def test_advanced_alchemy(twin, base, order):
    """Its keys, sentinel and audit columns are the host's, and its engines carry its own JSON."""
    _, configs = alchemy()
    task, _ = alchemy_models(base, order)
    twin.create(task.metadata)
    assert_furnished(twin.database, task)
    kind = configs.SQLAlchemyAsyncConfig if twin.is_async else configs.SQLAlchemySyncConfig
    url = twin.driver.url(twin.database.url).render_as_string(hide_password=False)
    host = Alchemy(twin, kind(connection_string=url))
    try:
        queue = await lead_a_life(host, task)
        async with host.begin() as session:
            sync = session.sync_session
            seen = commits(sync)
            sent = await queue.enqueue_many(session, [TaskSpec("a", {"n": 1}), TaskSpec("b")])
            assert all(one.created for one in sent)
        assert seen == ONE_COMMIT
        async with host.begin() as session:
            assert [one.type for one in await queue.history(session, id=sent[0].id)] == ["created"]
    finally:
        engine = host.config.get_engine()
        await engine.dispose() if twin.is_async else engine.dispose()
    assert twin.scalar("SELECT count(*) FROM tasks WHERE note = 'none'") == 4
    assert twin.scalar("SELECT count(*) FROM tasks WHERE updated_at < created_at") == 0
    assert twin.scalar("SELECT count(*) FROM task_events") == 12
