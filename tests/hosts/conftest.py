"""What the tests of hosts share."""

from __future__ import annotations

import pytest
from sqlalchemy.pool import NullPool

from tests.servers import DRIVERS


@pytest.fixture
def engine(database):
    """A synchronous engine on this process's database, which is empty before and after."""
    database.reset()
    engine = database.new_engine(DRIVERS[0], poolclass=NullPool)
    yield engine
    engine.dispose()
    database.reset()
