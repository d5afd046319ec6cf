"""One worker process: how many tasks it does in a second, and how soon it begins with one.

*Throughput*: a backlog of tasks whose handler does nothing is worked on, from the first tenth of
the tasks to the last one begun. Beside it the raw loop of the same driver, see ``raw_loops``: its
batch is as large as the worker's concurrency.

*Pickup*: an idle worker, and one task at a time, enqueued by another thread at random gaps. The
time from the beginning of the enqueuing COMMIT to the first line of the handler.

*Delayed*: tasks that are due 0.2 to 1 s after they were enqueued: how late their handler begins,
by the database's clock on the same machine.

Worker and raw loop take turns in each round and change places with the next; the first round of
throughput warms up and does not count. Medians of all rounds, and for throughput the quartiles;
waits are those of all rounds together. The server is started for the run and keeps its defaults
(fsync and synchronous_commit on: its own answer is shown); it shares the machine with the client.

    python -m benchmarks.worker [--quick] [--rounds N] [--tasks N] [--drivers NAME,…]
                                [--json FILE] [--url postgresql://…]
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
from functools import partial
from importlib.metadata import version
from itertools import count, product
from pathlib import Path
from typing import NamedTuple

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
CHANCE = random.Random(7)
PATIENCE = 120.0
"""Seconds after which tasks that were not begun never will be."""
SETTINGS = ("server_version", "fsync", "synchronous_commit", "shared_buffers", "autovacuum")
"""What the server is asked to say of itself."""
DRIVERS = {"psycopg": False, "psycopg2": False, "psycopg async": True, "asyncpg": True}
"""By name: whether its engine is asynchronous."""


class Base(DeclarativeBase):
    pass


class Task(UuidId, TaskMixin, Base):
    __tablename__ = TABLE


QUEUE = Queue(Task, "work")


class Sizes(NamedTuple):
    """How much is measured."""

    rounds: int
    many: int
    """The backlog at 100 at once."""
    few: int
    """The backlog at 10 at once."""
    pickups: int
    """In each round, and delayed tasks as many."""
    settle: float
    """Seconds until a worker is taken for connected and idle."""


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

    def wake(self) -> None:
        """Have whoever listens look, though there is nothing."""
        with self.admin.begin() as connection:
            connection.execute(
                text("SELECT pg_notify(:channel, '')"), {"channel": channel_of(Task.__table__)}
            )

    def settings(self) -> dict[str, str]:
        with self.admin.connect() as connection:
            return {name: connection.scalar(text(f"SHOW {name}")) for name in SETTINGS}

    def done(self) -> int:
        with self.admin.connect() as connection:
            return connection.scalar(text(f"SELECT count(*) FROM {TABLE} WHERE state = 'done'"))

    def close(self) -> None:
        Base.metadata.drop_all(self.admin)
        self.admin.dispose()


class Meter:
    """Counts tasks, and reads the clocks at the first tenth and at the last one."""

    def __init__(self, number: int) -> None:
        self.numbers = count(1)
        self.first, self.last = number // 10, number
        self.call = lambda: None

    def tick(self, *_) -> None:
        number = next(self.numbers)  # in one step, whichever thread it is
        if number == self.first:
            self.begun, self.cpu = time.perf_counter(), time.process_time()
        elif number == self.last:
            self.seconds = time.perf_counter() - self.begun
            self.cpu = time.process_time() - self.cpu
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
        """Enqueue at random gaps."""
        with Session(self.bench.admin) as session:
            for n in range(self.number):
                time.sleep(CHANCE.uniform(0.01, 0.03))
                QUEUE.enqueue(session, "work", {"user_id": n, "text": ""})
                self.sent[n] = time.perf_counter()
                session.commit()

    def wait(self) -> None:
        """Wait until all are begun."""
        if not self.over.wait(PATIENCE):
            raise RuntimeError(f"{len(self.begun)} of {self.number} tasks were begun")

    def milliseconds(self) -> list[float]:
        return [(self.begun[n] - self.sent[n]) * 1e3 for n in range(self.number)]


class Delays(Pickups):
    """Enqueues delayed tasks in one go, and takes by how much each is late."""

    def tick(self, n, *_) -> None:
        self.begun[n] = time.time()
        if len(self.begun) == self.number:
            self.over.set()

    def send(self) -> None:
        with Session(self.bench.admin) as session, session.begin():
            for n in range(self.number):
                delay = timedelta(seconds=CHANCE.uniform(0.2, 1))
                QUEUE.enqueue(session, "work", {"user_id": n, "text": ""}, delay=delay)

    def milliseconds(self) -> list[float]:
        query = f"SELECT (payload->>'user_id')::int, extract(epoch FROM run_at) FROM {TABLE}"
        with self.bench.admin.connect() as connection:
            due = dict(connection.execute(text(query)).all())
        return [(self.begun[n] - float(due[n])) * 1e3 for n in range(self.number)]


def worker_waits(bench, sent: Pickups, driver, settle, **options) -> list[float]:
    """Have an idle worker begin what is sent; return the waits."""
    bench.empty()

    async def run():
        worker = Worker(bench.engine(driver), handlers_of(sent.tick, "async"), **options)
        running = asyncio.create_task(worker.run())
        await asyncio.sleep(settle)  # connected, and idle
        await asyncio.to_thread(sent.send)
        await asyncio.to_thread(sent.wait)
        worker.stop()
        await running

    asyncio.run(run())
    return sent.milliseconds()


def worker_pickup(bench, driver, concurrency, listen, number, settle) -> list[float]:
    poll = timedelta(seconds=1) if listen else POLL
    return worker_waits(
        bench,
        Pickups(bench, number),
        driver,
        settle,
        concurrency=concurrency,
        listen=listen,
        poll=poll,
    )


def raw_pickup(bench, driver, limit, number, settle) -> list[float]:
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
    time.sleep(settle)
    try:
        pickups.send()
        pickups.wait()
    finally:
        stopped.set()
        bench.wake()
        thread.join()
    return pickups.milliseconds()


# --- The run -----------------------------------------------------------------------------------


class Figures:
    """What is measured, by round: for each kind of figure and each configuration."""

    def __init__(self) -> None:
        self.rates: dict[tuple, list[tuple[float, float]]] = {}
        self.pickups: dict[tuple, list[float]] = {}
        self.late: dict[tuple, list[float]] = {}

    def as_dict(self) -> dict[str, list[dict]]:
        return {
            "throughput": [throughput(*one, self.rates) for one in sorted_by_key(self.rates)],
            "pickup": [pickup(*one) for one in sorted_by_key(self.pickups)],
            "delayed": [{"driver": key[0], **spread(of)} for key, of in self.late.items()],
        }


def sorted_by_key(measured: dict[tuple, list]) -> list[tuple[tuple, list]]:
    """Return what was measured in the tables' order: raw loops first, LISTEN before polling."""
    drivers = list(DRIVERS)
    order = {key: (drivers.index(key[0]), *key[1:-1], not key[-1]) for key in measured}
    return sorted(measured.items(), key=lambda one: order[one[0]])


def rate_measures(bench, driver, concurrency, sizes: Sizes) -> dict[tuple, partial]:
    tasks = sizes.many if concurrency > 10 else sizes.few
    measures = {("raw loop", "", True): partial(raw_rate, bench, driver, concurrency, tasks)}
    for kind, listen in product(("async", "plain"), (True, False)):
        measures["worker", kind, listen] = partial(
            worker_rate, bench, driver, kind, concurrency, listen, tasks
        )
    return measures


def wait_measures(bench, driver, concurrency, sizes: Sizes) -> dict[tuple, partial]:
    often = (sizes.pickups, sizes.settle)
    measures = {("raw loop", True): partial(raw_pickup, bench, driver, concurrency, *often)}
    for listen in (True, False):
        measures["worker", listen] = partial(
            worker_pickup, bench, driver, concurrency, listen, *often
        )
    return measures


def in_turn(measures: dict[tuple, partial], number: int) -> list[tuple[tuple, partial]]:
    """Return the measures of a round, in every other one the last first."""
    return list(measures.items())[:: -1 if number % 2 else 1]


def run(url, drivers: list[str], sizes: Sizes) -> tuple[dict[str, str], dict[str, list[dict]]]:
    """Measure everything; return the server's settings, and the figures."""
    bench, figures = Bench(url), Figures()
    configurations = [*product(drivers, CONCURRENCIES)]
    warm_up = sizes.rounds > 1
    with Progress(console=Console(stderr=True), transient=True) as progress:
        total = (2 * sizes.rounds + warm_up) * len(configurations)
        bar = progress.add_task("measuring", total=total)
        for number in range(-warm_up, sizes.rounds):
            for driver, concurrency in configurations:
                measures = rate_measures(bench, driver, concurrency, sizes)
                for what, measure in in_turn(measures, number):
                    one = measure()
                    if number >= 0:
                        figures.rates.setdefault((driver, concurrency, *what), []).append(one)
                progress.advance(bar)
        for number in range(sizes.rounds):
            for driver, concurrency in configurations:
                measures = wait_measures(bench, driver, concurrency, sizes)
                for what, measure in in_turn(measures, number):
                    figures.pickups.setdefault((driver, concurrency, *what), []).extend(measure())
                progress.advance(bar)
            for driver in drivers:
                late = worker_waits(bench, Delays(bench, sizes.pickups), driver, sizes.settle)
                figures.late.setdefault((driver,), []).extend(late)
    settings = bench.settings()
    bench.close()
    return settings, figures.as_dict()


def throughput(key: tuple, values: list, rates: dict) -> dict:
    """Return the figures of one configuration; ratios are to the raw loop of the same round."""
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
    rates = Shown(title="Tasks per second of one worker process, with async and plain handlers")
    for name in ("driver", "at once", "who"):
        rates.add_column(name)
    for name in ("tasks/s", "quartiles", "of the raw loop", "CPU, µs/task"):
        rates.add_column(name, justify="right")
    for one in figures["throughput"]:
        how = f"worker, {one['handlers']}, {'LISTEN' if one['listen'] else 'poll only'}"
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
    parser.add_argument(
        "--pickups", type=int, default=50, help="waits taken in each round, with each driver (50)"
    )
    parser.add_argument("--drivers", default=",".join(DRIVERS), help="with commas")
    parser.add_argument("--quick", action="store_true", help="one round of few tasks: a trial")
    parser.add_argument("--url", help="a database to use instead of an embedded server")
    parser.add_argument("--json", metavar="FILE", type=Path, help="write the figures here, too")
    options = parser.parse_args()
    drivers = options.drivers.split(",")
    if unknown := {*drivers} - {*DRIVERS}:
        parser.error(f"no driver {', '.join(sorted(unknown))}; there are {', '.join(DRIVERS)}")
    sizes = Sizes(options.rounds, options.tasks, options.tasks // 4, options.pickups, settle=0.3)
    if options.quick:
        sizes = Sizes(rounds=1, many=1_000, few=200, pickups=5, settle=0.1)
    with database(options.url) as url:
        settings, figures = run(url, drivers, sizes)
    setting = {
        "python": platform.python_version(),
        "sqlalchemy": sqlalchemy.__version__,
        **{name: version(name) for name in ("psycopg", "psycopg2-binary", "asyncpg")},
        "cores": os.cpu_count(),
        **sizes._asdict(),
        **settings,
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
