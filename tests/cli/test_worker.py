"""``sqla-taskqueue worker``: real processes, signals and exit statuses."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from tests.workers.hosts import Base, Task, Tenanted
from tests.workers.working import Works

pytestmark = pytest.mark.slow
of_each_kind = pytest.mark.parametrize("driver", ["psycopg2", "asyncpg"], indirect=True)
one_driver = pytest.mark.parametrize("driver", ["psycopg2"], indirect=True)

APPLICATION = "tests.cli.application"
PATIENCE = 30
"""Seconds until a process that should end is a failure."""


@pytest.fixture
def works(twin):
    """Empty tables."""
    return Works(twin)


class Command:
    """The command, running."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.text = ""
        self._reading = asyncio.ensure_future(self._read())

    async def _read(self):
        while line := await self.process.stderr.readline():
            self.text += line.decode()

    def send(self, number: int) -> None:
        self.process.send_signal(number)

    async def until(self, *words: str) -> None:
        """Wait until it has said so much; words given twice, twice."""
        async with asyncio.timeout(PATIENCE):
            while any(self.text.count(word) < words.count(word) for word in words):
                await asyncio.sleep(0.005)

    async def send_again(self, number: int) -> None:
        """Send another signal once the first was seen, and not in the same moment."""
        await self.until("second signal")
        await asyncio.sleep(0.1)
        self.send(number)

    async def ended(self) -> int:
        """Wait until it has ended; return its exit status."""
        async with asyncio.timeout(PATIENCE):
            status = await self.process.wait()
            await self._reading
        return status


@asynccontextmanager
async def command(works, *arguments, target="worker"):
    """Run the command on the test's database; leave nothing of it behind."""
    url = works.twin.driver.url(works.twin.database.url).render_as_string(hide_password=False)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "sqla_taskqueue", "worker", f"{APPLICATION}:{target}"),
        *arguments,
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env={**os.environ, "APPLICATION_URL": url, "COLUMNS": "200"},
        start_new_session=True,
    )
    running = Command(process)
    try:
        yield running
    finally:
        children = set(descendants(process.pid))
        if process.returncode is None:
            process.kill()
        await process.wait()
        for pid in children:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        running._reading.cancel()
        process._transport.close()


def descendants(pid):
    """Return the processes that a process has started, and those that they have."""
    with suppress(OSError):
        for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            yield int(child)
            yield from descendants(int(child))


def is_alive(pid):
    """Tell whether a process runs; one that ended and was not waited for does not."""
    with suppress(OSError):
        return " Z " not in Path(f"/proc/{pid}/stat").read_text()
    return False


# --- Running -----------------------------------------------------------------------------------


@of_each_kind
@pytest.mark.parametrize("target", ["worker", "make"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_it_works_until_it_is_told_to_stop(works, target, number):
    """The worker itself or a function that returns it; the exit status is 0."""
    await works.send("pid", *[None] * 3)
    async with command(works, target=target) as running:
        await works.until(done=3)
        running.send(number)
        assert await running.ended() == 0
    assert works.twin.sql("SELECT DISTINCT result FROM tasks") == [(running.process.pid,)]
    assert "Stopping; a second signal ends at once." in running.text
    assert "Traceback" not in running.text


@one_driver
async def test_options_change_the_worker(works):
    """How many at once, which queues, how long to wait at the end."""
    other = works.twin.queue(Task, "others")
    await works.send("endless", *[None] * 5)
    async with works.twin.begin() as session:
        await other.enqueue(session, "pid")
    options = ("--concurrency", "2", "--queues", "work", "--grace", "0")
    async with command(works, *options) as running:
        await works.until(claimed=2, queued=4)
        running.send(signal.SIGTERM)
        assert await running.ended() == 0
    await works.until(queued=6)
    assert works.twin.sql("SELECT DISTINCT attempt FROM tasks") == [(0,)]
    async with command(works, "--queues", "others,work") as running:
        await works.until(claimed=5, done=1)
        running.send(signal.SIGTERM)
        running.send(signal.SIGTERM)


@one_driver
async def test_scopes_of_the_command_line(works):
    """Others are left alone."""
    works.twin.create(Base.metadata)
    queue = works.twin.queue(Tenanted, "tenants")
    async with works.twin.begin() as session:
        for tenant in "abc":
            await queue.scope(tenant=tenant).enqueue(session, "pid")
    options = ("--scope", "tenant=a", "--scope", "tenant=c")
    async with command(works, *options, target="of_tenants") as running:
        await works.twin.until(
            lambda: (
                works.twin.sql("SELECT tenant, state FROM tenanted ORDER BY tenant")
                == [("a", "done"), ("b", "queued"), ("c", "done")]
            )
        )
        running.send(signal.SIGTERM)
        assert await running.ended() == 0


# --- Stopping ----------------------------------------------------------------------------------


@of_each_kind
async def test_it_stops_in_order(works):
    """B12: one handler ends in time, a coroutine is given back, a thread is left to its lease."""
    for name in ("short", "endless", "thread"):
        await works.send(name, None, priority=-1)
    await works.send("pid", *[None] * 5)
    async with command(works, "--concurrency", "3", "--grace", "1") as running:
        await running.until("short began", "endless began", "thread began")
        running.send(signal.SIGTERM)
        assert await running.ended() == 0
    rows = works.twin.sql("SELECT name, state, attempt, lease_token IS NULL FROM tasks")
    assert Counter(map(tuple, rows)) == {
        ("short", "done", 1, True): 1,
        ("endless", "queued", 0, True): 1,
        ("thread", "claimed", 1, False): 1,
        ("pid", "queued", 0, True): 5,
    }
    assert "runs on in its thread" in running.text


@of_each_kind
@pytest.mark.parametrize("name", ["endless", "blocking_loop"])
async def test_a_second_signal_ends_it_at_once(works, name):
    """Whatever its handlers do, and though its grace period is an hour."""
    await works.send(name, None)
    async with command(works, "--grace", "3600") as running:
        await running.until(f"{name} began")
        running.send(signal.SIGTERM)
        await running.send_again(signal.SIGTERM)
        assert await running.ended() == 128 + signal.SIGTERM
    await works.until(claimed=1)


@one_driver
async def test_it_stops_when_idle(works):
    """At once, and also while it is still starting."""
    async with command(works) as running:
        await running.until("begins")
        running.send(signal.SIGTERM)
        assert await running.ended() == 0


@one_driver
@pytest.mark.parametrize("processes", ["1", "2"])
async def test_a_process_manager_that_signals_all_of_them(works, processes):
    """Parent and children at once, each of them twice in the same moment: it is one request."""
    await works.send("short", *[None] * 2)
    async with command(works, "--processes", processes, "--concurrency", "1") as running:
        await running.until(*["short began\n"] * int(processes))
        pids = [running.process.pid, *descendants(running.process.pid)]
        for pid in pids * 2:
            os.kill(pid, signal.SIGTERM)
        assert await running.ended() == 0
    # What was under way was done, and nothing was left claimed.
    assert works.states() in ({"done": 2}, {"done": 1, "queued": 1})


# --- Failing -----------------------------------------------------------------------------------


@of_each_kind
async def test_a_missing_table_is_fatal(works):
    """Exit status 1, and a line that says why."""
    works.twin.sql("DROP TABLE tasks")
    async with command(works) as running:
        assert await running.ended() == 1
    assert "cannot go on" in running.text
    assert 'relation "tasks" does not exist' in running.text


@one_driver
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nowhere.at:all"], "there is no module 'nowhere' here or installed"),
        (["tests.cli.broken:worker"], "No module named 'no_such_module_at_all'"),
        ([f"{APPLICATION}:nothing"], "has no 'nothing'; .* has of_tenants, worker"),
        ([f"{APPLICATION}"], "must be of the form package.module:worker; .* has of_tenants"),
        ([f"{APPLICATION}:"], "must be of the form"),
        ([f"{APPLICATION}:number"], "must be a Worker, or a function that returns one, not int"),
        ([f"{APPLICATION}:make_nothing"], "not NoneType"),
        ([f"{APPLICATION}:fail"], "this application's own error"),
        ([f"{APPLICATION}:Worker"], "must be a Worker"),
        ([f"{APPLICATION}:worker", "--queues", "no"], "queues='no' has no handlers here"),
        ([f"{APPLICATION}:worker", "--scope", "a=1"], "'a' is no scope column; there are none"),
        ([f"{APPLICATION}:of_tenants", "--scope", "tenant"], "of the form name=value"),
        (
            [f"{APPLICATION}:worker", "--concurrency", "0"],
            "greater than or equal to 1|not in the range",
        ),
        ([f"{APPLICATION}:worker", "--concurrency", "100000"], "concurrency=100000"),
        ([f"{APPLICATION}:worker", "--grace", "1e300"], "grace|too large"),
        ([f"{APPLICATION}:worker", "--log-level", "loud"], "loud"),
        ([], "Missing argument"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
@pytest.mark.parametrize("processes", ["1", "2"])
def test_what_is_used_in_a_wrong_way(database, driver, arguments, words, processes):
    """Exit status 2, and words that name it; nothing is started."""
    ran = subprocess.run(
        [sys.executable, "-m", "sqla_taskqueue", "worker", *arguments, "--processes", processes],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        env={**os.environ, "COLUMNS": "200"},
        check=False,
    )
    assert ran.returncode == 2, ran.stderr
    assert re.search(words, ran.stderr), ran.stderr
    assert "cli/locate.py" not in ran.stderr


# --- Several processes -------------------------------------------------------------------------


@of_each_kind
async def test_processes_are_replaced_and_stop_together(works):
    """Each works; one that is killed is replaced, and its task taken over; all end with the parent."""
    async with command(works, "--processes", "2") as running:
        parent = running.process.pid

        def processes():
            return [*descendants(parent)]

        async def until_both_have_worked():
            while len(seen := workers(works) & {*processes()}) < 2:
                await works.send("pid", *[None] * 20)
                await works.twin.until(lambda: set(works.states()) == {"done"})
            return seen

        first = await until_both_have_worked()
        killed = min(first)
        os.kill(killed, signal.SIGKILL)
        await running.until("another takes its place")
        second = await until_both_have_worked()
        assert killed not in second
        assert parent not in second
        running.send(signal.SIGTERM)
        assert await running.ended() == 0
        assert not any(is_alive(pid) for pid in second)


def workers(works):
    """Return the processes that have done something."""
    return {pid for (pid,) in works.twin.sql("SELECT DISTINCT result FROM tasks")}


@one_driver
async def test_processes_end_after_their_parent_was_killed(works):
    """In order: what they had is given back."""
    await works.send("endless", *[None] * 4)
    async with command(works, "--processes", "2", "--grace", "0") as running:
        await works.until(claimed=4)
        await running.until(*["endless began\n"] * 4)
        children = [*descendants(running.process.pid)]
        assert len(children) == 2
        running.send(signal.SIGKILL)
        await works.until(queued=4)
        await works.twin.until(lambda: not any(is_alive(pid) for pid in children))
    assert works.twin.sql("SELECT DISTINCT attempt FROM tasks") == [(0,)]


@one_driver
async def test_a_second_signal_ends_all_processes_at_once(works):
    """However long their grace period is."""
    await works.send("endless", *[None] * 4)
    async with command(works, "--processes", "2", "--grace", "3600") as running:
        await works.until(claimed=4)
        await running.until(*["endless began\n"] * 4)
        children = [*descendants(running.process.pid)]
        running.send(signal.SIGTERM)
        await running.send_again(signal.SIGTERM)
        assert await running.ended() == 128 + signal.SIGTERM
        await works.twin.until(lambda: not any(is_alive(pid) for pid in children))


@one_driver
async def test_a_process_that_cannot_go_on_ends_all(works):
    """With its exit status: another one would not fare better."""
    works.twin.sql("DROP TABLE tasks")
    async with command(works, "--processes", "2") as running:
        assert await running.ended() == 1
    assert 'relation "tasks" does not exist' in running.text
