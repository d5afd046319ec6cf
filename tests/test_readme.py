"""README.md: its examples run as printed, and its table says what the library does."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from sqla_taskqueue.states import ENDED, TRANSITIONS, TaskState
from tests.servers import DRIVERS

README = Path(__file__).parent.parent / "README.md"


def _example(name: str) -> str:
    found = re.search(
        rf"<!-- example: {name} -->\n```python\n(.*?)```", README.read_text(), re.DOTALL
    )
    assert found, f"README.md has no example {name!r}"
    return found[1]


@pytest.mark.parametrize("driver", DRIVERS, ids=str)
@pytest.mark.smoke
def test_the_example_runs_as_printed(driver, database, tmp_path):
    """Each driver runs the README's application of its kind, which says that one task is done."""
    database.reset()
    program = tmp_path / "application.py"
    program.write_text(_example("async" if driver.is_async else "sync"))
    url = driver.url(database.url).render_as_string(hide_password=False)
    done = subprocess.run(
        # A script that ends leaves its pool to the interpreter, as scripts do.
        [sys.executable, "-W", "error", "-W", "ignore::ResourceWarning", program],
        env={**os.environ, "DATABASE_URL": url, "PYTHONPATH": str(README.parent)},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    database.reset()
    assert (done.returncode, done.stdout, done.stderr) == (0, "1 done\n", "")


def test_the_table_of_states_is_the_transition_table():
    """Each state's row names exactly the operations that lead out of it, or keep it there."""
    rows = dict(re.findall(r"^\| `(\w+)` \| .*? \| (.*?) \|$", README.read_text(), re.MULTILINE))
    assert set(rows) == {state.value for state in TaskState}
    for state in TaskState:
        named = set(re.findall(r"`([^`]+)`", rows[state]))
        assert named == {move.operation for move in TRANSITIONS if move.source is state}


def test_no_operation_but_retry_leads_out_of_an_end():
    """Ended tasks stay ended, unless an operator retries them."""
    leaving = {move.operation for move in TRANSITIONS if move.source in ENDED}
    assert leaving == {"retry"}
