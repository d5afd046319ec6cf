"""Every test that asks for ``here`` runs in each surrounding, with each driver."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from tests.surroundings.kinds import KINDS, Pooled, Surrounding
from tests.surroundings.pgbouncer import PROGRAM, pgbouncer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from sqlalchemy.engine import URL

    from tests.database import Database
    from tests.twin import Twin

COMMON = ("psycopg", "asyncpg")


def pytest_itemcollected(item: pytest.Item) -> None:
    """Leave the other drivers to the long run: few of them are odd in one surrounding only."""
    parameters = item.callspec.params if hasattr(item, "callspec") else {}
    if "kind" in parameters and str(parameters["driver"]) not in COMMON:
        item.add_marker("slow")


@pytest.fixture(scope="module", params=KINDS, ids=lambda kind: kind.name)
def kind(request: pytest.FixtureRequest) -> type[Surrounding]:
    """Each kind of surrounding in turn; ``parametrize("kind", […], indirect=True)`` names some.

    Of the module, so that the tests of one kind run together, on the same tables.
    """
    return request.param


@pytest.fixture(scope="session")
def pooler_url(database: Database) -> Iterator[URL]:
    """The URL of this process's database through PgBouncer."""
    if PROGRAM is None:
        pytest.skip("pgbouncer is not installed; the surrounding `switching` emulates it")
    with pgbouncer(database.url) as url:
        yield url


@pytest_asyncio.fixture
async def here(
    request: pytest.FixtureRequest, kind: type[Surrounding], twin: Twin
) -> AsyncIterator[Surrounding]:
    """An application that lives in one of the surroundings, its tables empty."""
    if kind is Pooled:
        surrounding: Surrounding = Pooled(twin, request.getfixturevalue("pooler_url"))
    else:
        surrounding = kind(twin)
    async with surrounding.around():
        yield surrounding
