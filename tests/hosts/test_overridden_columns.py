"""Hosts that declare columns of the queue anew: what can stand in works, the rest is refused."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import (
    JSON,
    BigInteger,
    Column,
    DateTime,
    Enum,
    Integer,
    LargeBinary,
    SmallInteger,
    String,
    Text,
    TypeDecorator,
    Uuid,
    text,
)
from sqlalchemy.dialects.postgresql import CITEXT, JSONB, UUID
from sqlalchemy.orm import DeclarativeBase, column_property, mapped_column, synonym

from sqla_taskqueue import (
    BoardMixin,
    Limits,
    Queue,
    TaskEventMixin,
    TaskMixin,
    TaskSpec,
    TaskState,
    UnsupportedModel,
    UuidId,
)
from tests.hosts.life import lead_a_life

two_drivers = pytest.mark.parametrize("driver", ["psycopg", "asyncpg"], indirect=True)


class Sealed(TypeDecorator[Any]):
    """JSON that nobody else can read: a host's encryption."""

    impl = LargeBinary
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: Any) -> bytes | None:
        return None if value is None else json.dumps(value).encode()[::-1]

    def process_result_value(self, value: bytes | None, dialect: Any) -> Any:
        return None if value is None else json.loads(value[::-1])


class Wrapped(TypeDecorator[Any]):
    """JSON in an envelope."""

    impl = JSONB
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: Any) -> Any:
        return None if value is None else {"content": value}

    def process_result_value(self, value: Any, dialect: Any) -> Any:
        return None if value is None else value["content"]


class Shouted(TypeDecorator[str]):
    """Text in another form than was given."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: Any) -> Any:
        return value and value.upper()


def make(*mixins: Any, **columns: Any) -> Any:
    """Map a task class with history, on which some attributes are the host's."""

    class Base(DeclarativeBase):
        pass

    bases = (UuidId, *mixins, TaskMixin, Base)
    task = type("Task", bases, {"__tablename__": "tasks", **columns})
    namespace = {"__tablename__": "task_events", "__task_model__": task}
    Base.TaskEvent = type("TaskEvent", (TaskEventMixin, Base), namespace)  # keeps it
    return task


# --- What works --------------------------------------------------------------------------------

WORKS = {
    "text of bounded length": lambda: {
        "queue": mapped_column(String(100), nullable=False, server_default="default"),
        "name": mapped_column(String(255), nullable=False, server_default=""),
        "state": mapped_column(String(10), nullable=False, server_default="queued"),
        "key": mapped_column(String(128)),
        "error": mapped_column(String(1000)),
        "claimed_by": mapped_column(String(100), index=True),
    },
    "other whole numbers": lambda: {
        "priority": mapped_column(Integer, nullable=False, server_default=text("0")),
        "attempt": mapped_column(BigInteger, nullable=False, server_default=text("0")),
        "max_attempts": mapped_column(SmallInteger),
    },
    "defaults of Python": lambda: {
        "state": mapped_column(Text, nullable=False, default="queued"),
        "round": mapped_column(Integer, nullable=False, default=lambda: 1),
    },
    "options of the mapping": lambda: {
        "payload": mapped_column(JSONB, deferred=True, nullable=True),
        "result": mapped_column(JSON, nullable=True, comment="what became of it"),
        "error": column_property(Column(Text), deferred=True),
    },
    "mandatory where the caller gives it": lambda: {
        "payload": mapped_column(JSONB, nullable=False),
        "key": mapped_column(Text, nullable=False),
    },
    "columns of 1.4": lambda: {"error": Column(Text), "lease_token": Column(UUID(as_uuid=True))},
    "times without a zone": lambda: {
        "created_at": mapped_column(DateTime),
        "updated_at": mapped_column(DateTime, nullable=True),
    },
    "sealed payloads": lambda: {"payload": mapped_column(Sealed, nullable=True)},
    "wrapped payloads": lambda: {"payload": mapped_column(Wrapped, nullable=True)},
}


@pytest.mark.parametrize("columns", WORKS.values(), ids=WORKS)
@two_drivers
async def test_columns_that_can_stand_in(twin, columns):
    """A column of the same kind, or a payload in a type of the host's, works in every operation."""
    model = make(**columns())
    twin.create(model.__table__.metadata)
    queue = await lead_a_life(twin, model)
    async with twin.begin() as session:
        sent = await queue.enqueue_many(
            session, [TaskSpec(payload={"n": n}, key=f"many{n}") for n in range(3)]
        )
        claims = await queue.claim(session, holder="w1", limit=3)
        assert [claim.id for claim in claims] == [one.id for one in sent]
        assert [claim.payload for claim in claims] == [{"n": n} for n in range(3)]
        first, second, third = claims
        assert await queue.heartbeat_many(session, claims)
        assert await queue.complete_many(session, [first], results=[{"ok": 1}])
        assert await queue.fail_many(session, [second], errors=["x" * 2000], final=True)
        assert await queue.complete(session, third, result=[1])
        assert await queue.complete(session, third, result=[1])  # again: it is the same end
    async with twin.session() as session:
        tasks = [await queue.get(session, id=claim.id) for claim in claims]
        await session.refresh(tasks[1], ["error"])
        await session.refresh(tasks[2], ["payload"])
        assert [task.result for task in tasks] == [{"ok": 1}, None, [1]]
        assert len(tasks[1].error) == 1000
        assert tasks[2].payload == {"n": 2}
    async with twin.begin() as session:
        assert not await queue.reclaim(session)
        assert await queue.prune(session, older_than=timedelta(0)) == 5


@two_drivers
async def test_sealed_payloads_are_sealed(twin):
    """What the host's type makes of a payload is what is stored, from single calls and batches."""
    model = make(payload=mapped_column(Sealed, nullable=True))
    twin.create(model.__table__.metadata)
    queue = twin.queue(model)
    async with twin.begin() as session:
        await queue.enqueue(session, payload={"a": 1})
        await queue.enqueue_many(session, [TaskSpec(payload={"a": 1})])
    assert twin.sql("SELECT payload FROM tasks") == [(b'}1 :"a"{',)] * 2


@two_drivers
async def test_text_shorter_than_the_defaults(twin):
    """A queue whose limits fit short columns works, and cuts what it writes to them."""
    model = make(error=mapped_column(String(30)), key=mapped_column(String(20)))
    twin.create(model.__table__.metadata)
    queue = twin.queue(model, limits=Limits(error=30, key=20))
    async with twin.begin() as session:
        await queue.enqueue(session, key="k" * 20)
        [claim] = await queue.claim(session, holder="w1")
        assert await queue.fail(session, claim, error="x" * 100, final=True)
    assert twin.scalar("SELECT length(error) FROM tasks") == 30


# --- What is refused ---------------------------------------------------------------------------


def states(**options: Any) -> Enum:
    """Return an enum with the values of the states."""
    return Enum(TaskState, values_callable=lambda known: [one.value for one in known], **options)


REFUSED = {
    "a native enum": (
        {"state": mapped_column(states(name="states"), server_default="queued")},
        "state is Enum",
    ),
    "an enum": (
        {"state": mapped_column(states(native_enum=False), server_default="queued")},
        "state is Enum",
    ),
    "a payload as text": ({"payload": mapped_column(Text, nullable=True)}, "payload is Text"),
    "a sealed result": ({"result": mapped_column(Sealed, nullable=True)}, "result is Sealed"),
    "a wrapped result": ({"result": mapped_column(Wrapped, nullable=True)}, "result is Wrapped"),
    "text in another form": ({"key": mapped_column(Shouted)}, "key is Shouted"),
    "text of any case": ({"key": mapped_column(CITEXT)}, "key is CITEXT"),
    "a token as text": ({"lease_token": mapped_column(String(36))}, "lease_token is String"),
    "tokens read as text": (
        {"ended_token": mapped_column(Uuid(as_uuid=False))},
        "ended_token is Uuid",
    ),
    "times without a zone": (
        {"run_at": mapped_column(DateTime, server_default=text("now()"))},
        "run_at is DateTime",
    ),
    "a lease without a zone": (
        {"lease_expires_at": mapped_column(DateTime, nullable=True)},
        "lease_expires_at is DateTime",
    ),
    "no default": ({"state": mapped_column(Text, nullable=False)}, "state has no default"),
    "no counter": ({"pending": mapped_column(Integer)}, "pending has no default"),
    "a mandatory result": (
        {"result": mapped_column(JSONB, nullable=False)},
        "result must be able to be NULL",
    ),
    "a mandatory holder": (
        {"claimed_by": mapped_column(Text, nullable=False, server_default="")},
        "claimed_by must be able to be NULL",
    ),
    "another name": (
        {"payload": mapped_column("body", JSONB, nullable=True)},
        "lacks the columns payload",
    ),
    "no column": ({"name": "constant"}, "lacks the columns name"),
    "a property": ({"name": property(lambda self: "constant")}, "lacks the columns name"),
    "a synonym": ({"error": synonym("name")}, "lacks the columns error"),
}


@pytest.mark.parametrize(("columns", "message"), REFUSED.values(), ids=REFUSED)
def test_columns_that_cannot_stand_in(columns, message):
    """What would fail or go wrong at work is refused when the class is made, naming the column."""
    with pytest.raises(UnsupportedModel, match=r"^Task cannot carry a task queue: ") as caught:
        make(**columns)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("name", "length"),
    [("error", 999), ("key", 127), ("unique_key", 60), ("name", 99), ("claimed_by", 20)],
)
def test_text_too_short_for_the_limits(name, length):
    """A queue is refused whose limits let through what a column cannot hold."""
    model = make(**{name: mapped_column(String(length), server_default="", nullable=True)})
    with pytest.raises(UnsupportedModel, match=f"column {name} holds {length} characters"):
        Queue(model)
    assert Queue(model, limits=Limits(error=20, key=20, name=20)).model is model


def test_columns_of_a_board_are_the_hosts_to_declare():
    """Title, description and metadata are set by `values=` only: any column does."""
    model = make(BoardMixin, title=mapped_column(String(80)), meta=mapped_column(Text))
    assert Queue(model).model is model
