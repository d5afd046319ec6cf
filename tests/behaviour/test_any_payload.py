"""Whatever is enqueued: a typed error and nothing sent, or a value that reads back equal (B15, B16)."""

from __future__ import annotations

import asyncio
import enum
from decimal import Decimal

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sqla_taskqueue import InvalidPayload, TaskSpec, TaskState
from tests.behaviour.hosts import Base, Logged, queue_of
from tests.behaviour.test_sessions import recording

two_drivers = pytest.mark.parametrize("driver", ["psycopg", "asyncpg"], indirect=True)


class Word(str):
    __slots__ = ()


class Number(int):
    pass


class Items(list):
    pass


class Fields(dict):
    pass


class Colour(str, enum.Enum):  # noqa: UP042 - it is the point
    """Not a StrEnum: its `str()` is the name of the member."""

    RED = "red"


any_text = st.text(st.characters(), max_size=20)  # NUL and lone surrogates included
good_text = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\x00"))
good_key = good_text.map(Word) | good_text | st.just(Colour.RED)
good_leaf = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(10**300, 10**639).map(Number)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.floats(1e15, 1e300)  # where PostgreSQL begins to write them without an exponent
    | good_key
)
any_leaf = (
    good_leaf
    | st.floats()
    | any_text
    | st.sampled_from(["a\x00b", "\ud800", "x\udfff"])
    | st.sampled_from([10**640, b"bytes", Decimal(1), {1}, object(), TaskState, Colour])
)


def nested(leaf, key):
    """Return a strategy for values of these leaves, in containers of every kind."""
    return st.recursive(
        leaf,
        lambda inner: (
            st.lists(inner, max_size=4)
            | st.lists(inner, max_size=2).map(Items)
            | st.tuples(inner, inner)
            | st.dictionaries(key, inner, max_size=4)
            | st.dictionaries(key, inner, max_size=2).map(Fields)
        ),
        max_leaves=15,
    )


values = nested(good_leaf, good_key) | nested(any_leaf, good_key | any_text | st.integers())


def as_json_has_it(value):
    """Return *value* with lists for tuples: the one difference that reading back may make."""
    match value:
        case list() | tuple():
            return [as_json_has_it(item) for item in value]
        case dict():
            return {key: as_json_has_it(item) for key, item in value.items()}
        case _:
            return value


async def for_any(strategy, check, max_examples=150):
    """Run a coroutine function on many examples, which Hypothesis draws in a thread of its own."""
    loop = asyncio.get_running_loop()

    @settings(
        max_examples=max_examples,
        database=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
    @given(strategy)
    def try_one(example):
        asyncio.run_coroutine_threadsafe(check(example), loop).result()

    await asyncio.to_thread(try_one)


@two_drivers
@pytest.mark.parametrize("many", [False, True], ids=["enqueue", "enqueue_many"])
async def test_a_payload_is_refused_or_reads_back_equal(twin, many):
    """Refused: one typed error, no statement, no transaction. Accepted: claimed as it was sent."""
    twin.create(Base.metadata)
    queue = queue_of(twin, Logged)

    async def check(payload):
        async with twin.session() as session:
            with recording(twin.engine) as sent:
                try:
                    if many:
                        await queue.enqueue_many(session, [TaskSpec(payload=payload)])
                    else:
                        await queue.enqueue(session, payload=payload)
                except InvalidPayload:
                    assert not sent
                    assert not session.in_transaction()
                    return
            [claim] = await queue.claim(session, holder="w")
            assert claim.payload == as_json_has_it(payload)
            await session.rollback()

    await for_any(values, check)
    assert twin.scalar("SELECT count(*) FROM logged") == 0


@two_drivers
async def test_a_task_ends_with_any_result_and_any_error(twin):
    """Whatever the handler returns or raises, the first write ends the task, and is readable."""
    twin.create(Base.metadata)
    queue = queue_of(twin, Logged)

    async def check(handled):
        result, error = handled
        async with twin.session() as session:
            await queue.enqueue_many(session, [TaskSpec(), TaskSpec()])
            done, failed = await queue.claim(session, holder="w", limit=2)
            assert (await queue.complete(session, done, result=result)).state == "done"
            assert (await queue.fail(session, failed, error=error, final=True)).state == "failed"
            assert len((await queue.get(session, id=failed.id)).error) <= 1_000
            assert (await queue.get(session, id=done.id)).state == "done"  # and can be read
            await session.rollback()

    errors = any_text | any_text.map(ValueError) | values
    await for_any(st.tuples(values, errors), check, max_examples=75)
