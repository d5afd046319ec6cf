"""The benchmarks run: what they measure is for a quiet machine, not for a test."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

OPERATIONS = [
    "enqueue",
    "enqueue_many of 100",
    "enqueue_many of 10,000",
    "claim of 1",
    "claim of 10",
    "claim of 100",
    "heartbeat",
    "complete",
    "complete_many of 100",
]
DRIVERS = ["psycopg", "psycopg2", "psycopg async", "asyncpg"]


def run(database, file, *arguments):
    """Run a benchmark on the test database; return its output and its figures."""
    database.reset()
    url = database.url.render_as_string(hide_password=False)
    done = subprocess.run(
        [sys.executable, "-m", *arguments, "--quick", "--url", url, "--json", file],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    left = database.sql("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")
    database.reset()
    assert (done.returncode, done.stderr.strip(), left) == (0, "", [])
    return done.stdout, json.loads(file.read_text())


@pytest.mark.slow
def test_client_cpu_measures_every_operation_with_every_driver(database, tmp_path):
    """A quick run ends well: figures for all, in the table and in the file, the table gone."""
    output, figures = run(database, tmp_path / "figures.json", "benchmarks.client_cpu")
    measured = {(one["operation"], one["driver"]) for one in figures["results"]}
    assert measured == {(operation, driver) for operation in OPERATIONS for driver in DRIVERS}
    for one in figures["results"]:
        assert one["library_us"] > 0, one
        assert one["raw_us"] > 0, one
    for operation in OPERATIONS:
        assert operation in output


@pytest.mark.slow
def test_worker_measures_throughput_and_pickup_with_every_driver(database, tmp_path):
    """A quick run ends well: each driver, beside its raw loop, listening and polling."""
    output, figures = run(database, tmp_path / "figures.json", "benchmarks.worker")
    rates = {
        (one["driver"], one["concurrency"], one["who"], one["handlers"], one["listen"])
        for one in figures["throughput"]
    }
    assert rates == {
        (driver, concurrency, *what)
        for driver in DRIVERS
        for concurrency in (10, 100)
        for what in [
            ("raw loop", "", True),
            *(("worker", kind, listen) for kind in ("async", "plain") for listen in (True, False)),
        ]
    }
    for one in figures["throughput"]:
        assert one["tasks_per_second"] > 0, one
        assert one["cpu_us_per_task"] > 0, one
        assert one["ratio"] == 1 or one["who"] == "worker", one
    waits = {
        (one["driver"], one["concurrency"], one["who"], one["listen"]) for one in figures["pickup"]
    }
    assert waits == {
        (driver, concurrency, *what)
        for driver in DRIVERS
        for concurrency in (10, 100)
        for what in [("raw loop", True), ("worker", True), ("worker", False)]
    }
    assert {one["driver"] for one in figures["delayed"]} == {*DRIVERS}
    # Never before it is due.
    assert all(one["median_ms"] > 0 for one in figures["delayed"])
    # What the server was set to is said, not assumed.
    assert {"fsync", "synchronous_commit"} <= {*figures["setting"]}
    for title in ("Tasks per second", "From the COMMIT", "How late"):
        assert title in output
