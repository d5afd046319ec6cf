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


@pytest.mark.slow
def test_client_cpu_measures_every_operation_with_every_driver(database, tmp_path):
    """A quick run ends well: figures for all, in the table and in the file, the table gone."""
    database.reset()
    file = tmp_path / "figures.json"
    url = database.url.render_as_string(hide_password=False)
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.client_cpu", "--quick", "--url", url, "--json", file],
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
    figures = json.loads(file.read_text())
    measured = {(one["operation"], one["driver"]) for one in figures["results"]}
    assert measured == {(operation, driver) for operation in OPERATIONS for driver in DRIVERS}
    for one in figures["results"]:
        assert one["library_us"] > 0, one
        assert one["raw_us"] > 0, one
    for operation in OPERATIONS:
        assert operation in done.stdout
