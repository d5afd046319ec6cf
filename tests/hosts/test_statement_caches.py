"""Engines that remember few statements, or none, on either side of the driver."""

from __future__ import annotations

import pytest

from tests.hosts import kinds
from tests.hosts.life import lead_a_life


@pytest.mark.parametrize(
    ("driver", "options"),
    [
        ("psycopg", {"query_cache_size": 0}),
        ("psycopg", {"query_cache_size": 8, "connect_args": {"prepare_threshold": 0}}),
        ("psycopg", {"connect_args": {"prepare_threshold": None}}),
        ("asyncpg", {"query_cache_size": 8}),
        ("asyncpg", {"connect_args": {"prepared_statement_cache_size": 0}}),
        ("asyncpg", {"connect_args": {"statement_cache_size": 0}}),
    ],
    indirect=["driver"],
    ids=str,
)
async def test_engines_with_small_caches(twin, options):
    """Statements are right however few of them engine and driver remember, or how early."""
    model = kinds.plain()
    twin.create(model.metadata)
    twin.engine = twin.new_engine(**options)
    await lead_a_life(twin, model)
