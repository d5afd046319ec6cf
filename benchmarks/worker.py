"""One worker process: how many tasks it does in a second, and how soon it begins with one.

*Throughput*: a backlog of tasks whose handler does nothing is worked on, from the first tenth of
the tasks to the last one begun. Beside it the raw loop of the same driver, see ``raw_loops``: its
batch is as large as the worker's concurrency.

*Pickup*: an idle worker, and one task at a time, enqueued by another thread at random gaps. The
time from the beginning of the enqueuing COMMIT to the first line of the handler.

*Delayed*: tasks that are due 0.2 to 1 s after they were enqueued: how late their handler begins,
by the database's clock on the same machine.

Worker and raw loop take turns in each round; medians of all rounds, and for throughput the
quartiles. The server keeps its defaults (fsync and synchronous_commit on); it shares the machine
with the client.

    python -m benchmarks.worker [--quick] [--rounds N] [--drivers NAME,…] [--json FILE] [--url …]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import random
import statistics
import sys
import threading
import time
from datetime import timedelta
from importlib.metadata import version
from itertools import product
from pathlib import Path

import sqlalchemy
from rich.console import Console
from rich.progress import Progress
from rich.table import Table as Shown
from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.orm import DeclarativeBase, Session

from benchmarks.raw_loops import RAW, TABLE, drain, drain_async, follow, follow_async
from benchmarks.servers import database
from sqla_taskqueue import Handlers, Queue, TaskMixin, TaskSpec, UuidId, Worker
from sqla_taskqueue.dialects import channel_of

CONCURRENCIES = (10, 100)
PAYLOAD = {"user_id": 7, "text": "x" * 70}
POLL = timedelta(seconds=0.1)
"""How often a worker polls that does not listen, where its pickup is measured."""
DRIVERS = {"psycopg": False, "psycopg2": False, "psycopg async": True, "asyncpg": True}
"""By name: whether its engine is asynchronous."""


class Base(DeclarativeBase):
    pass


class Task(UuidId, TaskMixin, Base):
    __tablename__ = TABLE


QUEUE = Queue(Task, "work")


class Bench:
    """The database, and what every measurement needs."""

    def __init__(self, url) -> None:
        self.url = url
        self.admin = create_engine(url.set(drivername="postgresql+psycopg"))
        Base.metadata.create_all(self.admin)

    def libpq(self) -> str:
        return self.url.set(drivername="postgresql").render_as_string(hide_password=False)

    def engine(self, driver: str):
        dialect = f"postgresql+{driver.partition(' ')[0]}"
        make = create_async_engine if DRIVERS[driver] else create_engine
        return make(self.url.set(drivername=dialect))

    def fill(self, number: int) -> None:
        """Leave the table with so many tasks to do, and its statistics as they are then."""
        with self.admin.begin() as connection:
            connection.execute(text(f"TRUNCATE {TABLE}"))
            QUEUE.enqueue_many(connection, [TaskSpec("work", PAYLOAD)] * number)
        with self.admin.execution_options(isolation_level="AUTOCOMMIT").connect() as connection:
            connection.execute(text(f"VACUUM ANALYZE {TABLE}"))

    def empty(self) -> None:
        with self.admin.begin() as connection:
            connection.execute(text(f"TRUNCATE {TABLE}"))

    def done(self) -> int:
        with self.admin.connect() as connection:
            return connection.scalar(text(f"SELECT count(*) FROM {TABLE} WHERE state = 'done'"))

    def close(self) -> None:
        Base.metadata.drop_all(self.admin)
        self.admin.dispose()


class Meter:
    """Counts tasks, and reads the clocks at the first tenth and at the last one."""

    def __init__(self, number: int) -> None:
        self.count = 0
        self.first, self.last = number // 10, number
        self.over = threading.Event()
        self.call = lambda: None

    def tick(self, *_) -> None:
        self.count += 1
        if self.count == self.first:
            self.begun, self.cpu = time.perf_counter(), time.process_time()
        elif self.count == self.last:
            self.seconds = time.perf_counter() - self.begun
            self.cpu = time.process_time() - self.cpu
            self.over.set()
            self.call()

    def rate(self) -> float:
        return (self.last - self.first) / self.seconds

    def microseconds(self) -> float:
        return self.cpu / (self.last - self.first) * 1e6


def handlers_of(tick, kind: str) -> Handlers:
    handlers = Handlers(QUEUE)
    if kind == "async":

        @handlers.handler(name="work")
        async def work_async(user_id, text):
            tick(user_id, text)
    else:

        @handlers.handler(name="work")
        def work(user_id, text):
            tick(user_id, text)

    return handlers


# --- Throughput --------------------------------------------------------------------------------


def worker_rate(bench, driver, kind, concurrency, listen, number) -> tuple[float, float]:
    """Return tasks per second, and microseconds of processor time for each."""
    bench.fill(number)
    meter = Meter(number)
    worker = Worker(
        bench.engine(driver), handlers_of(meter.tick, kind), concurrency=concurrency, listen=listen
    )
    meter.call = worker.stop
    asyncio.run(worker.run())
    if bench.done() != number:
        raise RuntimeError(f"{driver}: {bench.done()} of {number} tasks are done")
    return meter.rate(), meter.microseconds()


def raw_rate(bench, driver, limit, number) -> tuple[float, float]:
    bench.fill(number)
    meter = Meter(number)
    make = RAW[driver]
    if DRIVERS[driver]:

        async def run():
            raw = await make.connect(bench.libpq())
            await drain_async(raw, limit, meter.tick)
            await raw.close()

        asyncio.run(run())
    else:
        raw = make(bench.libpq())
        drain(raw, limit, meter.tick)
        raw.close()
    if bench.done() != number:
        raise RuntimeError(f"raw {driver}: {bench.done()} of {number} tasks are done")
    return meter.rate(), meter.microseconds()


# --- Pickup ------------------------------------------------------------------------------------


class Pickups:
    """Enqueues tasks, one by one, and takes the time until each is begun."""

    def __init__(self, bench, number: int) -> None:
        self.bench = bench
        self.number = number
        self.begun: dict[int, float] = {}
        self.sent: dict[int, float] = {}
        self.over = threading.Event()

    def tick(self, n, *_) -> None:
        self.begun[n] = time.perf_counter()
        if len(self.begun) == self.number:
            self.over.set()

    def send(self) -> None:
        """Enqueue at random gaps, once the worker is idle."""
        chance = random.Random(7)
        with Session(self.bench.admin) as session:
            for n in range(self.number):
                time.sleep(chance.uniform(0.01, 0.03))
                QUEUE.enqueue(session, "work", {"user_id": n, "text": ""})
                self.sent[n] = time.perf_counter()
                session.commit()

    def milliseconds(self) -> list[float]:
        return [(self.begun[n] - self.sent[n]) * 1e3 for n in range(self.number)]


def worker_pickup(bench, driver, concurrency, listen, number) -> list[float]:
    bench.empty()
    pickups = Pickups(bench, number)

    async def run():
        worker = Worker(
            bench.engine(driver),
            handlers_of(pickups.tick, "async"),
            concurrency=concurrency,
            listen=listen,
            poll=timedelta(seconds=1) if listen else POLL,
        )
        running = asyncio.create_task(worker.run())
        await asyncio.sleep(0.3)  # connected, and idle
        await asyncio.to_thread(pickups.send)
        await asyncio.to_thread(pickups.over.wait)
        worker.stop()
        await running

    asyncio.run(run())
    return pickups.milliseconds()


def raw_pickup(bench, driver, limit, number) -> list[float]:
    bench.empty()
    pickups, stopped = Pickups(bench, number), threading.Event()
    channel, make = channel_of(Task.__table__), RAW[driver]

    def work(payload):
        pickups.tick(
            payload["user_id"] if isinstance(payload, dict) else json.loads(payload)["user_id"]
        )

    if DRIVERS[driver]:

        async def run():
            raw = await make.connect(bench.libpq())
            await follow_async(raw, limit, channel, work, stopped)
            await raw.close()

        thread = threading.Thread(target=lambda: asyncio.run(run()))
    else:

        def run():
            raw = make(bench.libpq())
            follow(raw, limit, channel, work, stopped)
            raw.close()

        thread = threading.Thread(target=run)
    thread.start()
    time.sleep(0.3)
    pickups.send()
    pickups.over.wait()
    stopped.set()
    thread.join()
    return pickups.milliseconds()


def delayed(bench, driver, number) -> list[float]:
    """Return by how many milliseconds delayed tasks were late."""
    bench.empty()
    chance = random.Random(8)
    begun: dict[int, float] = {}
    over = threading.Event()

    def tick(n, *_):
        begun[n] = time.time()
        if len(begun) == number:
            over.set()

    async def run():
        worker = Worker(bench.engine(driver), handlers_of(tick, "async"))
        running = asyncio.create_task(worker.run())
        await asyncio.sleep(0.3)
        await asyncio.to_thread(send)
        await asyncio.to_thread(over.wait)
        worker.stop()
        await running

    def send():
        with Session(bench.admin) as session, session.begin():
            for n in range(number):
                delay = timedelta(seconds=chance.uniform(0.2, 1))
                QUEUE.enqueue(session, "work", {"user_id": n, "text": ""}, delay=delay)

    asyncio.run(run())
    with bench.admin.connect() as connection:
        query = f"SELECT (payload->>'user_id')::int, extract(epoch FROM run_at) FROM {TABLE}"
        due = dict(connection.execute(text(query)).all())
    return [(begun[n] - float(due[n])) * 1e3 for n in range(number)]


# --- The run -----------------------------------------------------------------------------------


def run(url, drivers: list[str], rounds: int, sizes: dict[str, int]) -> dict[str, list[dict]]:
    """Measure everything; one more round comes first, and does not count."""
    bench = Bench(url)
    rates: dict[tuple, list] = {}
    pickups: dict[tuple, list] = {}
    late: dict[tuple, list] = {}
    configurations = [*product(drivers, CONCURRENCIES)]
    with Progress(console=Console(stderr=True), transient=True) as progress:
        bar = progress.add_task("measuring", total=(rounds + (rounds > 1)) * len(configurations))
        for number in range(-(rounds > 1), rounds):
            for driver, concurrency in configurations:
                tasks = sizes["many"] if concurrency > 10 else sizes["few"]
                measured = {("raw loop", "", True): raw_rate(bench, driver, concurrency, tasks)}
                for kind, listen in product(("async", "plain"), (True, False)):
                    measured["worker", kind, listen] = worker_rate(
                        bench, driver, kind, concurrency, listen, tasks
                    )
                if number >= 0:
                    for what, one in measured.items():
                        rates.setdefault((driver, concurrency, *what), []).append(one)
                progress.advance(bar)
        for driver, concurrency in configurations:
            many = sizes["pickups"]
            raw = raw_pickup(bench, driver, concurrency, many)
            pickups[driver, concurrency, "raw loop", True] = raw
            for listen in (True, False):
                pickups[driver, concurrency, "worker", listen] = worker_pickup(
                    bench, driver, concurrency, listen, many
                )
        for driver in drivers:
            late[driver,] = delayed(bench, driver, sizes["pickups"])
    bench.close()
    return {
        "throughput": [throughput(key, values, rates) for key, values in rates.items()],
        "pickup": [pickup(key, values) for key, values in pickups.items()],
        "delayed": [{"driver": key[0], **spread(values)} for key, values in late.items()],
    }


def throughput(key: tuple, values: list, rates: dict) -> dict:
    driver, concurrency, who, kind, listen = key
    by_round = [rate for rate, _ in values]
    raw = [rate for rate, _ in rates[driver, concurrency, "raw loop", "", True]]
    ratios = [rate / beside for rate, beside in zip(by_round, raw, strict=True)]
    quartiles = statistics.quantiles(by_round, n=4) if len(by_round) > 1 else by_round * 3
    return {
        "driver": driver,
        "concurrency": concurrency,
        "who": who,
        "handlers": kind,
        "listen": listen,
        "tasks_per_second": round(statistics.median(by_round)),
        "quartiles": [round(quartiles[0]), round(quartiles[2])],
        "ratio": round(statistics.median(ratios), 2),
        "cpu_us_per_task": round(statistics.median(cpu for _, cpu in values), 1),
    }


def pickup(key: tuple, values: list[float]) -> dict:
    driver, concurrency, who, listen = key
    place = {"driver": driver, "concurrency": concurrency, "who": who, "listen": listen}
    return {**place, **spread(values)}


def spread(milliseconds: list[float]) -> dict:
    values = sorted(milliseconds)
    return {
        "median_ms": round(statistics.median(values), 2),
        "p95_ms": round(values[int(len(values) * 0.95)], 2),
        "max_ms": round(values[-1], 2),
    }


# --- The answer --------------------------------------------------------------------------------


def tables(figures: dict[str, list[dict]]) -> list[Shown]:
    rates = Shown(title="Tasks per second of one worker process")
    for name in ("driver", "at once", "who"):
        rates.add_column(name)
    for name in ("tasks/s", "quartiles", "of the raw loop", "CPU, µs/task"):
        rates.add_column(name, justify="right")
    for one in figures["throughput"]:
        how = f"{one['handlers']} handlers, {'LISTEN' if one['listen'] else 'poll only'}"
        rates.add_row(
            one["driver"],
            str(one["concurrency"]),
            how if one["who"] == "worker" else "raw loop",
            f"{one['tasks_per_second']:,}",
            "{:,}–{:,}".format(*one["quartiles"]),
            f"{one['ratio']:.2f}",
            f"{one['cpu_us_per_task']:.0f}",
        )
    waits = Shown(title="From the COMMIT of an enqueue to the handler's first line, in ms")
    for name in ("driver", "at once", "who"):
        waits.add_column(name)
    for name in ("median", "p95", "max"):
        waits.add_column(name, justify="right")
    for one in figures["pickup"]:
        poll = f"poll only, {POLL / timedelta(milliseconds=1):.0f} ms"
        who = f"worker, {'LISTEN' if one['listen'] else poll}"
        waits.add_row(
            one["driver"],
            str(one["concurrency"]),
            who if one["who"] == "worker" else "raw loop, LISTEN",
            *(f"{one[f'{name}_ms']:.1f}" for name in ("median", "p95", "max")),
        )
    late = Shown(title="How late delayed tasks begin, in ms")
    late.add_column("driver")
    for name in ("median", "p95", "max"):
        late.add_column(name, justify="right")
    for one in figures["delayed"]:
        late.add_row(
            one["driver"], *(f"{one[f'{name}_ms']:.1f}" for name in ("median", "p95", "max"))
        )
    return [rates, waits, late]


def main() -> None:
    """Parse the arguments, measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5, help="rounds that count (5)")
    parser.add_argument("--tasks", type=int, default=20_000, help="backlog at 100 at once (20000)")
    parser.add_argument("--drivers", default=",".join(DRIVERS), help="with commas")
    parser.add_argument("--quick", action="store_true", help="one round of few tasks: a trial")
    parser.add_argument("--url", help="a database to use instead of an embedded server")
    parser.add_argument("--json", metavar="FILE", type=Path, help="write the figures here, too")
    options = parser.parse_args()
    drivers = options.drivers.split(",")
    if unknown := {*drivers} - {*DRIVERS}:
        parser.error(f"no driver {', '.join(sorted(unknown))}; there are {', '.join(DRIVERS)}")
    sizes = {"many": options.tasks, "few": options.tasks // 4, "pickups": 200}
    rounds = options.rounds
    if options.quick:
        rounds, sizes = 1, {"many": 1_000, "few": 200, "pickups": 10}
    with database(options.url) as url:
        figures = run(url, drivers, rounds, sizes)
    setting = {
        "python": platform.python_version(),
        "sqlalchemy": sqlalchemy.__version__,
        **{name: version(name) for name in ("psycopg", "psycopg2-binary", "asyncpg")},
        "cores": os.cpu_count(),
        "rounds": rounds,
        **sizes,
    }
    console = Console(width=None if sys.stdout.isatty() else 110)
    for one in tables(figures):
        console.print(one)
    console.print(", ".join(f"{name} {value}" for name, value in setting.items()))
    if options.json is not None:
        answer = {"setting": setting, **figures}
        options.json.write_text(json.dumps(answer, indent=1) + "\n")


if __name__ == "__main__":
    main()
