"""What a call costs the client: processor time of the library beside the raw driver.

The raw driver does the same work: the statements that the library sent, with the same parameters,
through the driver's own cursor, on the same connection and on the same rows, which are fetched.
Both prepare their statements as the driver does by itself. Where a driver takes or returns JSON as
text, the raw side encodes and decodes it, as an application has to. Ids, tokens and times are
given to it ready-made.

Every measurement is made in a transaction of its own, which is rolled back. Library and driver
take turns and change places in each round; the first round warms up and does not count. Medians
are shown, in microseconds of this process's processor time for each call, without the commit and
without the NOTIFY (``notify="off"``).

    python -m benchmarks.client_cpu [--quick] [--json FILE] [--url postgresql://…]
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import platform
import statistics
import sys
import time
from contextlib import contextmanager
from datetime import timedelta
from importlib.metadata import version
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import sqlalchemy
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from sqlalchemy import create_engine, delete, event
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session

from benchmarks.servers import database
from sqla_taskqueue import AsyncQueue, Queue, TaskMixin, TaskSpec, UuidId

PAYLOAD = {"user_id": 7, "text": "x" * 70}
LEASE = timedelta(minutes=5)
SPECS = [TaskSpec("work", PAYLOAD) for _ in range(10_000)]


class Base(DeclarativeBase):
    pass


class Task(UuidId, TaskMixin, Base):
    __tablename__ = "benchmark_tasks"
    __scope__ = ("team_id",)
    team_id: Mapped[int]


# --- What is measured --------------------------------------------------------------------------


class Operation(NamedTuple):
    """One call of *size* tasks; *act* makes it, given the queue, session and its claims."""

    name: str
    size: int
    act: object
    needs: str = ""

    def calls(self, most: int) -> int:
        """Return how many calls one measurement takes: *most*, or fewer of the large ones."""
        return max(most // self.size, 2) if self.size < 10_000 else 1


def enqueue_many(size: int) -> Operation:
    specs = SPECS[:size]
    return Operation(
        f"enqueue_many of {size:,}", size, lambda q, session, _: q.enqueue_many(session, specs)
    )


def claim(size: int) -> Operation:
    return Operation(
        f"claim of {size}",
        size,
        lambda q, session, _: q.claim(session, holder="w", limit=size, lease=LEASE),
        needs="waiting",
    )


OPERATIONS = [
    Operation("enqueue", 1, lambda q, session, _: q.enqueue(session, "work", PAYLOAD)),
    enqueue_many(100),
    enqueue_many(10_000),
    claim(1),
    claim(10),
    claim(100),
    Operation("heartbeat", 1, lambda q, session, held: q.heartbeat(session, *held), "claimed"),
    Operation("complete", 1, lambda q, session, held: q.complete(session, *held), "claimed"),
    Operation(
        "complete_many of 100",
        100,
        lambda q, session, held: q.complete_many(session, held),
        "claimed",
    ),
]


# --- The raw driver's work ---------------------------------------------------------------------


def is_json(value) -> bool:
    """Tell whether a value is JSON as text; nothing else here begins with a bracket."""
    return isinstance(value, str) and value.startswith(("{", "["))


class Sent(NamedTuple):
    """A statement as the library sent it."""

    statement: str
    parameters: object
    encoded: list
    """What the parameters have as JSON text, where the driver does not encode it itself."""

    @classmethod
    def of(cls, statement, parameters) -> Sent:
        values = parameters.values() if isinstance(parameters, dict) else parameters
        flat = chain.from_iterable(v if isinstance(v, list) else [v] for v in values)
        return cls(statement, parameters, [json.loads(text) for text in flat if is_json(text)])


def decode(rows) -> None:
    """Decode the JSON of *rows* that the driver returned as text."""
    columns = [n for n, value in enumerate(rows[0]) if is_json(value)] if rows else []
    for column in columns:
        for row in rows:
            json.loads(row[column])


# --- Both sides --------------------------------------------------------------------------------


class SyncSide:
    """One synchronous driver: the library in a session, and the raw driver beside it."""

    def __init__(self, driver: str, url) -> None:
        self.engine = create_engine(url.set(drivername=f"postgresql+{driver}"))
        self.queue = Queue(Task, "work", notify="off").scope(team_id=1)

    def prepare(self, waiting: int, claimed: int) -> list:
        """Leave the table with so many tasks that wait and so many claimed ones."""
        Base.metadata.create_all(self.engine)
        with Session(self.engine) as session, session.begin():
            session.execute(delete(Task))
            self.queue.enqueue_many(session, [TaskSpec("work", PAYLOAD)] * claimed)
            claims = []
            while len(claims) < claimed:
                claims += self.queue.claim(session, holder="w", limit=1_000, lease=LEASE)
            self.queue.enqueue_many(session, [TaskSpec("work", PAYLOAD)] * waiting)
        return claims

    def record(self, act, held) -> list[Sent]:
        """Make the calls once and return what they sent."""
        # An engine of its own for the listener, which the measured one shall not have.
        recording = self.engine.execution_options()
        sent = []
        event.listen(recording, "before_cursor_execute", lambda *what: sent.append(what[2:4]))
        with Session(recording) as session:
            for claims in held:
                act(self.queue, session, claims)
        return [Sent.of(*one) for one in sent]

    def ours(self, act, held) -> float:
        """Return the processor time of the calls, in seconds."""
        with Session(self.engine) as session:
            session.connection()
            with processor_time() as watch:
                for claims in held:
                    act(self.queue, session, claims)
        return watch.seconds

    def raw(self, sent: list[Sent]) -> tuple[float, int]:
        """Send the same statements through the driver's cursor; return the time, and the rows."""
        number = 0
        with (
            self.engine.connect() as connection,
            connection.connection.driver_connection.cursor() as cursor,
            processor_time() as watch,
        ):
            for statement, parameters, encoded in sent:
                for value in encoded:
                    json.dumps(value)
                cursor.execute(statement, parameters)
                rows = cursor.fetchall()
                decode(rows)
                number += len(rows)
        return watch.seconds, number

    def close(self) -> None:
        Base.metadata.drop_all(self.engine)
        self.engine.dispose()


class AsyncSide:
    """One asynchronous driver, behind the same methods."""

    def __init__(self, driver: str, url) -> None:
        self.driver = driver
        self.runner = asyncio.Runner()
        self.engine = create_async_engine(url.set(drivername=f"postgresql+{driver}"))
        self.queue = AsyncQueue(Task, "work", notify="off").scope(team_id=1)

    def prepare(self, waiting: int, claimed: int) -> list:
        return self.runner.run(self._prepare(waiting, claimed))

    async def _prepare(self, waiting: int, claimed: int) -> list:
        async with self.engine.begin() as connection:
            await connection.run_sync(Base.metadata.create_all)
        async with AsyncSession(self.engine) as session, session.begin():
            await session.execute(delete(Task))
            await self.queue.enqueue_many(session, [TaskSpec("work", PAYLOAD)] * claimed)
            claims = []
            while len(claims) < claimed:
                claims += await self.queue.claim(session, holder="w", limit=1_000, lease=LEASE)
            await self.queue.enqueue_many(session, [TaskSpec("work", PAYLOAD)] * waiting)
        return claims

    def record(self, act, held) -> list[Sent]:
        recording = self.engine.execution_options()
        sent = []
        event.listen(
            recording.sync_engine,
            "before_cursor_execute",
            lambda *what: sent.append(what[2:4]),
        )
        self.runner.run(self._call(recording, act, held))
        return [Sent.of(*one) for one in sent]

    def ours(self, act, held) -> float:
        return self.runner.run(self._call(self.engine, act, held))

    async def _call(self, engine, act, held) -> float:
        async with AsyncSession(engine) as session:
            await session.connection()
            with processor_time() as watch:
                for claims in held:
                    await act(self.queue, session, claims)
        return watch.seconds

    def raw(self, sent: list[Sent]) -> tuple[float, int]:
        replay = self._replay_asyncpg if self.driver == "asyncpg" else self._replay
        return self.runner.run(replay(sent))

    async def _replay(self, sent: list[Sent]) -> tuple[float, int]:
        number = 0
        async with self.engine.connect() as connection:
            driver_connection = (await connection.get_raw_connection()).driver_connection
            async with driver_connection.cursor() as cursor:
                with processor_time() as watch:
                    for statement, parameters, encoded in sent:
                        for value in encoded:
                            json.dumps(value)
                        await cursor.execute(statement, parameters)
                        rows = await cursor.fetchall()
                        decode(rows)
                        number += len(rows)
        return watch.seconds, number

    async def _replay_asyncpg(self, sent: list[Sent]) -> tuple[float, int]:
        number = 0
        async with self.engine.connect() as connection:
            driver_connection = (await connection.get_raw_connection()).driver_connection
            transaction = driver_connection.transaction()
            await transaction.start()
            with processor_time() as watch:
                for statement, parameters, encoded in sent:
                    for value in encoded:
                        json.dumps(value)
                    rows = await driver_connection.fetch(statement, *parameters)
                    decode(rows)
                    number += len(rows)
            await transaction.rollback()
        return watch.seconds, number

    def close(self) -> None:
        self.runner.run(self._close())
        self.runner.close()

    async def _close(self) -> None:
        async with self.engine.begin() as connection:
            await connection.run_sync(Base.metadata.drop_all)
        await self.engine.dispose()


class _Stopwatch:
    seconds = 0.0


@contextmanager
def processor_time():
    """Measure the processor time of this process; garbage from before is not its own."""
    watch = _Stopwatch()
    gc.collect()
    begun = time.process_time()
    yield watch
    watch.seconds = time.process_time() - begun


SIDES = {
    "psycopg": (SyncSide, "psycopg"),
    "psycopg2": (SyncSide, "psycopg2"),
    "psycopg async": (AsyncSide, "psycopg"),
    "asyncpg": (AsyncSide, "asyncpg"),
}


# --- The run -----------------------------------------------------------------------------------


class Result(NamedTuple):
    """What one operation costs with one driver: microseconds for each call, by round."""

    operation: Operation
    driver: str
    ours: list[float]
    raw: list[float]

    def as_dict(self) -> dict:
        library, raw = statistics.median(self.ours), statistics.median(self.raw)
        return {
            "operation": self.operation.name,
            "driver": self.driver,
            "library_us": round(library, 1),
            "raw_us": round(raw, 1),
            "ratio": round(library / raw, 2),
            "library_us_by_round": [round(one, 1) for one in self.ours],
            "raw_us_by_round": [round(one, 1) for one in self.raw],
        }


def run(url, rounds: int, calls: int, *, warm_up: bool = True) -> list[Result]:
    """Measure everything, after a round that does not count."""
    results = [Result(operation, driver, [], []) for operation in OPERATIONS for driver in SIDES]
    by_name = {(result.operation, result.driver): result for result in results}
    sides = {driver: of(dialect, url) for driver, (of, dialect) in SIDES.items()}
    needed = {
        what: max(o.size * o.calls(calls) for o in OPERATIONS if o.needs == what)
        for what in ("waiting", "claimed")
    }
    with Progress(console=Console(stderr=True), transient=True) as progress:
        numbers = range(-warm_up, rounds)
        bar = progress.add_task("measuring", total=len(numbers) * len(results))
        for number in numbers:
            for driver, side in sides.items():
                claims = side.prepare(**needed)
                for operation in OPERATIONS:
                    library, raw = measure(side, operation, calls, claims, raw_first=number % 2)
                    if number >= 0:
                        by_name[operation, driver].ours.append(library)
                        by_name[operation, driver].raw.append(raw)
                    progress.advance(bar)
    for side in sides.values():
        side.close()
    return results


def measure(side, operation: Operation, calls: int, claims: list, *, raw_first: int):
    """Return what a call costs the library and the raw driver, in microseconds."""
    number = operation.calls(calls)
    held = [claims[n * operation.size : (n + 1) * operation.size] for n in range(number)]
    sent = side.record(operation.act, held)
    if raw_first:
        raw, rows = side.raw(sent)
        library = side.ours(operation.act, held)
    else:
        library = side.ours(operation.act, held)
        raw, rows = side.raw(sent)
    if rows != number * operation.size:
        raise RuntimeError(f"{operation.name}: the raw driver got {rows} rows")
    return library / number * 1e6, raw / number * 1e6


# --- The answer --------------------------------------------------------------------------------


def table(results: list[Result]) -> Table:
    shown = Table(title="Processor time of the client for each call, in µs")
    shown.add_column("operation")
    shown.add_column("driver")
    for heading in ("library", "raw driver", "ratio", "library, each task"):
        shown.add_column(heading, justify="right")
    for result in results:
        figures = result.as_dict()
        first = result.driver == next(iter(SIDES))
        shown.add_row(
            result.operation.name if first else "",
            result.driver,
            f"{figures['library_us']:,.0f}",
            f"{figures['raw_us']:,.0f}",
            f"{figures['ratio']:.1f}×",
            f"{figures['library_us'] / result.operation.size:,.1f}",
            end_section=result.driver == list(SIDES)[-1],
        )
    return shown


def main() -> None:
    """Parse the arguments, measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7, help="rounds that count (7)")
    parser.add_argument(
        "--calls", type=int, default=200, help="calls of one task in a round; fewer of many (200)"
    )
    parser.add_argument(
        "--quick", action="store_true", help="one cold round of few calls: a trial"
    )
    parser.add_argument("--url", help="a database to use instead of an embedded server")
    parser.add_argument("--json", metavar="FILE", type=Path, help="write the figures here, too")
    options = parser.parse_args()
    rounds, calls = (1, 10) if options.quick else (options.rounds, options.calls)
    with database(options.url) as url:
        results = run(url, rounds, calls, warm_up=not options.quick)
    setting = {
        "python": platform.python_version(),
        "sqlalchemy": sqlalchemy.__version__,
        **{name: version(name) for name in ("psycopg", "psycopg2-binary", "asyncpg")},
        "machine": platform.machine(),
        "rounds": rounds,
        "calls": calls,
    }
    console = Console(width=None if sys.stdout.isatty() else 100)
    console.print(table(results))
    console.print(", ".join(f"{name} {value}" for name, value in setting.items()))
    if options.json is not None:
        answer = {"setting": setting, "results": [result.as_dict() for result in results]}
        options.json.write_text(json.dumps(answer, indent=1) + "\n")


if __name__ == "__main__":
    main()
