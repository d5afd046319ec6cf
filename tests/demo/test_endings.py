"""The demo's early ends: whatever ends it, nothing is left behind."""

from __future__ import annotations

import os
import signal

import pytest

from tests.demo.program import Running, left_behind, schemas
from tests.servers import conninfo

pytestmark = pytest.mark.slow

SOME = ("--tasks=600", "--workers=4", "--concurrency=5")


@pytest.mark.parametrize("moment", ["Starting a PostgreSQL", "3. Race", "Killed process"])
def test_ctrl_c_leaves_nothing_behind(place, moment):
    """SIGINT to all processes, as a terminal sends it: status 130, no process, no folder."""
    with Running(place, *SOME) as running:
        running.until(moment)
        os.killpg(running.process.pid, signal.SIGINT)
        assert running.end() == 130, running.output
        assert "Traceback" not in running.output
        assert running.survivors() == []
        assert left_behind(place) == []


def test_sigterm_drops_the_schema(database, database_url, place):
    """SIGTERM to the command alone: status 143, and the database is as it was."""
    with Running(place, f"--url={conninfo(database_url)}", *SOME) as running:
        running.until("Killed process")
        running.process.terminate()
        assert running.end() == 143, running.output
        assert "Traceback" not in running.output
        assert running.survivors() == []
        assert schemas(database) == 0
        assert left_behind(place) == []


def test_a_process_that_dies_by_itself_is_no_success(database, database_url, place):
    """A worker process that ends unasked makes the exit status 1, and is named; the rest goes on."""
    with Running(place, f"--url={conninfo(database_url)}", *SOME) as running:
        # From here on it takes two seconds at least, until the leases have run out.
        running.until("Killed process")
        running.children()[0].kill()
        assert running.end() == 1, running.output
        assert "Traceback" not in running.output
        assert "ended by itself" in running.output
        assert running.survivors() == []
        assert schemas(database) == 0
