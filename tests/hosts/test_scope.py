"""Scopes, and the host's own columns: foreign keys, defaults, `values=`."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import ForeignKey, String, Text, func, literal, text
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import (
    DeclarativeBase,
    Mapped,
    mapped_column,
    relationship,
    synonym,
)

from sqla_taskqueue import (
    InvalidArgument,
    ScopeMissing,
    TaskEventMixin,
    TaskMixin,
    TaskSpec,
    UuidId,
)
from tests.hosts.catalogue import assert_furnished
from tests.hosts.life import lead_a_life
from tests.hosts.test_keys import no_statements

two_drivers = pytest.mark.parametrize("driver", ["psycopg", "asyncpg"], indirect=True)

COUNTER = itertools.count(1)


class Base(DeclarativeBase):
    pass


class Tenant(Base):
    __tablename__ = "tenants"

    id: Mapped[int] = mapped_column(primary_key=True)
    tasks: Mapped[list[Task]] = relationship(back_populates="tenant")


def changed_by(context: Any) -> str:
    """Say who changed the row: a default that asks for its context."""
    return f"app {len(context.get_current_parameters()) >= 0}"


class HostColumns:
    """What hosts do with columns of their own."""

    number: Mapped[int] = mapped_column(default=lambda: next(COUNTER))
    colour: Mapped[str] = mapped_column("Colour", default="red")
    made_at: Mapped[datetime] = mapped_column(insert_default=func.now())
    origin: Mapped[str] = mapped_column(Text, server_default=text("'server'"))
    touched: Mapped[int] = mapped_column(default=0, onupdate=lambda: next(COUNTER))
    changer: Mapped[str | None] = mapped_column(String(20), onupdate=changed_by)
    edition: Mapped[str] = mapped_column(default="new", onupdate="old")
    stamped: Mapped[datetime | None] = mapped_column(onupdate=func.statement_timestamp())
    level: Mapped[int] = mapped_column(default=0, onupdate=literal(1) + literal(1))
    extra: Mapped[dict[str, Any] | None] = mapped_column(JSONB)
    note: Mapped[str | None] = mapped_column(Text, deferred=True)


class Task(HostColumns, UuidId, TaskMixin, Base):
    __tablename__ = "tasks"
    __scope__ = ("tenant_id", "stage")
    __key_scope__ = ("tenant_id",)

    tenant_id: Mapped[int] = mapped_column(ForeignKey(Tenant.id))
    stage: Mapped[str] = mapped_column("Stage", String(10))
    tenant: Mapped[Tenant] = relationship(back_populates="tasks")
    shade = synonym("colour")


class Logged(HostColumns, UuidId, TaskMixin, Base):
    """The same, with a history: its statements have another form."""

    __tablename__ = "logged"
    __scope__ = ("tenant_id", "stage")
    __key_scope__ = ("tenant_id", "queue")

    tenant_id: Mapped[int] = mapped_column(ForeignKey(Tenant.id))
    stage: Mapped[str] = mapped_column("Stage", String(10))


class LoggedEvent(TaskEventMixin, Base):
    __tablename__ = "logged_events"
    __task_model__ = Logged


SCOPE = {"tenant_id": 7, "stage": "build"}

every_class = pytest.mark.parametrize("model", [Task, Logged])
pytestmark = two_drivers


@pytest.fixture
def create(twin):
    """Create the tables and two tenants."""
    twin.create(Base.metadata)
    twin.sql("INSERT INTO tenants (id) VALUES (7), (8)")


@every_class
async def test_scoped_tasks_lead_a_life(twin, create, model):
    """Scope columns with a foreign key or a name of their own lead the indexes and every write."""
    key_scope = ("tenant_id",) if model is Task else ("tenant_id", "queue")
    assert_furnished(twin.database, model, scope=("tenant_id", "Stage"), key_scope=key_scope)
    queue = await lead_a_life(twin, model, scope=SCOPE)
    other = queue.scope(stage="test")
    async with twin.begin() as session:
        assert other.scope_values == {"tenant_id": 7, "stage": "test"}
        assert (await other.stats(session)).ended == 0
        # The stage is no part of the key's scope.
        assert not (await other.enqueue(session, key="k0")).created
        again = await other.enqueue(session, key="k0")
        assert again.state == "done"
        assert (await queue.scope(tenant_id=8).enqueue(session, key="k0")).created


@every_class
async def test_python_side_defaults_are_one_for_each_row(twin, create, model):
    """Enqueue evaluates the host's defaults for each task, and keeps what `values=` gives."""
    queue = twin.queue(model).scope(**SCOPE)
    async with twin.begin() as session:
        for _ in range(3):
            await queue.enqueue(session)
        given = {"number": 0, "colour": "blue", "extra": {"a": [1, None]}, "note": "n"}
        sent = await queue.enqueue(session, values=given)
        task = await session.get(model, sent.id)
        assert (task.number, task.colour, task.extra) == (0, "blue", {"a": [1, None]})
        assert (task.origin, task.edition) == ("server", "new")
        assert abs((task.made_at - datetime.now(UTC).replace(tzinfo=None)).days) <= 1
    rows = twin.sql(f'SELECT number, "Colour" FROM {model.__tablename__} WHERE number > 0')
    assert len({row.number for row in rows}) == 3
    assert {row.Colour for row in rows} == {"red"}


@every_class
async def test_on_update_values_are_written_by_every_change(twin, create, model):
    """`onupdate`, be it a callable, a scalar or SQL, is applied by the queue's writes too."""
    queue = twin.queue(model).scope(**SCOPE)
    async with twin.begin() as session:
        sent = await queue.enqueue(session)
    table = model.__tablename__
    columns = "touched, changer, edition, stamped, level"
    [fresh] = twin.sql(f"SELECT {columns} FROM {table}")
    assert fresh == (0, None, "new", None, 0)

    async def claim(session):
        [claim] = await queue.claim(session, holder="w1")
        return claim

    held = None
    seen = [fresh.touched]
    changes = {
        "claim": claim,
        "heartbeat": lambda session: queue.heartbeat(session, held),
        "release": lambda session: queue.release(session, held),
        "claim_task": lambda session: queue.claim_task(session, id=sent.id, holder="w1"),
        "fail": lambda session: queue.fail(session, held, final=True),
        "retry": lambda session: queue.retry(session, id=sent.id),
        "cancel": lambda session: queue.cancel(session, id=sent.id),
    }
    for name, change in changes.items():
        async with twin.begin() as session:
            answer = await change(session)
            assert answer, name
            held = answer if name.startswith("claim") else held
        [row] = twin.sql(f"SELECT {columns} FROM {table}")
        assert row.touched not in seen, name
        assert (row.changer, row.edition, row.level) == ("app True", "old", 2), name
        assert row.stamped is not None, name
        seen.append(row.touched)


@every_class
async def test_on_update_values_are_written_by_every_batch(twin, create, model):
    """Each batch form, the claim of several tasks and the sweep write `onupdate` to every row."""
    queue = twin.queue(model).scope(**SCOPE)
    async with twin.begin() as session:
        await queue.enqueue_many(session, [TaskSpec()] * 9)
        await queue.cancel(session, id=(await queue.enqueue(session)).id)
    rows = f"FROM {model.__tablename__} WHERE edition = 'old' AND changer = 'app True'"
    claims = []
    changes = {
        "claim": lambda session: queue.claim(session, holder="w1", limit=9),
        "heartbeat_many": lambda session: queue.heartbeat_many(session, claims),
        "complete_many": lambda session: queue.complete_many(session, claims[:3]),
        "fail_many": lambda session: queue.fail_many(session, claims[3:6], errors=["no"] * 3),
        "reclaim": lambda session: queue.reclaim(session, stale_after=timedelta(0)),
    }
    for name, change in changes.items():
        twin.sql(f"UPDATE {model.__tablename__} SET edition = 'new', touched = -1")
        async with twin.begin() as session:
            answer = await change(session)
            claims = claims or answer
        written = twin.sql(f"SELECT touched, level {rows}")
        assert len(written) == (9 if name in ("claim", "heartbeat_many") else 3), name
        assert {row.level for row in written} == {2}, name
        assert -1 not in {row.touched for row in written}, name


@every_class
@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("nonsense", 1, "no such column"),
        ("Colour", "red", "no such column"),
        ("queue", "other", "not the host's"),
        ("state", "done", "not the host's"),
        ("lease_token", None, "not the host's"),
        ("tenant_id", 8, r"scope\(\)"),
        ("stage", "test", r"scope\(\)"),
        ("Stage", "test", "no such column"),
        ("id", None, "own argument"),
        (7, None, "no such column"),
        ("__tablename__", "x", "no such column"),
    ],
)
async def test_values_that_are_not_the_hosts(twin, create, model, name, value, message):
    """`values=` refuses unknown names, our columns, the scope and the key before any SQL."""
    queue = twin.queue(model).scope(**SCOPE)
    async with twin.begin() as session:
        with no_statements(twin), pytest.raises(InvalidArgument, match=message) as caught:
            await queue.enqueue(session, values={name: value})
        assert caught.value.argument == "values"
        assert (await queue.enqueue(session)).created


async def test_relationships_are_no_values(twin, create):
    """`values=` takes columns: a relationship or synonym is refused with the names it takes."""
    queue = twin.queue(Task).scope(**SCOPE)
    async with twin.begin() as session:
        for name in ("tenant", "shade"):
            with no_statements(twin), pytest.raises(InvalidArgument, match=r"colour, .*number"):
                await queue.enqueue(session, values={name: None})


# --- Scopes ------------------------------------------------------------------------------------


@pytest.mark.smoke
@every_class
async def test_operations_that_need_the_whole_scope(twin, create, model):
    """Without the whole scope, writes raise an error that names what is missing; reads work."""
    queue = twin.queue(model)
    partial = queue.scope(stage="build")
    async with twin.begin() as session:
        sent = await partial.scope(tenant_id=7).enqueue(session, key="a")
        for one, missing in ((queue, ("tenant_id", "stage")), (partial, ("tenant_id",))):
            for call in (
                lambda: one.enqueue(session),  # noqa: B023
                lambda: one.claim(session, holder="w1"),  # noqa: B023
                lambda: one.claim_task(session, id=sent.id, holder="w1"),  # noqa: B023
                lambda: one.heartbeat(session, id=sent.id, holder="w1"),  # noqa: B023
                lambda: one.complete(session, key="a", holder="w1"),  # noqa: B023
                lambda: one.complete(session, id=sent.id, force=True),  # noqa: B023
                lambda: one.cancel(session, id=sent.id),  # noqa: B023
                lambda: one.retry(session, id=sent.id),  # noqa: B023
                lambda: one.get(session, key="a"),  # noqa: B023
            ):
                with no_statements(twin), pytest.raises(ScopeMissing) as caught:
                    await call()
                assert caught.value.missing == missing
                for name in missing:
                    assert name in str(caught.value)
            assert (await one.get(session, id=sent.id)).id == sent.id
            assert len(await one.find(session)) == (await one.stats(session)).queued == 1
            assert not await one.reclaim(session)
        for none in (queue.scope(stage="test"), queue.scope(tenant_id=8)):
            assert await none.get(session, id=sent.id) is None
            assert len(await none.find(session)) == (await none.stats(session)).queued == 0


async def test_scopes_that_do_not_exist(twin, create):
    """An unknown scope column, NULL, or text that cannot be stored is refused at once."""
    queue = twin.queue(Task)
    for scope in (
        {"region": 1},
        {"colour": "red"},
        {"Stage": "build"},
        {"stage": None},
        {"stage": "a\x00"},
        {"stage": "\ud800"},
        {"tenant_id": None, "stage": "build"},
    ):
        with pytest.raises(InvalidArgument):
            queue.scope(**scope)


async def test_claims_of_another_scope(twin, create):
    """A claim is used on a queue of its own scope, or on the queue without any."""
    queue = twin.queue(Task)
    async with twin.begin() as session:
        await queue.scope(**SCOPE).enqueue(session)
        [claim] = await queue.scope(**SCOPE).claim(session, holder="w1")
        assert claim.scope == SCOPE
        with no_statements(twin), pytest.raises(InvalidArgument, match="claim is of queue"):
            await queue.scope(tenant_id=8, stage="build").complete(session, claim)
        assert await queue.scope(tenant_id=7).heartbeat(session, claim)
        assert await queue.complete(session, claim)
