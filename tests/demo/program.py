"""Running the demo's command, and looking for what it left behind."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Self

import psutil
import pytest

COMMAND = [sys.executable, "-m", "sqla_taskqueue", "demo"]
TIME_LIMIT = 100
SMALL = ["--tasks=300", "--workers=2", "--concurrency=4"]


def environment(place: Path) -> dict[str, str]:
    """The command's environment: home and temporary files within *place*, 80 columns."""
    for name in ("home", "tmp"):
        (place / name).mkdir(exist_ok=True)
    env = {k: v for k, v in os.environ.items() if not k.startswith(("XDG_", "COVERAGE", "PG"))}
    return env | {
        "HOME": str(place / "home"),
        "TMPDIR": str(place / "tmp"),
        "COLUMNS": "80",
        "PYTHONWARNINGS": "error",
        "TERM": "dumb",
    }


def demo(
    place: Path, *arguments: str, command: list[str] = COMMAND
) -> subprocess.CompletedProcess:
    """Run the command to its end."""
    return subprocess.run(
        [*command, *arguments],
        env=environment(place),
        capture_output=True,
        text=True,
        timeout=TIME_LIMIT,
        check=False,
    )


def left_behind(place: Path) -> list[str]:
    """Files that the command made and did not remove."""
    return [str(path) for folder in ("home", "tmp") for path in (place / folder).iterdir()]


def schemas(database) -> int:
    """How many schemas of the demo there are."""
    return database.scalar(
        r"SELECT count(*) FROM pg_namespace WHERE nspname LIKE 'sqla\_taskqueue\_demo%'"
    )


class Running:
    """The command while it runs, in a session of its own."""

    def __init__(self, place: Path, *arguments: str) -> None:
        self.place = place
        self.process = subprocess.Popen(
            [*COMMAND, *arguments],
            env=environment(place) | {"PYTHONUNBUFFERED": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self.output = ""
        # A demo that hangs ends the test, instead of the test's waiting for it.
        self._alarm = threading.Timer(TIME_LIMIT, self.process.kill)
        self._alarm.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._alarm.cancel()
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()

    def until(self, words: str) -> None:
        """Read its output up to a line with *words*."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.output += line
            if words in line:
                return
        pytest.fail(f"{words!r} never came: {self.output}")

    def children(self) -> list[psutil.Process]:
        """Its worker processes."""
        found = psutil.Process(self.process.pid).children()
        return [child for child in found if "spawn_main" in " ".join(child.cmdline())]

    def end(self) -> int:
        """Wait for its end and return the exit status."""
        assert self.process.stdout is not None
        self.output += self.process.stdout.read()
        self.process.wait()
        return self.process.returncode

    def survivors(self) -> list[str]:
        """Processes of its session, and servers in its folder, that do not end by themselves.

        The tracker that multiprocessing starts ends when it sees that the command is gone.
        """
        found = []
        for process in psutil.process_iter(["cmdline"]):
            try:
                same = os.getsid(process.pid) == self.process.pid
            except OSError:
                continue
            if same or str(self.place) in " ".join(process.info["cmdline"] or []):
                found.append(process)
        _, alive = psutil.wait_procs(found, timeout=10)
        return [str(process) for process in alive if process.status() != psutil.STATUS_ZOMBIE]
