"""An engine whose statements are prepared at once, so that the plan mode counts."""

from __future__ import annotations

import pytest
from sqlalchemy.pool import NullPool

from tests.servers import DRIVERS


@pytest.fixture
def engine(database):
    """A psycopg engine that prepares every statement on the server."""
    engine = database.new_engine(
        DRIVERS[0], poolclass=NullPool, connect_args={"prepare_threshold": 0}
    )
    yield engine
    engine.dispose()
