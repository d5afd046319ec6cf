"""Where the demo's command runs."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder for everything that the command may leave behind; a short path, for sockets."""
    with tempfile.TemporaryDirectory(prefix="tq-") as name:
        yield Path(name)
