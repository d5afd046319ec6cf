"""Every argument of every method, with what it does not take: one typed error before any SQL."""

from __future__ import annotations

import inspect
import math
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from uuid import uuid4

import pytest

from sqla_taskqueue import Fixed, Holder, InvalidArgument, Queue, TaskSpec, TaskState
from tests.behaviour.hosts import (
    Base,
    Board,
    Pair,
    Task,
    committed,
    everything,
    queue_of,
    send_and_take,
)
from tests.behaviour.test_sessions import recording
from tests.strange import Array, Fruit, Level

# What is refused before any SQL is refused alike by all drivers: one of each facade will do.
both_facades = pytest.mark.parametrize("driver", ["psycopg2", "asyncpg"], indirect=True)
SECOND = timedelta(seconds=1)


class Raising:
    def __repr__(self):
        raise ZeroDivisionError

    __str__ = __repr__


# --- What no argument of a kind takes ----------------------------------------------------------

JUNK = [object(), Array(), Raising(), int, 1j, b"x"]
NO_TEXT = [*JUNK, 5, ["x"], "a\x00b", "\ud800"]
NO_NAME = [*NO_TEXT, "x" * 101, "é" * 51, "x" * 50_000_000]
NO_KEY = [*NO_TEXT, "", " \t\n", "x" * 129, "é" * 129]
NO_NUMBER = [*JUNK, "5", 5.0, math.nan, True, Decimal(5), None]
NO_DURATION = [*JUNK, 5, 1.5, "1h", math.nan, date(2030, 1, 1)]
NO_WAIT = [*NO_DURATION, -SECOND, timedelta(36_501), timedelta.max, timedelta.min]
NO_FLAG = [*JUNK, 0, 1, "", "false", None]
NO_CHOICE = [*JUNK, "", "RAISE", None, True, ["raise"]]
NO_LIST = [*JUNK, 5, "ab", {"a": 1}, {1, 2}, TaskSpec()]
NO_STATE = [*JUNK, "ready", "", "DONE", 5, [], [None], ["done", "ready"], {1}]
NO_ID = [*JUNK, 0, "x", str(uuid4()), True, 2**63, (), (uuid4(),), (uuid4(), uuid4())]
NO_POLICY = [*JUNK, 0, "", [], SECOND, Fixed, TaskSpec()]
NO_HOLDER = [
    *(junk for junk in NO_NAME if not isinstance(junk, str)),
    *("", "a\x00b", "\ud800", "é" * 51),
    *(Holder("w", junk) for junk in [*NO_NAME, None]),
    *(Holder(junk) for junk in [*NO_NAME, None, ""]),
]
NO_MOMENT = [
    *(*JUNK, "2030-01-01", 1_700_000_000, date(2030, 1, 1)),
    datetime(2030, 1, 1),  # noqa: DTZ001 - it is the point
    datetime(1899, 12, 31, tzinfo=UTC),
    datetime.min.replace(tzinfo=UTC),
    datetime.max.replace(tzinfo=UTC),
    datetime.min.replace(tzinfo=timezone(timedelta(hours=14))),
    datetime.max.replace(tzinfo=timezone(timedelta(hours=-14))),
]
NO_VALUES = [
    *(*JUNK, 0, "", [], ["title"], [("title", "x")]),
    *({name: "x"} for name in ("nothing", "state", "lease_token", "id", "team_id", "metadata")),
    *({5: "x"}, {None: "x"}, {"title": "a\x00"}, {"description": "\ud800"}),
    *({"meta": meta} for meta in (math.nan, {"a": ["\x00"]}, {1: 2}, object())),
]
NO_JSON = [*JUNK, math.nan, -math.inf, "\x00", {"a": "\ud800"}, {1: 2}, 10**640, {1}, Decimal(1)]

BAD = {
    "name": NO_NAME,
    "payload": [*NO_JSON, "x" * (1 << 20), [[[{"a": (1, 2, b"x")}]]]],
    "values": NO_VALUES,
    "id": NO_ID,
    "key": NO_KEY,
    "unique_key": NO_KEY,
    "priority": [*NO_NUMBER, 2**15, -(2**15) - 1, 10**5_000],
    "run_at": NO_MOMENT,
    "delay": NO_WAIT,
    "max_attempts": [*(one for one in NO_NUMBER if one is not None), 0, -1, 2**31, "Default"],
    "actor": [*NO_NAME, ""],
    "if_exists": NO_CHOICE,
    "specs": [*NO_LIST, None, [5], [TaskSpec(), None], [TaskSpec(key="")], [TaskSpec("a\x00")]],
    "holder": NO_HOLDER,
    "limit": [*NO_NUMBER, 0, -1, 10**5_000],
    "find.limit": NO_NUMBER,
    "reclaim.limit": [*(one for one in NO_NUMBER if one is not None), 0, -1, 2**31],
    "lease": NO_DURATION,
    "take_expired": [flag for flag in NO_FLAG if flag is not None],
    "claim": [*JUNK, 5, "k", uuid4(), [], TaskSpec()],
    "result": ["x" * (64 << 10), list(range(100_000))],
    "force": NO_FLAG,
    "on_lost": NO_CHOICE,
    "error": [],
    "reason": [],
    "retry": NO_POLICY,
    "final": NO_FLAG,
    "stale_after": NO_WAIT,
    "state": NO_STATE,
    "prune.state": [*NO_STATE, "queued", [TaskState.DONE, TaskState.CLAIMED]],
    "created_by": [*NO_NAME, ""],
    "after": NO_ID,
    "content": NO_FLAG,
    "claims": [*NO_LIST, None, [5], [None]],
    "results": [*NO_LIST, [], ["a", "b"], ["x" * (64 << 10)]],
    "errors": [*NO_LIST, None, [], ["a", "b"]],
    "older_than": [*NO_WAIT, None],
}
"""By argument, or by method and argument, what is refused."""

HELD = ("heartbeat", "complete", "fail", "release", "snooze")
"""Methods that take a claim, or a name and a holder."""
NAMED = ("claim_task", "get", "cancel", "retry", "history")

METHODS = {
    name: list(inspect.signature(method).parameters)[2:]
    for name, method in inspect.getmembers(Queue, inspect.isfunction)
    if not name.startswith("_") and name != "scope"
}
"""The public methods and their arguments, without `self` and `session`."""


def others(method, argument, claim):
    """Return the arguments beside the bad one: those that make the call a good one."""
    beside = {
        "enqueue_many": {"specs": [TaskSpec()]},
        "claim": {"holder": "w"},
        "claim_task": {"holder": "w"},
        "snooze": {"delay": SECOND},
        "heartbeat_many": {"claims": [claim]},
        "complete_many": {"claims": [claim]},
        "fail_many": {"claims": [claim], "errors": ["x"]},
        "prune": {"older_than": SECOND},
    }.get(method, {})
    if (method, argument) == ("complete", "actor"):
        beside |= {"key": "k", "force": True}
    elif method in HELD:
        named = {"id": {"holder": "w"}, "key": {"holder": "w"}, "holder": {"key": "k"}}
        beside |= named.get(argument, {"claim": claim})
    elif method in NAMED and argument not in ("id", "key"):
        beside |= {"key": "k"}
    return {name: value for name, value in beside.items() if name != argument}


@both_facades
@pytest.mark.parametrize(
    ("method", "argument"),
    [(method, argument) for method, arguments in METHODS.items() for argument in arguments],
)
async def test_every_argument_is_checked_before_any_sql(twin, method, argument):
    """A typed error that names the argument and is short; the caller's transaction goes on.

    An argument that is new has no values here yet, and fails.
    """
    twin.create(Base.metadata)
    queue = queue_of(twin, Board)
    claim = await send_and_take(twin, queue, "w", key="k")
    before = everything(twin)
    async with twin.begin() as session:
        await queue.enqueue(session, "already there")
        for value in BAD.get(f"{method}.{argument}", BAD[argument]):
            given = {**others(method, argument, claim), argument: value}
            with recording(twin.engine) as sent, pytest.raises(InvalidArgument) as caught:
                await getattr(queue, method)(session, **given)
            assert not sent
            assert caught.value.argument.startswith(argument)
            assert str(caught.value).startswith(argument)
            assert len(str(caught.value)) < 500
    assert len(everything(twin)) == len(before) + 2  # the task and its event
    assert set(before) < set(everything(twin))


@both_facades
@pytest.mark.parametrize("field", inspect.signature(TaskSpec).parameters)
async def test_a_batch_names_the_bad_spec(twin, field):
    """The error says which spec and what of it; nothing is inserted, not even what is before it."""
    twin.create(Base.metadata)
    queue = queue_of(twin, Board)
    async with twin.begin() as session:
        for value in BAD[field]:
            specs = [TaskSpec(), TaskSpec(key="k"), TaskSpec(**{field: value})]
            with recording(twin.engine) as sent, pytest.raises(InvalidArgument) as caught:
                await queue.enqueue_many(session, iter(specs))
            assert not sent
            assert str(caught.value).startswith(f"specs[2].{field}")
            assert caught.value.argument.startswith(f"specs[2].{field}")
    assert twin.scalar("SELECT count(*) FROM board") == 0


@both_facades
@pytest.mark.parametrize("method", ["heartbeat", "complete", "fail", "release", "complete_many"])
async def test_a_claim_made_by_hand_needs_a_proper_lease(twin, method):
    """Such as one that was stored as JSON: a token that is text, a holder that is a name."""
    twin.create(Base.metadata)
    queue = queue_of(twin, Task)
    claim = await send_and_take(twin, queue)
    async with twin.begin() as session:
        for wrong in ({"token": str(claim.lease.token)}, {"token": None}, {"holder": "w1"}):
            bad = replace(claim, lease=replace(claim.lease, **wrong))
            given = [bad] if method.endswith("many") else bad
            with recording(twin.engine) as sent, pytest.raises(InvalidArgument, match="UUID"):
                await getattr(queue, method)(session, given)
            assert not sent
        assert await queue.complete(session, claim)


@both_facades
async def test_settings_are_checked_where_the_queue_is_made(twin):
    """Each is a typed error at once, not at the first call."""
    for argument, values in {
        "name": [*NO_NAME, "", " ", None],
        "limits": [*JUNK, 0, {}, SECOND],
        "retry": NO_POLICY,
        "notify": NO_CHOICE,
    }.items():
        for value in values:
            with pytest.raises(InvalidArgument) as caught:
                twin.queue(Task, **{argument: value})
            assert caught.value.argument == argument


@both_facades
async def test_scopes_are_checked_where_they_are_bound(twin):
    """Values that the column does not take, that no index holds, and unknown names."""
    for model, scopes in {
        Board: [{"team_id": team} for team in (*NO_NUMBER, 2**31, -(2**31) - 1)],
        Task: [{"role": role} for role in (*NO_TEXT, None, "x" * 501, "é" * 251)],
        Pair: [{"nothing": 1}, {"id": 1}, {"queue": "x"}, {"tenant": 1}],
    }.items():
        for scope in scopes:
            with pytest.raises(InvalidArgument) as caught:
                twin.queue(model).scope(**scope)
            assert caught.value.argument in scope


# --- Unusual values that are accepted ----------------------------------------------------------


async def test_members_of_enums_count_as_their_values(twin):
    """Every text and number may be one, also of an enum whose `str()` is the member's name."""
    twin.create(Base.metadata)
    apple, high = Fruit.APPLE, Level.HIGH
    queue = twin.queue(Task, apple).scope(project_hash=apple, role=apple)
    spec = TaskSpec(apple, {apple: [apple, high]}, priority=high, max_attempts=high)
    async with twin.begin() as session:
        for key in (apple, "pear"):
            one = replace(spec, key=key, unique_key=key)
            fields = {name: getattr(one, name) for name in ("key", "unique_key", "priority")}
            if key is apple:
                await queue.enqueue(session, apple, one.payload, actor=apple, **fields)
            else:
                await queue.enqueue_many(session, [one], actor=apple)
        assert len(await queue.find(session, name=apple, created_by=apple, limit=high)) == 2
        claims = await queue.claim(session, holder=Holder(apple, apple), limit=high)
        assert await queue.heartbeat(session, key=apple, holder=Holder(apple, apple))
        assert await queue.cancel(session, key=apple, reason=apple, actor=apple)
    assert [(type(claim.key), claim.payload) for claim in claims] == [
        (str, {"apple": ["apple", 3]})
    ] * 2
    columns = "queue, project_hash, role, name, created_by, claimed_by, claimed_session"
    assert twin.sql(f"SELECT DISTINCT {columns} FROM tasks") == [("apple",) * 7]
    assert twin.sql("SELECT DISTINCT priority FROM tasks") == [(3,)]
    rows = twin.sql("SELECT key, unique_key, error FROM tasks ORDER BY key")
    assert rows == [("apple", "apple", "apple"), ("pear", "pear", None)]


@pytest.mark.parametrize(
    "offset",
    [
        timedelta(hours=14),
        timedelta(hours=23, minutes=59),
        -timedelta(hours=23, minutes=59),
        timedelta(hours=1, seconds=7, microseconds=3),
    ],
    ids=str,
)
async def test_a_time_may_have_any_offset(twin, offset):
    """Also one that PostgreSQL or a driver does not know: the time is what counts."""
    twin.create(Base.metadata)
    queue = queue_of(twin, Task)
    moment = datetime(2030, 1, 2, 3, 4, 5, 6, tzinfo=timezone(offset))
    async with twin.begin() as session:
        await queue.enqueue(session, run_at=moment)
        await queue.enqueue_many(session, [TaskSpec(run_at=moment)])
    assert twin.sql("SELECT run_at FROM tasks") == [(moment,)] * 2


async def test_the_longest_scope_and_keys_fit_into_every_index(twin):
    """Texts of characters that do not compress, each as long as it may be."""
    twin.create(Base.metadata)
    text = "".join(chr(0x4E00 + 97 * n % 20_000) for n in range(1_000))
    scope = {"project_hash": text[:166], "role": text[166:332]}
    queue = twin.queue(Task, text[:33]).scope(**scope)
    async with twin.begin() as session:
        await queue.enqueue(session, text[:33], key=text[:128], unique_key=text[100:228])
        [claim] = await queue.claim(session, holder=Holder(text[:33], text[:33]))
        assert claim.scope == scope
    assert (await committed(twin, queue.get, key=text[:128])).role == scope["role"]
