"""The programs of this folder pass mypy and pyright, strictly, without an error to spare."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import sqlalchemy

HERE = Path(__file__).parent
ROOT = HERE.parent.parent

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        sqlalchemy.__version__.startswith("2.0."), reason="checked against SQLAlchemy 2.1"
    ),
]


def run(*command: str) -> None:
    """Run a checker on this folder and show what it says if it says anything."""
    done = subprocess.run(
        [sys.executable, "-m", *command],
        cwd=ROOT,
        env={**os.environ, "PYRIGHT_PYTHON_IGNORE_WARNINGS": "1", "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"


def test_mypy(tmp_path: Path) -> None:
    """No error for `mypy --strict`: types are inferred, mistakes found, no ignore is unused."""
    pytest.importorskip("mypy")
    # A cache of its own: another run of mypy may be writing the usual one.
    run("mypy", "--strict", "--cache-dir", str(tmp_path), str(HERE))


def test_pyright() -> None:
    """No error for pyright, in its strict mode in the files that say so."""
    pytest.importorskip("pyright")
    run("pyright", "--pythonpath", sys.executable, str(HERE))
