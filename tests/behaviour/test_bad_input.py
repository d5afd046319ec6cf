"""Bad input: one typed error before any SQL; and no user data blocks the end of a task (B15, B16)."""

from __future__ import annotations

import json
import math
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from uuid import UUID, uuid4

import pytest

from sqla_taskqueue import (
    Holder,
    InvalidArgument,
    InvalidPayload,
    Limits,
    TaskSpec,
    UnsupportedModel,
)
from tests.behaviour.hosts import Base, Board, Logged, Pair, Task

SCOPE = {"project_hash": "9f2c", "role": "coder"}
MIB = 1 << 20

# What is refused before any SQL is refused alike by all drivers: one of each facade will do.
both_facades = pytest.mark.parametrize("driver", ["psycopg2", "asyncpg"], indirect=True)


def builds(twin, name="builds", **options):
    """Return a queue of `Task` in one scope."""
    twin.create(Base.metadata)
    return twin.queue(Task, name, **options).scope(**SCOPE)


async def refused(twin, queue, operation, *args, error=InvalidArgument, match=None, **kwargs):
    """Run an operation that must be refused without a statement, in a transaction that goes on."""
    async with twin.session() as session:
        with pytest.raises(error, match=match) as caught:
            await getattr(queue, operation)(session, *args, **kwargs)
        assert not session.in_transaction()
    async with twin.begin() as session:
        before = (await queue.stats(session)).live
        with pytest.raises(error, match=match):
            await getattr(queue, operation)(session, *args, **kwargs)
        assert (await queue.stats(session)).live == before
    return caught.value


async def claimed(twin, queue, **options):
    """Enqueue a task and claim it."""
    async with twin.begin() as session:
        await queue.enqueue(session, **options)
        [claim] = await queue.claim(session, holder="w")
        return claim


# --- Payloads (B15 a, B16) ---------------------------------------------------------------------

NOT_JSON = [
    pytest.param("a\x00b", "NUL", id="NUL"),
    pytest.param({"a\x00b": 1}, "NUL", id="NUL in a key"),
    pytest.param("\ud800", "surrogate", id="surrogate"),
    pytest.param({"\ud800": 1}, "surrogate", id="surrogate in a key"),
    pytest.param(math.nan, "finite", id="NaN"),
    pytest.param(math.inf, "finite", id="inf"),
    pytest.param(-math.inf, "finite", id="-inf"),
    pytest.param(Decimal(1), "Decimal", id="Decimal"),
    pytest.param(datetime(2026, 1, 1, tzinfo=UTC), "datetime", id="datetime"),
    pytest.param(UUID(int=1), "UUID", id="UUID"),
    pytest.param(b"x", "bytes", id="bytes"),
    pytest.param({1}, "set", id="set"),
    pytest.param(10**5_000, "digits", id="5,001 digits"),
    pytest.param({1: 2}, "not text", id="whole number as key"),
]


@both_facades
@pytest.mark.parametrize(("value", "problem"), NOT_JSON)
async def test_payloads_that_cannot_be_stored_are_refused(twin, value, problem):
    """One typed error that names the place, before any SQL."""
    queue = builds(twin)
    for payload in (value, {"args": [0, value]}):
        error = await refused(
            twin, queue, "enqueue", "x", payload, error=InvalidPayload, match=problem
        )
        assert error.argument == "payload"
    assert twin.scalar("SELECT count(*) FROM tasks") == 0


@pytest.mark.parametrize(
    "payload",
    [
        pytest.param(10**400, id="401 digits"),
        pytest.param(-(10**639), id="640 digits"),
        pytest.param([0, -0.0, 1e-300, 5e-324, 0.1, 1.5e15, -2.5e-7], id="floats"),
        pytest.param(2**63 + 1, id="more than 64 bits"),
        pytest.param("\U0001f600\u2028\uffff\x7f\x01'\"\\ \\u0000", id="odd text"),
        pytest.param({"": {"\U0001f600": [[], {}]}}, id="odd keys"),
        pytest.param([[[[[[[[[[1]]]]]]]]]], id="nested"),
        pytest.param({"true": True, "null": None}, id="words"),
        pytest.param({"%s": "%(x)s", ":y": "$1", "{z}": "?"}, id="placeholders"),
    ],
)
async def test_what_is_accepted_reads_back_equal(twin, payload):
    """Every driver returns the very value, types included."""
    queue = builds(twin)
    async with twin.begin() as session:
        await queue.enqueue(session, payload=payload)
    async with twin.begin() as session:
        [claim] = await queue.claim(session, holder="w")
    assert claim.payload == payload
    # Types included: 1 is not True, and 1.0 is not 1; but zero has no sign, and keys no order.
    written, read = (json.dumps(v, sort_keys=True) for v in (payload, claim.payload))
    assert read.replace("-0.0", "0.0") == written.replace("-0.0", "0.0")


@pytest.mark.parametrize("many", [False, True], ids=["enqueue", "enqueue_many"])
@pytest.mark.parametrize(
    "number", [1e15, 1e16, 1e23, 6.02214076e23, 1.7976931348623157e308, -1e300]
)
async def test_large_floats_read_back_equal(twin, number, many):
    """They are sent as the whole numbers that they are: of 1e23 jsonb keeps another number."""
    queue = builds(twin)
    payload = {"args": [number, (number,)]}
    async with twin.begin() as session:
        if many:
            await queue.enqueue_many(session, [TaskSpec(payload=payload)])
        else:
            await queue.enqueue(session, payload=payload)
        [claim] = await queue.claim(session, holder="w")
        await queue.complete(session, claim, result=payload)
        task = await queue.get(session, id=claim.id)
    assert claim.payload == task.result == {"args": [number, [number]]}


async def test_tuples_are_lists(twin):
    """JSON has one kind of sequence."""
    queue = builds(twin)
    async with twin.begin() as session:
        await queue.enqueue(session, payload={"a": (1, (2,))})
        [claim] = await queue.claim(session, holder="w")
    assert claim.payload == {"a": [1, [2]]}


@pytest.mark.parametrize("character", ["x", "é", "😀"])
async def test_the_size_of_a_payload_is_limited(twin, character):
    """A mebibyte of encoded JSON is accepted, one byte more is not."""
    queue = builds(twin)
    size = len(character.encode())
    fits = "x" * ((MIB - 2) % size) + character * ((MIB - 2) // size)
    async with twin.begin() as session:
        await queue.enqueue(session, payload=fits)
    match = "1,048,577 bytes of JSON; the limit is 1,048,576"
    await refused(twin, queue, "enqueue", payload=fits + "x", error=InvalidPayload, match=match)


async def test_a_payload_in_itself_is_refused(twin):
    """It has no end; nothing is exhausted on the way."""
    queue = builds(twin)
    payload = []
    payload.extend([payload, payload])
    await refused(
        twin, queue, "enqueue", payload=payload, error=InvalidPayload, match="contains itself"
    )


# --- Results and errors are never in the way (B15 b, c, B16) -----------------------------------


class Raising:
    def __str__(self):
        raise ZeroDivisionError


@pytest.mark.parametrize(
    ("result", "stored"),
    [
        pytest.param({"x": "a\x00b"}, {"x": "a\ufffdb"}, id="NUL"),
        pytest.param({"a\x00b": 1}, {"a\ufffdb": 1}, id="NUL in a key"),
        pytest.param(["\ud800"], ["\ufffd"], id="surrogate"),
        pytest.param([math.nan, math.inf, -math.inf], ["nan", "inf", "-inf"], id="not finite"),
        pytest.param({"a": Decimal("1.50")}, {"a": "1.50"}, id="Decimal"),
        pytest.param(UUID(int=1), "00000000-0000-0000-0000-000000000001", id="UUID"),
        pytest.param(date(2026, 1, 2), "2026-01-02", id="date"),
        pytest.param(b"x", "b'x'", id="bytes"),
        pytest.param({1}, "{1}", id="set"),
        pytest.param(10**400, 10**400, id="401 digits"),
        pytest.param(10**5_000, "a number too long to store", id="5,001 digits"),
        pytest.param({1: 2}, {"1": 2}, id="whole number as key"),
        pytest.param(
            Raising(), "<Raising whose text raises ZeroDivisionError>", id="str() raises"
        ),
        pytest.param(None, None, id="nothing"),
    ],
)
@pytest.mark.parametrize("model", [Task, Logged])
async def test_results_are_cleaned(twin, model, result, stored):
    """Whatever a handler returns, the task ends on the first try, with a result that says it."""
    twin.create(Base.metadata)
    queue = twin.queue(model)
    if model is Task:
        queue = queue.scope(**SCOPE)
    claim = await claimed(twin, queue)
    async with twin.begin() as session:
        assert await queue.complete(session, claim, result=result)
    async with twin.begin() as session:
        task = await queue.get(session, id=claim.id)
        assert task.state == "done"
        assert task.result == stored
    if result is None:
        assert twin.scalar(f"SELECT result IS NULL FROM {model.__tablename__}")


@pytest.mark.parametrize("character", ["x", "é", "😀"])
async def test_the_size_of_a_result_is_limited(twin, character):
    """64 KiB of encoded JSON; more is a typed error before any SQL, and the task is still held."""
    queue = builds(twin)
    claim = await claimed(twin, queue)
    most = 64 << 10
    size = len(character.encode())
    fits = "x" * ((most - 2) % size) + character * ((most - 2) // size)
    match = "65,537 bytes of JSON; the limit is 65,536"
    await refused(
        twin, queue, "complete", claim, result=fits + "x", error=InvalidPayload, match=match
    )
    async with twin.begin() as session:
        assert await queue.complete(session, claim, result=fits)


@both_facades
async def test_a_result_that_is_too_large_holds_up_the_batch(twin):
    """It is named, nothing is written, and without it the batch goes through."""
    queue = builds(twin)
    claims = [await claimed(twin, queue) for _ in range(3)]
    results = [1, "x" * (64 << 10), 3]
    await refused(
        twin,
        queue,
        "complete_many",
        claims,
        results=results,
        error=InvalidPayload,
        match=r"results\[1\].* the limit is 65,536",
    )
    assert twin.sql("SELECT DISTINCT state FROM tasks") == [("claimed",)]
    async with twin.begin() as session:
        assert all(await queue.complete_many(session, claims, results=[1, "elsewhere", 3]))


@pytest.mark.parametrize("model", [Task, Logged])
@pytest.mark.parametrize("final", [True, False])
@pytest.mark.parametrize(
    ("error", "stored"),
    [
        pytest.param(Exception("a\x00b"), "Exception: a\ufffdb", id="NUL"),
        pytest.param("a\x00b", "a\ufffdb", id="NUL in text"),
        pytest.param(ValueError("\ud800"), "ValueError: \ufffd", id="surrogate"),
        pytest.param("é" * 1_000, "é" * 1_000, id="1,000 characters"),
        pytest.param("é" * 1_001, "é" * 999 + "…", id="1,001 characters"),
        pytest.param("", "", id="nothing"),
        pytest.param(KeyError("k"), "KeyError: 'k'", id="exception"),
    ],
)
async def test_errors_are_cleaned_and_cut(twin, model, final, error, stored):
    """A failure is recorded on the first try, whatever the error says."""
    twin.create(Base.metadata)
    queue = twin.queue(model)
    if model is Task:
        queue = queue.scope(**SCOPE)
    claim = await claimed(twin, queue)
    async with twin.begin() as session:
        written = await queue.fail(session, claim, error=error, final=final)
        assert written.state == ("failed" if final else "queued")
    assert twin.scalar(f"SELECT error FROM {model.__tablename__}") == stored


async def test_an_event_keeps_more_of_an_error(twin):
    """The row is cut at 1,000 characters, the event at 10,000."""
    twin.create(Base.metadata)
    queue = twin.queue(Logged)
    claim = await claimed(twin, queue)
    async with twin.begin() as session:
        await queue.fail(session, claim, error="語\x00" * 10_000)
    assert twin.scalar("SELECT length(error) FROM logged") == 1_000
    detail = "SELECT length(detail->>'error') FROM logged_events WHERE type = 'retried'"
    assert twin.scalar(detail) == 10_000


async def test_the_reason_of_a_cancellation_is_cleaned_and_cut(twin):
    """What a person writes is stored as an error's text is."""
    queue = builds(twin)
    async with twin.begin() as session:
        sent = await queue.enqueue(session)
        assert await queue.cancel(session, id=sent.id, reason="a\x00" + "x" * 2_000)
    stored = twin.scalar("SELECT error FROM tasks")
    assert len(stored) == 1_000
    assert stored.startswith("a\ufffdx")


# --- Texts, numbers and times of enqueue -------------------------------------------------------


@pytest.mark.parametrize("argument", ["key", "unique_key"])
@pytest.mark.parametrize("character", ["x", "é", "😀"])
async def test_keys_are_limited_in_characters(twin, argument, character):
    """128 characters, however many bytes they take."""
    queue = builds(twin)
    async with twin.begin() as session:
        await queue.enqueue(session, **{argument: f" {character * 128} "})
    assert twin.scalar(f"SELECT {argument} FROM tasks") == character * 128
    match = "has 129 characters; the limit is 128"
    await refused(twin, queue, "enqueue", match=match, **{argument: character * 129})


@pytest.mark.parametrize("argument", ["name", "actor"])
@pytest.mark.parametrize("character", ["x", "é", "😀"])
async def test_names_are_limited_in_bytes(twin, argument, character):
    """100 bytes, however few characters they are."""
    queue = builds(twin)
    most = character * (100 // len(character.encode()))
    async with twin.begin() as session:
        await queue.enqueue(session, **{argument: most})
    await refused(twin, queue, "enqueue", match="the limit is 100", **{argument: most + "x"})


@pytest.mark.parametrize("character", ["x", "é", "😀"])
async def test_holders_are_limited_in_bytes(twin, character):
    """The worker and the session alike."""
    queue = builds(twin)
    most = character * (100 // len(character.encode()))
    async with twin.begin() as session:
        await queue.enqueue(session)
        [claim] = await queue.claim(session, holder=Holder(most, most))
        assert claim.task.claimed_session == most
    for holder in (Holder(most + "x"), Holder("w", most + "x")):
        await refused(twin, queue, "claim", match="the limit is 100", holder=holder)


@both_facades
@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"name": None}, "must be text"),
        ({"name": 5}, "must be text"),
        ({"name": "a\x00"}, "NUL"),
        ({"name": "\ud800"}, "surrogate"),
        ({"key": ""}, "must not be empty"),
        ({"key": "  "}, "must not be empty"),
        ({"key": 5}, "must be text"),
        ({"key": "a\x00"}, "NUL"),
        ({"unique_key": ""}, "must not be empty"),
        ({"unique_key": b"x"}, "must be text"),
        ({"actor": ""}, "must not be empty"),
        ({"actor": 5}, "must be text"),
        ({"actor": "\udfff"}, "surrogate"),
        ({"priority": 32_768}, "must lie between"),
        ({"priority": -32_769}, "must lie between"),
        ({"priority": 1.0}, "whole number"),
        ({"priority": True}, "whole number"),
        ({"priority": None}, "whole number"),
        ({"max_attempts": 0}, "must lie between"),
        ({"max_attempts": -1}, "must lie between"),
        ({"max_attempts": 2**31}, "must lie between"),
        ({"max_attempts": True}, "whole number"),
        ({"max_attempts": "many"}, "whole number"),
        ({"run_at": datetime(2026, 1, 1)}, "no time zone"),  # noqa: DTZ001 - it is the point
        ({"run_at": "2026-01-01"}, "must be a datetime"),
        ({"run_at": date(2026, 1, 1)}, "must be a datetime"),
        ({"run_at": datetime.max.replace(tzinfo=UTC)}, "must lie between"),
        ({"delay": 5}, "must be a timedelta"),
        ({"delay": timedelta(seconds=-1)}, "must lie between"),
        ({"delay": timedelta.max}, "must lie between"),
        (
            {"delay": timedelta(0), "run_at": datetime(2026, 1, 1, tzinfo=UTC)},
            "together with run_at=",
        ),
        ({"if_exists": "replace"}, "must be 'return' or 'raise'"),
        ({"id": "x"}, "takes UUID, not str"),
        ({"id": 5}, "takes UUID, not int"),
        ({"id": (uuid4(), uuid4())}, "id="),
    ],
)
async def test_bad_arguments_of_enqueue(twin, given, problem):
    """Each is one typed error that names the argument, before any SQL."""
    queue = builds(twin)
    error = await refused(twin, queue, "enqueue", match=problem, **given)
    assert error.argument in {*given, "delay"}
    assert twin.scalar("SELECT count(*) FROM tasks") == 0


@both_facades
@pytest.mark.parametrize("values", [5, "user_id", ["user_id"], [("reviewer", "x")]])
async def test_values_must_be_a_mapping(twin, values):
    """Anything else is a typed error, too."""
    queue = builds(twin)
    await refused(twin, queue, "enqueue", values=values)


@both_facades
@pytest.mark.parametrize(
    "id_", ["x", 5.0, True, (7,), (7, 1, 2), (7, "x"), (7, True), 2**31, (7, -(2**31) - 1), (8, 1)]
)
@pytest.mark.parametrize("operation", ["enqueue", "cancel", "get"])
async def test_bad_composite_ids(twin, id_, operation):
    """Of the wrong length, type or size, or of another scope: refused before any SQL."""
    twin.create(Base.metadata)
    queue = twin.queue(Pair).scope(tenant_id=7)
    await refused(twin, queue, operation, id=id_)


@both_facades
@pytest.mark.parametrize("value", [None, "a\x00", "\ud800"])
async def test_bad_scope_values(twin, value):
    """A scope column is never NULL, and its text must be storable."""
    builds(twin)
    with pytest.raises(InvalidArgument, match="project_hash="):
        twin.queue(Task).scope(project_hash=value)
    with pytest.raises(InvalidArgument, match="no such scope column"):
        twin.queue(Task).scope(nothing=1)


@both_facades
@pytest.mark.parametrize(
    ("model", "scope"),
    [(Task, {"project_hash": 5}), (Pair, {"tenant_id": "7"}), (Board, {"team_id": 2**31})],
)
async def test_scope_values_of_the_wrong_type(twin, model, scope):
    """A value that the column cannot hold is refused like an id of the wrong type."""
    twin.create(Base.metadata)
    with pytest.raises(InvalidArgument):
        twin.queue(model).scope(**scope)


@both_facades
@pytest.mark.parametrize("name", ["", " ", "x" * 101, "é" * 51, "a\x00", None, 5])
async def test_bad_queue_names(twin, name):
    """A queue's name is 1 to 100 bytes of text."""
    with pytest.raises(InvalidArgument, match="name="):
        twin.queue(Task, name)


@both_facades
@pytest.mark.parametrize(
    ("options", "argument"), [({"notify": "always"}, "notify"), ({"notify": None}, "notify")]
)
async def test_bad_settings(twin, options, argument):
    """Settings are checked where the queue is made."""
    with pytest.raises(InvalidArgument) as caught:
        twin.queue(Task, **options)
    assert caught.value.argument == argument


@both_facades
@pytest.mark.parametrize("model", [object, "Task", None, Base])
async def test_other_classes_carry_no_queue(twin, model):
    """What is not a mapped task class is named in the error."""
    with pytest.raises(UnsupportedModel):
        twin.queue(model)


# --- Which task, and by what right -------------------------------------------------------------


@both_facades
@pytest.mark.parametrize("operation", ["heartbeat", "complete", "fail", "release", "snooze"])
async def test_bad_combinations_of_claim_and_name(twin, operation):
    """A claim alone, or one name with a holder; everything else is refused before any SQL."""
    queue = builds(twin)
    claim = await claimed(twin, queue, key="k")
    more = {"delay": timedelta(0)} if operation == "snooze" else {}
    before = twin.sql("SELECT * FROM tasks")
    for args, kwargs in [
        ((), {}),
        ((), {"holder": "w"}),
        ((), {"id": claim.id}),
        ((), {"key": "k"}),
        ((), {"id": claim.id, "key": "k", "holder": "w"}),
        ((claim,), {"id": claim.id}),
        ((claim,), {"key": "k"}),
        ((claim,), {"holder": "w"}),
        ((claim.id,), {}),
        ((claim.task,), {}),
        (([claim],), {}),
        (("k",), {"holder": "w"}),
        ((), {"key": "k", "holder": ""}),
        ((), {"key": "k", "holder": 5}),
        ((), {"key": "a\x00", "holder": "w"}),
        ((), {"key": "x" * 129, "holder": "w"}),
        ((), {"key": 5, "holder": "w"}),
        ((), {"id": "k", "holder": "w"}),
    ]:
        await refused(twin, queue, operation, *args, **kwargs, **more)
    assert twin.sql("SELECT * FROM tasks") == before


@both_facades
@pytest.mark.parametrize("operation", ["claim_task", "get", "cancel", "retry"])
async def test_a_task_is_named_once(twin, operation):
    """By id or by key, not by both and not by neither."""
    queue = builds(twin)
    more = {"holder": "w"} if operation == "claim_task" else {}
    for kwargs, problem in [
        ({}, "name it by id= or by key="),
        ({"id": uuid4(), "key": "k"}, "cannot be given together with id="),
    ]:
        await refused(twin, queue, operation, match=problem, **kwargs, **more)


@pytest.mark.parametrize("operation", ["heartbeat", "complete", "fail", "release", "snooze"])
@pytest.mark.parametrize("elsewhere", ["queue", "scope"])
async def test_a_claim_belongs_to_its_queue(twin, operation, elsewhere):
    """A claim of another queue or scope is refused, not looked for."""
    queue = builds(twin)
    claim = await claimed(twin, queue)
    other = (
        queue.scope(role="tester")
        if elsewhere == "scope"
        else twin.queue(Task, "tests").scope(**SCOPE)
    )
    more = {"delay": timedelta(0)} if operation == "snooze" else {}
    await refused(twin, other, operation, claim, match="the claim is of queue 'builds'", **more)


async def test_an_unscoped_queue_takes_any_claim(twin):
    """A claim carries its scope: a queue without one may end it."""
    claim = await claimed(twin, builds(twin))
    queue = twin.queue(Task, "builds")
    async with twin.begin() as session:
        assert await queue.heartbeat(session, claim)
        assert await queue.complete(session, claim)


@both_facades
async def test_bad_combinations_of_force(twin):
    """Force takes a name and perhaps an actor; an actor goes with force only."""
    queue = builds(twin)
    claim = await claimed(twin, queue, key="k")
    for args, kwargs in [
        ((claim,), {"force": True}),
        ((), {"key": "k", "holder": "w", "force": True}),
        ((claim,), {"actor": "x"}),
        ((), {"key": "k", "holder": "w", "actor": "x"}),
        ((), {"force": True}),
        ((), {"key": "k", "force": True, "actor": ""}),
        ((claim,), {"on_lost": "ignore"}),
    ]:
        await refused(twin, queue, "complete", *args, **kwargs)


@both_facades
@pytest.mark.parametrize("delay", [timedelta(seconds=-1), timedelta.max, 5, None])
async def test_bad_delays_of_snooze(twin, delay):
    """Negative, endless, or no timedelta."""
    queue = builds(twin)
    claim = await claimed(twin, queue)
    await refused(twin, queue, "snooze", claim, match="delay=", delay=delay)


@both_facades
@pytest.mark.parametrize(
    ("given", "argument"),
    [
        ({"limit": 0}, "limit"),
        ({"limit": True}, "limit"),
        ({"limit": 2.0}, "limit"),
        ({"stale_after": 300}, "stale_after"),
        ({"stale_after": timedelta(seconds=-1)}, "stale_after"),
    ],
)
async def test_bad_arguments_of_reclaim(twin, given, argument):
    """A sweep is checked like everything else."""
    queue = builds(twin)
    error = await refused(twin, queue, "reclaim", **given)
    assert error.argument == argument


@both_facades
@pytest.mark.parametrize("wait", [timedelta(seconds=-1), timedelta.max, 5, None])
async def test_a_retry_policy_that_answers_nonsense(twin, wait):
    """A policy's wait is checked like an argument; the task is still held."""

    class Policy:
        def delay(self, attempt):
            return wait

    queue = builds(twin)
    claim = await claimed(twin, queue)
    await refused(twin, queue, "fail", claim, match="retry=", retry=Policy())
    async with twin.begin() as session:
        assert await queue.complete(session, claim)


async def test_the_limits_are_the_queues_own(twin):
    """`Limits` narrows what a queue takes."""
    limits = Limits(key=3, name=6, payload=10, result=10, error=5)
    queue = builds(twin, limits=limits)
    await refused(twin, queue, "enqueue", match="limit is 3", key="abcd")
    await refused(twin, queue, "enqueue", "abcdefg", match="limit is 6")
    await refused(twin, queue, "enqueue", payload="x" * 9, match="limit is 10")
    async with twin.begin() as session:
        await queue.enqueue(session, "abcdef", "x" * 8, key="abc")
        [claim] = await queue.claim(session, holder="abcdef")
        await queue.fail(session, claim, error="abcdefg")
    assert twin.scalar("SELECT error FROM tasks") == "abcd…"
