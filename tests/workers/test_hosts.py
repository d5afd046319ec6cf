"""Workers write what the queue's own methods would write, in the tables of every kind of host."""

from __future__ import annotations

import asyncio
import enum
import threading
from datetime import timedelta
from itertools import count

import pytest
from sqlalchemy import event
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from sqla_taskqueue import Cancel, Claim, Fixed, Handlers, Queue, Retry, Snooze, TaskMixin, Worker
from tests.behaviour.hosts import Base as Shared
from tests.behaviour.hosts import Board, Logged, Pair
from tests.plans.hosts import Audited, Cell, Grid, Word
from tests.plans.hosts import Base as Further
from tests.surroundings.application import application
from tests.workers.hosts import Base, Effect
from tests.workers.working import NEVER, Works, running

HOUR = timedelta(hours=1)
numbers = count(10**6)

HOSTS = {
    Board: {"team_id": 7},
    Logged: {},
    Pair: {"tenant_id": 7},
    Grid: {},
    Word: {},
    Audited: {"tenant": "a"},
    Cell: {"tenant": 7},
}


def new_id(model, scope):
    """Return the arguments of an enqueue that give a task its key, where the host must."""
    if model in (Board, Logged, Audited):
        return {}
    number = next(numbers)
    keys = {
        Pair: (scope.get("tenant_id"), number),
        Grid: (number, 1),
        Word: str(number),
        Cell: (scope.get("tenant"), number, 1),
    }
    return {"id": keys[model]}


class Out(Exception):
    """What a handler raises."""


def behave(how):
    """Do what a handler of each kind does."""
    match how:
        case "result":
            return {"n": [1, 2.5, None]}
        case "fails" | "fails for good":
            raise Out("no")
        case "again":
            return Retry(HOUR, error="busy")
        case "later":
            raise Snooze(HOUR)
        case "never":
            return Cancel("not wanted")
    return None


async def write(queue, session, claim):
    """Write the same with the queue's methods."""
    match claim.payload["how"]:
        case "result":
            await queue.complete(session, claim, result={"n": [1, 2.5, None]})
        case "fails" | "fails for good":
            await queue.fail(session, claim, error=Out("no"))
        case "again":
            await queue.fail(session, claim, error="busy", retry=Fixed(HOUR))
        case "later":
            await queue.snooze(session, claim, delay=HOUR)
        case "never":
            await queue.cancel(session, id=claim.id, reason="not wanted", actor="w1")
        case _:
            await queue.complete(session, claim)


WAYS = ("nothing", "result", "fails", "fails for good", "again", "later", "never")
SKIPPED = {
    "id", "row", "column", "queue", "ended_token", "touched", "heartbeat_at", "claimed_at",
    "created_at", "updated_at", "finished_at", "run_at",
}  # fmt: skip


@pytest.mark.parametrize("model", HOSTS, ids=lambda model: model.__name__)
async def test_a_worker_writes_what_the_queue_writes(twin, model):
    """Every column but times and keys, and every event, whatever a handler says."""
    twin.create(Shared.metadata, Further.metadata)
    scope = HOSTS[model]
    handlers = Handlers(Queue(model, "by worker", retry=Fixed(HOUR)).scope(**scope))

    @handlers.handler(name="work")
    async def work(how: str):
        return behave(how)

    for name in ("by worker", "by queue"):
        queue = twin.queue(model, name, retry=Fixed(HOUR)).scope(**scope)
        async with twin.begin() as session:
            for how in WAYS:
                most = {"max_attempts": 1} if how == "fails for good" else {}
                values = {"values": {"title": how}} if model is Board else {}
                await queue.enqueue(
                    session, "work", {"how": how}, **most, **values, **new_id(model, scope)
                )
    async with twin.begin() as session:
        for claim in await queue.claim(session, holder="w1", limit=10):
            await write(queue, session, claim)
    table = model.__tablename__

    def rows(of):
        found = twin.sql(f"SELECT * FROM {table} WHERE queue = '{of}' ORDER BY payload ->> 'how'")
        return [
            {name: value for name, value in row._asdict().items() if name not in SKIPPED}
            for row in found
        ]

    engine = twin.new_engine()
    async with running(Worker(engine, handlers, name="w1", sweep=NEVER, poll=NEVER)):
        await twin.until(
            lambda: all(row["state"] != "claimed" and (row["attempt"] or row["state"] == "queued")
                        and (row["state"] != "queued" or row["payload"]["how"] in ("fails", "again", "later"))
                        for row in rows("by worker"))
            and sum(row["attempt"] for row in rows("by worker")) == len(WAYS) - 1
        )  # fmt: skip
    assert rows("by worker") == rows("by queue")
    due = twin.sql(
        f"SELECT queue, payload ->> 'how' AS how FROM {table} WHERE run_at >"
        " statement_timestamp() + interval '30 minutes' ORDER BY 1, 2"
    )
    assert due == [
        (of, how) for of in ("by queue", "by worker") for how in ("again", "fails", "later")
    ]
    if events := {Logged: "logged_events", Board: "board_events", Audited: "audited_events",
                  Cell: "cell_events"}.get(model):  # fmt: skip

        def history(of):
            keys = " AND ".join(
                f't."{column.name}" = e."task_{column.name}"'
                for column in model.__table__.primary_key
            )
            return twin.sql(
                "SELECT t.payload ->> 'how' AS how, e.type, e.actor, e.attempt, e.detail - 'traceback' - 'via' AS detail"
                f" FROM {events} AS e JOIN {table} AS t ON {keys} WHERE t.queue = '{of}'"
                " ORDER BY 1, e.attempt, e.type"
            )

        assert [tuple(one) for one in history("by worker")] == [
            tuple(one) for one in history("by queue")
        ]
    if model is Audited:
        assert twin.scalar(f"SELECT count(*) FROM {table} WHERE touched IS NULL") == 0


class Size(enum.Enum):
    """What Python cannot put in order."""

    LARGE = "large"
    SMALL = "small"


class EnumBase(DeclarativeBase):
    pass


class Boxed(TaskMixin, EnumBase):
    """With an enum in its key."""

    __tablename__ = "boxed"
    size: Mapped[Size] = mapped_column(primary_key=True)
    number: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)


async def test_keys_that_python_cannot_put_in_order(twin):
    """Their tasks are worked on all the same, given back and taken again."""
    works = Works(twin, Queue(Boxed, "work", retry=Fixed(timedelta(0))))
    twin.create(EnumBase.metadata)

    @works.handlers.handler
    async def work(claim: Claim) -> None:
        if claim.attempt == 1 and claim.id[1] % 3 == 0:
            raise Out

    queue = twin.queue(Boxed, "work")
    async with works.worker(concurrency=10):
        async with twin.begin() as session:
            for number in range(60):
                await queue.enqueue(session, "work", id=([*Size][number % 2], number))
        await works.until(done=60)
    assert twin.sql("SELECT attempt, count(*) FROM boxed GROUP BY 1 ORDER BY 1") == [
        (1, 40),
        (2, 20),
    ]


@pytest.mark.parametrize("schema", [None, "customer"], ids=["partitioned", "translated"])
async def test_partitions_and_translated_schemas(twin, schema):
    """A worker finds the tenants of a partitioned table, and the schema that the engine names."""
    base = application(schema=schema, partitioned=schema is None)
    real = application(schema=schema and "ours", partitioned=schema is None)
    twin.create(real.metadata, fresh=True)
    prefix = "ours." if schema else ""
    twin.sql(f"INSERT INTO {prefix}tenants (id, paid) SELECT i, 0 FROM generate_series(1, 8) AS i")
    engine = twin.new_engine()
    if schema:
        engine = engine.execution_options(schema_translate_map={"customer": "ours"})
    handlers = Handlers(Queue(base.Task, "work"))
    seen = []

    @handlers.handler(name="work")
    async def work(claim: Claim) -> None:
        seen.append((claim.scope["tenant_id"], claim.id))

    async with running(Worker(engine, handlers, sweep=NEVER, poll=timedelta(seconds=0.2))):
        for tenant in range(1, 9):
            queue = twin.queue(base.Task, "work").scope(tenant_id=tenant)
            async with twin.begin(engine) as session:
                for _ in range(3):
                    await queue.enqueue(session, "work")
        await twin.until(
            lambda: (
                twin.sql(f"SELECT state, count(*) FROM {prefix}tasks GROUP BY 1") == [("done", 24)]
            )
        )
    assert sorted(tenant for tenant, _ in seen) == sorted([*range(1, 9)] * 3)
    types = twin.sql(f"SELECT type, count(*) FROM {prefix}task_events GROUP BY 1 ORDER BY 1")
    assert types == [("claimed", 24), ("completed", 24), ("created", 24)]


@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE", "AUTOCOMMIT"])
async def test_engines_of_every_isolation_level(twin, level):
    """B24: the worker's own statements are READ COMMITTED, whatever the engine's default is."""
    works = Works(twin)

    @works.handlers.handler
    async def work(n: int) -> None:
        works.started.append(n)

    await works.send("work", *({"n": n} for n in range(200)))
    workers = [
        works.new_worker(
            engine=works.new_engine(isolation_level=level), lease=timedelta(seconds=0.3)
        )
        for _ in range(3)
    ]
    async with running(workers[0]), running(workers[1]), running(workers[2]):
        await works.until(done=200)
    assert sorted(works.started) == [*range(200)]
    assert twin.sql("SELECT DISTINCT attempt FROM tasks") == [(1,)]


@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE", "AUTOCOMMIT"])
async def test_effects_at_every_isolation_level(twin, level):
    """B24: they come with the end of their task or not at all, though leases are renewed meanwhile."""
    works = Works(twin)

    def effect(claim):
        return Effect.__table__.insert().values(number=claim.payload["n"])

    if twin.is_async:

        @works.handlers.handler(retry=Fixed(timedelta(0)))
        async def work(session: AsyncSession, claim: Claim) -> None:
            await session.execute(effect(claim))
            await asyncio.sleep(0.3)
            if claim.attempt == 1:
                raise Out
    else:

        @works.handlers.handler(retry=Fixed(timedelta(0)))
        def work(session: Session, claim: Claim) -> None:
            session.execute(effect(claim))
            threading.Event().wait(0.3)
            if claim.attempt == 1:
                raise Out

    await works.send("work", *({"n": n} for n in range(5)))
    engine = works.new_engine(isolation_level=level)
    async with works.worker(engine=engine, lease=timedelta(seconds=0.3)):
        await works.until(done=5)
    assert twin.sql("SELECT number, count(*) FROM effects GROUP BY 1 ORDER BY 1") == [
        (n, 1) for n in range(5)
    ]
    assert twin.sql("SELECT DISTINCT attempt FROM tasks") == [(2,)]


async def test_listeners_and_hooks_of_the_host_are_kept(twin):
    """What an application does with each of its connections is done with the worker's, too."""
    twin.create(Base.metadata)
    works = Works(twin)

    @works.handlers.handler
    async def work() -> None:
        works.started.append(1)

    engine = works.new_engine()
    connected = []
    event.listen(getattr(engine, "sync_engine", engine), "connect", lambda *_: connected.append(1))
    async with works.worker(engine=engine):
        await works.send("work", None)
        await works.until(done=1)
        # For turns, and for wake-ups; the others connect when they have something to do.
        await twin.until(lambda: len(connected) >= 2)
    assert works.states() == {"done": 1}
