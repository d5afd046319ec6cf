"""What the tests of workers share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.workers.working import Works

if TYPE_CHECKING:
    from tests.twin import Twin


@pytest.fixture
def works(twin: Twin) -> Works:
    """A registry, empty tables, and workers on each driver."""
    return Works(twin)
