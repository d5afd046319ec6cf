"""The turn's statements: they write what the queue's methods write, and claim in order."""

from __future__ import annotations

import asyncio
import enum
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from itertools import count
from typing import Any, NamedTuple
from uuid import uuid4

import pytest
import pytest_asyncio
from sqlalchemy import Enum, Text, func, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from sqla_taskqueue import Cancel, Fixed, Holder, Queue, Retry, Snooze, TaskEventMixin, TaskMixin
from sqla_taskqueue import UuidId as Uuids
from sqla_taskqueue._drivers import sqlstate
from sqla_taskqueue.worker._jobs import Job
from sqla_taskqueue.worker._lines import line_to
from sqla_taskqueue.worker._outcomes import directed, failed, outcome_of, released
from sqla_taskqueue.worker._sources import Sources
from sqla_taskqueue.worker._turn import Turn
from tests.behaviour.hosts import Base as Shared
from tests.behaviour.hosts import Board, Logged, Pair, Task
from tests.plans.explain import WORST
from tests.plans.hosts import Audited, Cell, Grid, Word
from tests.plans.hosts import Base as Further
from tests.surroundings.application import application

HOUR = timedelta(hours=1)
LEASE = timedelta(minutes=5)
RETRY = Fixed(HOUR)
numbers = count(10**6)


class Base(DeclarativeBase):
    pass


class Versioned(Uuids, TaskMixin, Base):
    """With a version, and columns that are kept up to date in every way there is."""

    __tablename__ = "versioned"
    version: Mapped[int] = mapped_column(nullable=False, onupdate=text("version + 1"))
    by_database: Mapped[datetime | None] = mapped_column(onupdate=func.statement_timestamp())
    by_function: Mapped[str | None] = mapped_column(onupdate=lambda: "function")
    by_context: Mapped[str | None] = mapped_column(onupdate=lambda context: "context")
    by_value: Mapped[str | None] = mapped_column(onupdate="value")
    __mapper_args__ = {"version_id_col": version}  # noqa: RUF012


class Kind(enum.Enum):
    """What Python cannot put in order."""

    LARGE = "large"
    SMALL = "small"


class Sorted(TaskMixin, Base):
    """With a part of the key that only the database can put in order."""

    __tablename__ = "sorted"
    kind: Mapped[Kind] = mapped_column(Enum(Kind, name="kind"), primary_key=True)
    name_of_it: Mapped[str] = mapped_column(Text(collation="C"), primary_key=True)


class SortedEvent(TaskEventMixin, Base):
    __tablename__ = "sorted_events"
    __task_model__ = Sorted


PARTITIONED = application(partitioned=True)
TRANSLATED, OURS = application(schema="customer"), application(schema="ours")


class Host(NamedTuple):
    """A class, the scope of its tasks, and what its tables need."""

    model: Any
    scope: dict[str, Any]
    tables: Any = None
    schemas: dict[str, str] | None = None

    def __str__(self) -> str:
        of = {None: "", PARTITIONED: "-partitioned", OURS: "-translated"}[self.tables]
        return self.model.__name__ + of

    def new_id(self) -> Any:
        """Return a key, where the host has to make it."""
        number = next(numbers)
        return {
            Pair: (7, number),
            Grid: (number, 1),
            Word: f"{'Aa'[number % 2]}-{number}",
            Cell: (7, number, 1),
            Sorted: ([*Kind][number % 2], f"{number}"),
        }.get(self.model)

    def name(self, table: Any) -> str:
        """Return a table's name as it is in the database."""
        return f"ours.{table.name}" if self.schemas else table.name


HOSTS = [
    Host(Task, {"project_hash": "9f2c", "role": "coder"}),
    Host(Board, {"team_id": 7}),
    Host(Logged, {}),
    Host(Pair, {"tenant_id": 7}),
    Host(Grid, {}),
    Host(Word, {}),
    Host(Audited, {"tenant": "a"}),
    Host(Cell, {"tenant": 7}),
    Host(Versioned, {}),
    Host(Sorted, {}),
    Host(PARTITIONED.Task, {"tenant_id": 7}, PARTITIONED),
    Host(TRANSLATED.Task, {"tenant_id": 7}, OURS, {"customer": "ours"}),
]
TASK, LOGGED, WORD, CELL = HOSTS[0], HOSTS[2], HOSTS[5], HOSTS[7]
every_host = pytest.mark.parametrize("host", HOSTS, ids=str)
some_hosts = pytest.mark.parametrize("host", [TASK, LOGGED, WORD, CELL], ids=str)
both_forms = pytest.mark.parametrize("careful", [False, True], ids=["direct", "careful"])
pytestmark = pytest.mark.parametrize("driver", ["psycopg", "psycopg2", "asyncpg"], indirect=True)


class Out(Exception):
    """What a handler raises."""


# --- A stage -----------------------------------------------------------------------------------


class LostAnswer(ConnectionError):
    """Nobody knows whether the work was done."""


class Deadlock(Exception):
    """What a driver says of a transaction that PostgreSQL has chosen to end."""

    sqlstate = "40P01"


class Watched:
    """The turn's connection, whose answers the test may lose.

    Attributes:
        states: The SQLSTATE of each piece of work, None where it went well.
        lose: When the answer to the next piece of work is lost: "before" it is done, or "after".
        deadlocks: How many more pieces of work end in one.
    """

    def __init__(self, line: Any) -> None:
        self._line = line
        self.states: list[str | None] = []
        self.lose: str | None = None
        self.deadlocks = 0

    @property
    def direct(self) -> bool:
        return self._line.direct

    async def run(self, work: Any, patience: float | None = None) -> Any:
        how, self.lose = self.lose, None
        if how == "before":
            raise LostAnswer
        if self.deadlocks:
            self.deadlocks -= 1
            raise DBAPIError("", {}, Deadlock())
        try:
            answer = await self._line.run(work, patience)
        except DBAPIError as error:
            self.states.append(sqlstate(error))
            raise
        self.states.append(None)
        if how == "after":
            raise LostAnswer
        return answer


class Stage:
    """A worker's turn on a connection of its own, and the queue of which it takes tasks."""

    def __init__(self, twin: Any, host: Host, name: str = "work") -> None:
        self.twin, self.host = twin, host
        options = {"execution_options": {"schema_translate_map": host.schemas}}
        self.engine = twin.new_engine(**(options if host.schemas else {}))
        self.queue = twin.queue(host.model, name, retry=RETRY).scope(**host.scope)
        core = Queue(host.model, name, retry=RETRY).scope(**host.scope)._core
        self.line = Watched(line_to(self.engine, "turn", lock_timeout="50ms"))
        self.sources = Sources([core], None, {name: LEASE})
        [self.source] = self.sources
        self.started: list[Job] = []
        self.settled: list[Job] = []
        self.lost: list[Job] = []
        self.turn = Turn(
            self.line,
            [self.sources],
            slots=50,
            holder=Holder("w1"),
            poll=0.05,
            start=self.started.extend,
            settled=self.settled.append,
            lost=self.lost.append,
        )
        self.table = host.name(host.model.__table__)

    async def close(self) -> None:
        await self.line._line.close()

    # --- Tasks ---------------------------------------------------------------------------------

    async def send(self, *names: str, **options: Any) -> None:
        """Enqueue tasks."""
        if self.host.model is Board:
            options["values"] = {"title": "a title"}
        async with self.twin.begin(self.engine) as session:
            for name in names:
                id_ = self.host.new_id()
                await self.queue.enqueue(session, name, {"n": 1}, id=id_, **options)

    def rows(self, queue: str = "work") -> dict[str, dict[str, Any]]:
        """Return the rows of a queue by the names of the tasks."""
        rows = self.twin.sql(f"SELECT * FROM {self.table} WHERE queue = '{queue}'")
        return {row["name"]: row for row in ({**as_dict(row)} for row in rows)}

    def states(self) -> dict[str, int]:
        """Return how many tasks are in each state."""
        return dict(self.twin.sql(f"SELECT state, count(*) FROM {self.table} GROUP BY 1"))

    def everything(self) -> list[Any]:
        """Return all rows as text, with the transactions that wrote them."""
        return self.twin.sql(f"SELECT t.xmin::text, t.*::text FROM {self.table} AS t ORDER BY 2")

    def history(self, queue: str = "work") -> list[dict[str, Any]]:
        """Return the events of a queue's tasks, and when their tasks were written."""
        model = self.source.model
        if model.events is None:
            return []
        same = " AND ".join(
            f'e."{of_event.name}" = t."{of_task.name}"'
            for of_event, of_task in zip(model.events.task_key, model.primary_key, strict=True)
        )
        rows = self.twin.sql(
            "SELECT t.name, e.type, e.actor, e.attempt, e.round, e.detail - 'traceback' AS detail,"
            " e.created_at = t.updated_at AS last"
            f" FROM {self.host.name(model.events.table)} AS e JOIN {self.table} AS t ON {same}"
            f" WHERE t.queue = '{queue}' ORDER BY t.name, e.created_at, e.id"
        )
        return [as_dict(row) for row in rows]

    # --- Turns ---------------------------------------------------------------------------------

    async def statement(
        self,
        outcomes: list[Any] | tuple[()] = (),
        look: Any = None,
        limit: int = 50,
        *,
        careful: bool = False,
    ) -> tuple[set[int], list[Job]]:
        """Send one statement; return the numbers of what it ended, and what it claimed."""
        await self.line._line.driver()
        self.turn._careful_until = 1.0 if careful else 0.0
        token = uuid4()
        source = None if look is None else self.source
        work = self.turn._work(
            self.source.model, outcomes, source, look, limit if look else 0, token, 0.0
        )
        ended, rows, _ = await self.line.run(work)
        return set(ended), [Job(self.source, row, token) for row in rows]

    async def claimed(self, *names: str) -> list[Job]:
        """Enqueue tasks and claim them, in the order of their names."""
        await self.send(*names)
        _, jobs = await self.statement(look="full")
        assert len(jobs) == len(names)
        return sorted(jobs, key=lambda job: job.name)

    @asynccontextmanager
    async def serving(self) -> Any:
        """Take turns beside the test."""
        task = asyncio.create_task(self.turn.serve())
        try:
            yield task
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    @asynccontextmanager
    async def locked(self, name: str) -> Any:
        """Lock a task in somebody else's transaction."""
        async with self.twin.begin(self.engine) as session:
            lock = text(f"SELECT 1 FROM {self.table} WHERE name = :name FOR UPDATE")
            await session.execute(lock, {"name": name})
            yield

    async def until(self, condition: Any) -> None:
        """Wait until something is true."""
        await self.twin.until(condition)


def as_dict(row: Any) -> dict[str, Any]:
    """Return a named tuple as a dictionary, also where a column has no name for it."""
    return dict(zip(row._fields, row, strict=True))


@pytest_asyncio.fixture
async def stage_of(twin):
    """Make stages, and close them at the end."""
    stages = []

    def make(host, *more, made=False):
        if not made:
            tables = [host.tables] if host.tables else [Shared, Further, Base]
            twin.create(*(base.metadata for base in tables))
            if host.tables:
                schema = "ours." if host.schemas else ""
                twin.sql(f"INSERT INTO {schema}tenants (id, paid) VALUES (7, 0)")
        stages.append(Stage(twin, host, *more))
        return stages[-1]

    yield make
    for stage in stages:
        await stage.close()


# --- What a turn writes ------------------------------------------------------------------------

RESULT = {"n": [1, 2.5, None, "é"]}
OUTCOMES = {
    "again at once": lambda job: directed(job, Retry(timedelta(0), error="busy")),
    "again": lambda job: directed(job, Retry(HOUR, error="busy")),
    "done": lambda job: outcome_of(job, None),
    "done with a result": lambda job: outcome_of(job, RESULT),
    "fails": lambda job: failed(job, Out("no")),
    "fails finally": lambda job: failed(job, Out("no")),
    "given back": released,
    "later": lambda job: directed(job, Snooze(HOUR)),
    "never": lambda job: directed(job, Cancel("not wanted")),
}


async def write(queue, session, claim):
    """Write the same with the queue's methods."""
    match claim.name:
        case "again at once" | "again" as how:
            delay = HOUR if how == "again" else timedelta(0)
            await queue.fail(session, claim, error="busy", retry=Fixed(delay))
        case "done":
            await queue.complete(session, claim)
        case "done with a result":
            await queue.complete(session, claim, result=RESULT)
        case "fails" | "fails finally":
            await queue.fail(session, claim, error=Out("no"))
        case "given back":
            assert await queue.release(session, claim)
        case "later":
            await queue.snooze(session, claim, delay=HOUR)
        case "never":
            await queue.cancel(session, id=claim.id, reason="not wanted", actor="w1")


def difference(before, after):
    """Return what became of a row, its times and tokens in words."""

    def in_words(name, value):
        at = after["updated_at"]
        if value == before[name]:
            return "as before"
        if name == "updated_at":
            return "now"
        if value is not None and value == before["lease_token"]:
            return "the token before"
        if isinstance(value, datetime) and value.tzinfo:
            return value - at
        return value

    keys = ("id", "row", "column", "kind", "name_of_it", "by_database", "touched")
    words = {name: in_words(name, value) for name, value in after.items() if name not in keys}
    for name in ("by_database", "touched"):
        if name in after:
            words[name] = after[name] is not None and after[name] != before[name]
    return words


@every_host
@both_forms
async def test_ends_are_written_as_the_queue_writes_them(stage_of, host, careful):
    """Every column, and every event, of everything that may become of a task."""
    stage, other = stage_of(host), stage_of(host, "other", made=True)
    for of in (stage, other):
        await of.send(*(how for how in OUTCOMES if how != "fails finally"))
        await of.send("fails finally", max_attempts=1)
    _, jobs = await stage.statement(look="full")
    async with stage.twin.begin(stage.engine) as session:
        claims = await other.queue.claim(session, holder="w1", limit=50)
    assert len(jobs) == len(claims) == len(OUTCOMES)
    before = {name: stage.rows(name) for name in ("work", "other")}

    # Some alone, the others while new tasks are claimed.
    jobs.sort(key=lambda job: job.name)
    outcomes = [OUTCOMES[job.name](job) for job in jobs]
    ended, claimed = await stage.statement(outcomes[:4], careful=careful)
    assert (ended, claimed) == ({1, 2, 3, 4}, [])
    await stage.send(*(f"beside {n}" for n in range(20)), priority=-1)
    ended, claimed = await stage.statement(outcomes[4:], "full", 15, careful=careful)
    assert ended == {*range(1, len(outcomes) - 3)}
    assert len(claimed) == 15
    assert all(job.name.startswith("beside") for job in claimed)
    async with stage.twin.begin(stage.engine) as session:
        for claim in claims:
            await write(other.queue, session, claim)

    after = {name: stage.rows(name) for name in ("work", "other")}
    for how in OUTCOMES:
        by_turn, by_queue = (
            difference(before[name][how], after[name][how]) for name in ("work", "other")
        )
        if how == "never":
            # Of a task that its holder ended, and not an operator.
            assert by_turn.pop("ended_token") == "the token before"
            assert by_queue.pop("ended_token") == "as before"
        assert by_turn == by_queue, how
        assert by_turn["state"] != "as before", how

    by_turn, by_queue = (
        [event for event in stage.history(name) if "beside" not in event["name"]]
        for name in ("work", "other")
    )
    for event in (*by_turn, *by_queue):
        (event["detail"] or {}).pop("via", None)
        event["detail"] = event["detail"] or None
    assert by_turn == by_queue
    expected = [*sorted([*OUTCOMES] * 3)] if stage.source.model.events else []
    assert [event["name"] for event in by_turn] == expected


@every_host
async def test_claims_are_written_as_the_queue_writes_them(stage_of, host):
    """Every column and event; what the claim says of the task is what its row says."""
    stage, other = stage_of(host), stage_of(host, "other", made=True)
    names = ["a", "b", "c"]
    for of in (stage, other):
        await of.send(*names, priority=3, max_attempts=7)
    before = {name: stage.rows(name) for name in ("work", "other")}
    _, jobs = await stage.statement(look="full")
    async with stage.twin.begin(stage.engine) as session:
        await other.queue.claim(session, holder="w1", limit=50, lease=LEASE)
    after = {name: stage.rows(name) for name in ("work", "other")}
    for name in names:
        for rows in after.values():
            assert rows[name].pop("lease_token") is not None
        by_turn, by_queue = (
            difference({**before[of][name], "lease_token": 0}, {**after[of][name]})
            for of in ("work", "other")
        )
        assert by_turn == by_queue
        assert (by_turn["state"], by_turn["attempt"]) == ("claimed", 1)
        assert by_turn["lease_expires_at"] == LEASE
    for job in jobs:
        row = after["work"][job.name]
        assert (job.priority, job.payload, job.attempt) == (3, row["payload"], 1)
        assert (job.max_attempts, job.expires_at) == (7, row["lease_expires_at"])
        assert job.position[0] == row["run_at"]
    by_turn, by_queue = stage.history("work"), stage.history("other")
    assert [event.pop("detail") for event in by_turn] == [
        event.pop("detail") for event in by_queue
    ]
    assert by_turn == by_queue
    assert len(by_turn) == (6 if stage.source.model.events else 0)


# --- The fence ---------------------------------------------------------------------------------


@every_host
@both_forms
async def test_another_token_writes_nothing(stage_of, host, careful):
    """Nor does the right one once the task was ended or queued again; the others are written."""
    stage = stage_of(host)
    jobs = await stage.claimed("a", "b", "c", "d")
    right = [outcome_of(job, None) for job in jobs]
    token = jobs[0].token
    jobs[0].token = uuid4()
    ended, _ = await stage.statement([right[0]], careful=careful)
    assert ended == set()
    jobs[1].token = uuid4()
    before, history = stage.rows(), stage.history()
    ended, _ = await stage.statement(right, careful=careful)
    assert ended == {3, 4}
    after = stage.rows()
    assert {name for name in after if after[name] != before[name]} == {"c", "d"}
    assert len(stage.history()) == len(history) + (2 if stage.source.model.events else 0)

    # Given back and claimed again, and ended, all by the same worker.
    jobs[0].token = jobs[1].token = token
    assert (await stage.statement([released(jobs[0])], careful=careful))[0] == {1}
    _, [again] = await stage.statement(look="full")
    assert again.key == jobs[0].key
    before = stage.everything()
    ended, _ = await stage.statement([right[0], *right[2:]], careful=careful)
    assert ended == set()
    assert stage.everything() == before


@some_hosts
async def test_a_locked_row_is_passed_over_or_fails_all(stage_of, host):
    """The careful form writes the others; the direct one waits a moment and then writes nothing."""
    stage = stage_of(host)
    jobs = await stage.claimed("a", "b", "c")
    await stage.send("next")
    outcomes = [outcome_of(job, None) for job in jobs]
    async with stage.locked("b"):
        before, history = stage.everything(), stage.history()
        with pytest.raises(DBAPIError) as raised:
            await stage.statement(outcomes, "full")
        assert sqlstate(raised.value) == "55P03"
        assert (stage.everything(), stage.history()) == (before, history)
        ended, claimed = await stage.statement(outcomes, "full", careful=True)
        assert (ended, [job.name for job in claimed]) == ({1, 3}, ["next"])
    assert {name: row["state"] for name, row in stage.rows().items()} == {
        "a": "done", "b": "claimed", "c": "done", "next": "claimed",
    }  # fmt: skip
    ended, _ = await stage.statement(outcomes, careful=True)
    assert ended == {2}


async def test_a_turn_that_met_a_locked_row_is_taken_again_with_care(stage_of):
    """The others' ends are written at once, new tasks are claimed, and the one when it is free."""
    stage = stage_of(LOGGED)
    async with stage.serving():
        await stage.send("a", "b", "c")
        stage.turn.wake()
        await stage.until(lambda: len(stage.started) == 3)
        async with stage.locked("b"):
            stage.line.states.clear()
            for job in stage.started:
                stage.turn.end(outcome_of(job, None))
                stage.turn.freed()
            await stage.until(lambda: len(stage.settled) == 2)
            assert stage.line.states.count("55P03") == 1
            await stage.send("next")
            stage.turn.wake()
            await stage.until(lambda: len(stage.started) == 4)
            # It is tried again, and rests in between.
            before = len(stage.line.states)
            await asyncio.sleep(0.35)
            assert stage.line.states.count("55P03") == 1
            assert stage.turn.unwritten == 1
            # Each try is a statement, and one that asks why; the rest are looks, 20 a second.
            assert len(stage.line.states) - before <= 30
        await stage.until(lambda: len(stage.settled) == 3)
    assert stage.states() == {"done": 3, "claimed": 1}
    assert stage.lost == []
    assert {job.name for job in stage.settled} == {"a", "b", "c"}


@pytest.mark.parametrize("times", [3, 100])
async def test_a_turn_that_ends_in_a_deadlock_is_taken_again(stage_of, times):
    """As a whole, up to ten times; then the supervisor is told. Nothing is done twice or reported."""
    stage = stage_of(LOGGED)
    jobs = await stage.claimed("a", "b")
    await stage.send("next")
    for job in jobs:
        stage.turn.end(outcome_of(job, None))
    stage.line.deadlocks = times
    if times == 100:
        async with asyncio.timeout(10):
            with pytest.raises(DBAPIError):
                await stage.turn.serve()
        assert stage.line.deadlocks == 100 - 11
        assert stage.states() == {"claimed": 2, "queued": 1}
        stage.line.deadlocks = 0
    async with stage.serving():
        await stage.until(lambda: len(stage.settled) == 2 and len(stage.started) == 1)
    assert stage.states() == {"done": 2, "claimed": 1}
    assert stage.lost == []
    completed = [event for event in stage.history() if event["type"] == "completed"]
    assert len(completed) == 2


# --- Claims ------------------------------------------------------------------------------------


def in_order(stage, condition="state = 'queued'"):
    """Return the names of tasks in the order in which they are to be claimed."""
    free = ", ".join(f'"{column.name}"' for column in stage.source.model.free_key)
    return [
        name
        for (name,) in stage.twin.sql(
            f"SELECT name FROM {stage.table} WHERE {condition} ORDER BY priority, run_at, {free}"
        )
    ]


async def fill(stage, each=8):
    """Enqueue tasks of three priorities: at different moments, and at one and the same."""
    for priority in (2, 0, 1):
        await stage.send(*(f"{priority} {n}" for n in range(each)), priority=priority)
    stage.twin.sql(
        f"UPDATE {stage.table} SET run_at = statement_timestamp() - interval '1 minute'"
        " WHERE name LIKE '% 1' OR name LIKE '% 3' OR name LIKE '% 5'"
    )


@every_host
@pytest.mark.parametrize("settings", [{}, WORST], ids=["usual", "worst"])
async def test_claims_come_in_order_and_never_more_than_the_limit(stage_of, host, settings):
    """By priority, time and key, from the beginning and from the floor, whatever the planner does."""
    stage = stage_of(host)
    await fill(stage)
    expected = in_order(stage)
    await stage.line.run(
        lambda connection: [
            connection.exec_driver_sql(f"SET {name} = {value}")
            for name, value in {**settings, "plan_cache_mode": "force_generic_plan"}.items()
        ]
    )
    taken: list[str] = []
    for number, limit in enumerate((1, 2, 5, 7, 50)):
        look = "floor" if number else "full"
        if host.model is Sorted:
            look = "full"  # which of two is further, only the database knows
        if number == 1:
            # A lane that a worker has not met is found by full looks alone.
            for priority in (0, 1, 2):
                stage.source.floor.lanes.setdefault(priority, before_all(stage))
        _, jobs = await stage.statement(look=look, limit=limit)
        assert len(jobs) == min(limit, len(expected) - len(taken))
        names = [name for name in expected if name in {job.name for job in jobs}]
        assert names == expected[len(taken) :][:limit]
        taken += names
        found = [(job.priority, job.position) for job in jobs]
        if host.model is not Sorted:
            stage.source.floor.learn(look, 0.0, 0.001, found, limit=limit)
    assert taken == expected
    assert stage.states() == {"claimed": len(expected)}


def before_all(stage):
    """Return a position before all tasks there are."""
    [key] = stage.twin.sql(
        f"SELECT {', '.join(quoted(stage))} FROM {stage.table} ORDER BY run_at LIMIT 1"
    )
    row = [*key, "", None, 1, None, None, None, 0, datetime.fromisoformat("2020-01-01T00:00Z")]
    if stage.host.model is Sorted:
        row[0] = Kind[row[0]]
    return Job(stage.source, row, uuid4()).position


def quoted(stage):
    """Return the columns of the primary key as SQL."""
    return [f't."{column.name}"'.replace("t.", "") for column in stage.source.model.primary_key]


@some_hosts
async def test_several_turns_claim_no_task_twice(stage_of, host):
    """Each takes its limit at most, and among them they take all."""
    stages = [stage_of(host)]
    stages += [stage_of(host, "work", made=True) for _ in range(3)]
    await fill(stages[0], each=20)
    taken: list[Any] = []

    async def take(stage):
        while True:
            _, jobs = await stage.statement(look="full", limit=7)
            assert len(jobs) <= 7
            taken.extend(job.key for job in jobs)
            if not jobs:
                return

    await asyncio.gather(*map(take, stages))
    assert len(taken) == len({*taken}) == 60
    assert stages[0].states() == {"claimed": 60}


@every_host
async def test_the_floor_passes_over_what_is_below(stage_of, host):
    """At the same moment by the key; a look back finds what is seconds below, a full one all."""
    stage = stage_of(host)
    await stage.send(*(f"{n}" for n in range(6)))
    stage.twin.sql(f"UPDATE {stage.table} SET run_at = statement_timestamp() - interval '1 s'")
    order = in_order(stage)
    rows = {row[0]: row[1:] for row in stage.twin.sql(
        f"SELECT name, {', '.join(quoted(stage))}, run_at FROM {stage.table}"
    )}  # fmt: skip
    *key, run_at = rows[order[2]]
    if host.model is Sorted:
        key[0] = Kind[key[0]]
    row = [*key, "", None, 1, None, None, None, 0, run_at]
    stage.source.floor.lanes[0] = Job(stage.source, row, uuid4()).position
    assert {job.name for job in (await stage.statement(look="floor"))[1]} == {*order[3:]}
    assert {job.name for job in (await stage.statement(look="back"))[1]} == {*order[:3]}
    await stage.send("late", run_at=run_at - timedelta(seconds=30))
    await stage.send("other lane", priority=1)
    for look, names in [("floor", set()), ("back", set()), ("full", {"late", "other lane"})]:
        assert {job.name for job in (await stage.statement(look=look))[1]} == names, look


async def test_what_is_not_due_is_not_claimed(stage_of):
    """In whichever look; nor what is of another queue or scope."""
    stage = stage_of(TASK)
    other = Stage(stage.twin, Host(Task, {"project_hash": "9f2c", "role": "tester"}))
    await other.send("of another scope")
    await stage_of(TASK, "other", made=True).send("of another queue")
    await stage.send("later", delay=HOUR)
    stage.source.floor.lanes[0] = before_all(stage)
    for look in ("full", "back", "floor"):
        assert (await stage.statement(look=look))[1] == []
    await stage.send("now")
    _, [job] = await stage.statement(look="floor")
    assert job.name == "now"


# --- Lost answers ------------------------------------------------------------------------------


async def serve_until_lost(stage):
    """Take turns until an answer is lost, as the supervisor does before it begins again."""
    async with asyncio.timeout(10):
        with pytest.raises(LostAnswer):
            await stage.turn.serve()


@some_hosts
@pytest.mark.parametrize("lose", ["before", "after"])
async def test_claims_whose_answer_was_lost_are_taken_over(stage_of, host, lose):
    """They are found by their token, and renewed at once; what was not claimed is claimed."""
    stage = stage_of(host)
    await stage.line._line.driver()
    await stage.send("a", "b", "c")
    stage.line.lose = lose
    await serve_until_lost(stage)
    assert stage.states() == ({"queued": 3} if lose == "before" else {"claimed": 3})
    assert stage.started == []
    rows = stage.rows()
    async with stage.serving():
        await stage.until(lambda: len(stage.started) == 3)
    # The same three, once each.
    assert sorted(job.name for job in stage.started) == ["a", "b", "c"]
    assert stage.turn.running == 3
    for job in stage.started:
        assert (job.attempt, job.payload, job.renew_at) == (1, {"n": 1}, 0.0)
        if lose == "after":
            assert job.token == rows[job.name]["lease_token"]
    outcomes = [outcome_of(job, None) for job in stage.started]
    assert (await stage.statement(outcomes))[0] == {1, 2, 3}


async def test_claims_whose_answer_was_lost_are_given_back_by_a_worker_that_stops(stage_of):
    """It takes them over, and writes at once that they were not worked on."""
    stage = stage_of(LOGGED)
    await stage.line._line.driver()
    await stage.send("a", "b")
    stage.line.lose = "after"
    await serve_until_lost(stage)
    stage.turn.drain()
    async with asyncio.timeout(10):
        await stage.turn.serve()
    assert stage.started == []
    assert stage.states() == {"queued": 2}
    assert [row["attempt"] for row in stage.rows().values()] == [0, 0]


@some_hosts
@pytest.mark.parametrize("lose", ["before", "after"])
async def test_ends_whose_answer_was_lost_are_not_reported_lost(stage_of, host, lose):
    """Whatever they are: they are sent again, and were written, once."""
    stage = stage_of(host)
    jobs = await stage.claimed(*(how for how in OUTCOMES if how != "fails finally"))
    history = stage.history()
    stage.turn.stop_claiming()
    for job in jobs:
        stage.turn.end(OUTCOMES[job.name](job))
    stage.line.lose = lose
    await serve_until_lost(stage)
    assert stage.settled == []
    rows = stage.rows()
    assert ("claimed" in {row["state"] for row in rows.values()}) == (lose == "before")
    stage.turn.drain()
    async with asyncio.timeout(10):
        await stage.turn.serve()
    assert len(stage.settled) == len(jobs)
    assert stage.lost == []
    if lose == "after":
        assert stage.rows() == rows
    assert all(row["state"] != "claimed" for row in stage.rows().values())
    events = len(stage.history()) - len(history)
    assert events == (len(jobs) if stage.source.model.events else 0)


async def test_what_was_given_back_and_taken_by_another_was_not_lost(stage_of):
    """The answer was lost, and then somebody else claimed it: it is his, and this was no loss."""
    stage = stage_of(LOGGED)
    [job] = await stage.claimed("a")
    stage.turn.stop_claiming()
    stage.turn.end(released(job))
    stage.line.lose = "after"
    await serve_until_lost(stage)
    async with stage.twin.begin(stage.engine) as session:
        [claim] = await stage.queue.claim(session, holder="w2")
    before = stage.everything()
    stage.turn.drain()
    async with asyncio.timeout(10):
        await stage.turn.serve()
    assert stage.settled == [job]
    assert stage.lost == []
    assert stage.everything() == before
    async with stage.twin.begin(stage.engine) as session:
        assert await stage.queue.complete(session, claim)


@some_hosts
async def test_ends_that_came_too_late_are_reported(stage_of, host):
    """Somebody else has the task, or it has ended otherwise, or it is gone; the rest is written."""
    stage = stage_of(host)
    jobs = await stage.claimed("cancelled", "deleted", "held", "mine", "taken")
    async with stage.twin.begin(stage.engine) as session:
        ids = {job.name: job.id for job in jobs}
        await stage.queue.cancel(session, id=ids["cancelled"])
        await session.execute(text(f"DELETE FROM {stage.table} WHERE name = 'deleted'"))
    stage.twin.sql(
        f"UPDATE {stage.table} SET lease_token = gen_random_uuid(), claimed_by = 'w2'"
        " WHERE name = 'taken'"
    )
    stage.turn.stop_claiming()
    for job in jobs:
        stage.turn.end(outcome_of(job, None))
    stage.turn.drain()
    async with asyncio.timeout(10):
        await stage.turn.serve()
    assert sorted(job.name for job in stage.lost) == ["cancelled", "deleted", "taken"]
    assert len(stage.settled) == 5
    states = {name: row["state"] for name, row in stage.rows().items()}
    assert states == {"cancelled": "cancelled", "held": "done", "mine": "done", "taken": "claimed"}
