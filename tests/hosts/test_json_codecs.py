"""Engines and connections that carry the host's own JSON: serialisers, and the drivers' codecs."""

from __future__ import annotations

import json
from typing import Any

import pytest
from sqlalchemy import event
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from sqla_taskqueue import TaskEventMixin, TaskMixin, TaskSpec, UuidId
from tests.hosts.life import lead_a_life


class Base(DeclarativeBase):
    pass


class Task(UuidId, TaskMixin, Base):
    __tablename__ = "tasks"

    extra: Mapped[Any] = mapped_column(JSONB, nullable=True)


class TaskEvent(TaskEventMixin, Base):
    __tablename__ = "task_events"
    __task_model__ = Task


class Number(int):
    """A whole number that the host's own JSON has read."""


def dumps(value: Any) -> str:
    """Return JSON in the host's own style, and no number of more than 64 bits, as orjson does."""
    text = json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(", ", ": "))
    json.loads(text, parse_int=_short)
    return text


def _short(digits: str) -> int:
    if not -(1 << 63) <= (number := int(digits)) < 1 << 64:
        raise TypeError("Integer exceeds 64-bit range")
    return number


def loads(text: str | bytes) -> Any:
    """Read JSON, be it text or bytes, and leave a mark."""
    return json.loads(text, parse_int=Number)


def dump_bytes(value: Any) -> bytes:
    """Return JSON as bytes, as orjson and msgspec do."""
    return dumps(value).encode()


def as_it_is(value: Any) -> Any:
    """Leave JSON to the driver."""
    return value


# --- How hosts bring them ----------------------------------------------------------------------


def for_the_engine(twin: Any) -> Any:
    """As the engine's serialisers."""
    return twin.new_engine(json_serializer=dumps, json_deserializer=loads)


def bytes_for_the_engine(twin: Any) -> Any:
    """As an engine's serialiser that returns bytes, where the driver takes them."""
    return twin.new_engine(json_serializer=dump_bytes, json_deserializer=loads)


def on_psycopg_connections(twin: Any) -> Any:
    """As psycopg's own, set on each connection."""
    from psycopg.types.json import set_json_dumps, set_json_loads

    engine = twin.new_engine()

    def connect(dbapi_connection: Any, _: Any) -> None:
        connection = getattr(dbapi_connection, "driver_connection", dbapi_connection)
        set_json_dumps(dump_bytes, connection)
        set_json_loads(loads, connection)

    event.listen(engine.sync_engine if twin.is_async else engine, "connect", connect)
    return engine


def codecs(twin: Any, *, binary: bool, encoder: Any, decoder: Any, serializer: Any) -> Any:
    """Return an engine whose asyncpg connections have the host's codecs: SQLAlchemy's are gone."""
    engine = twin.new_engine(json_serializer=serializer)
    options = {"schema": "pg_catalog", "format": "binary" if binary else "text"}

    async def install(connection: Any) -> None:
        await connection.set_type_codec("jsonb", encoder=encoder, decoder=decoder, **options)
        await connection.set_type_codec("json", encoder=encoder, decoder=not_read, **options)

    @event.listens_for(engine.sync_engine, "connect")
    def connect(dbapi_connection: Any, _: Any) -> None:
        dbapi_connection.run_async(install)

    return engine


def not_read(_: Any) -> Any:
    """Stand for a codec that reads `json` in some other way: the queue selects `jsonb` only."""
    raise AssertionError


def binary_codecs(twin: Any) -> Any:
    """As litestar has them: the engine makes bytes, the codec puts the version before them."""
    return codecs(
        twin,
        binary=True,
        encoder=lambda value: b"\x01" + value,
        decoder=lambda value: loads(value[1:]),
        serializer=dump_bytes,
    )


def text_codecs(twin: Any) -> Any:
    """The engine makes text, the codec reads it."""
    return codecs(twin, binary=False, encoder=str, decoder=loads, serializer=dumps)


def codecs_alone(twin: Any) -> Any:
    """The engine leaves values as they are, the codec makes JSON of them and reads it."""
    return codecs(twin, binary=False, encoder=dumps, decoder=loads, serializer=as_it_is)


WAYS = {
    "psycopg": (for_the_engine, bytes_for_the_engine, on_psycopg_connections),
    "psycopg2": (for_the_engine,),
    "psycopg-async": (for_the_engine, on_psycopg_connections),
    "asyncpg": (for_the_engine, binary_codecs, text_codecs, codecs_alone),
}

every_way = pytest.mark.parametrize(
    ("driver", "way"),
    [
        pytest.param(driver, way, id=f"{driver}, {way.__name__}")
        for driver, ways in WAYS.items()
        for way in ways
    ],
    indirect=["driver"],
)

VALUES = [
    {"a": [1, None, True], "b": {"n": -(2**40), "ä": "😀"}, "quote": "\\ \" '"},
    [],
    "text",
    7,
    False,
    None,
]


@every_way
async def test_tasks_lead_a_life(twin, way):
    """Every operation works through the host's engine, and what it stored is JSON to others."""
    twin.create(Base.metadata)
    twin.engine = way(twin)
    queue = await lead_a_life(twin, Task, values={"extra": {"n": 7}})
    assert twin.sql(
        "SELECT payload ->> 'n' AS n, result ->> 'ok' AS ok, extra ->> 'n' AS extra"
        "  FROM tasks ORDER BY key"
    ) == [("0", "true", "7"), ("1", None, "7")]
    async with twin.begin() as session:
        events = await queue.history(session, key="k1")
    details = [event.detail or {} for event in events]
    assert [event.type for event in events][-2:] == ["restarted", "cancelled"]
    assert details[-1]["reason"] == "enough"
    assert all(isinstance(detail, dict) for detail in details)


@every_way
async def test_values_come_back_as_they_went(twin, way):
    """Payloads, results and the host's own column are equal when read, singly and in batches."""
    twin.create(Base.metadata)
    twin.engine = way(twin)
    queue = twin.queue(Task)
    async with twin.begin() as session:
        for value in VALUES:
            await queue.enqueue(session, "one", value, values={"extra": value})
        await queue.enqueue_many(session, [TaskSpec("many", value) for value in VALUES])
        specs = [TaskSpec("own", value, values={"extra": value}) for value in VALUES]
        await queue.enqueue_many(session, specs)
    async with twin.begin() as session:
        claims = await queue.claim(session, holder="w1", limit=100)
        assert [claim.payload for claim in claims] == VALUES * 3
        # What a claim and an entity show was read by the host.
        number = VALUES.index(7)
        assert type(claims[number].payload) is type(claims[number].task.payload) is Number
        one, many, own = (claims[n : n + len(VALUES)] for n in range(0, 18, len(VALUES)))
        assert [claim.task.extra for claim in (*one, *own)] == VALUES * 2
        for claim in one:
            assert await queue.complete(session, claim, result=claim.payload)
        assert await queue.complete_many(session, many, results=VALUES)
        assert await queue.fail_many(session, own, errors=["no"] * len(own), final=True)
    async with twin.begin() as session:
        tasks = [await queue.get(session, id=claim.id) for claim in (*one, *many)]
        assert [task.result for task in tasks] == [task.payload for task in tasks] == VALUES * 2
    assert twin.sql("SELECT jsonb_typeof(payload), count(*) FROM tasks GROUP BY 1 ORDER BY 1") == [
        ("array", 3),
        ("boolean", 3),
        ("number", 3),
        ("object", 3),
        ("string", 3),
        (None, 3),
    ]


@every_way
async def test_a_serialiser_cannot_keep_a_task_from_its_end(twin, way):
    """A result that the host's serialiser refuses is stored by the queue's own."""
    twin.create(Base.metadata)
    twin.engine = way(twin)
    queue = twin.queue(Task)
    async with twin.begin() as session:
        await queue.enqueue_many(session, [TaskSpec(), TaskSpec()])
        first, second = await queue.claim(session, holder="w1", limit=2)
        assert await queue.complete(session, first, result=2**70)
        assert await queue.complete_many(session, [second], results=[2**70])
    assert twin.sql("SELECT state, result = (2::numeric ^ 70)::text::jsonb FROM tasks") == [
        ("done", True),
        ("done", True),
    ]
