"""Fixtures for every test: the server, the database of this process, and the twins."""

from __future__ import annotations

import os
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest
import pytest_asyncio
from hypothesis import settings
from sqlalchemy.engine import make_url

from tests.database import Database
from tests.servers import DRIVERS, Driver, conninfo, fresh_database, test_server
from tests.twin import Twin

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from sqlalchemy.engine import URL

# How long an example takes is the database's affair, and the machine's.
settings.register_profile("suite", deadline=None)
settings.load_profile("suite")

_SHARED_SERVER = pytest.StashKey[tuple[ExitStack, str]]()


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Start one server for all of pytest-xdist's workers; each makes its own database."""
    stash = node.config.stash
    if _SHARED_SERVER not in stash:
        stack = ExitStack()
        stash[_SHARED_SERVER] = (stack, conninfo(stack.enter_context(test_server())))
    node.workerinput["server_url"] = stash[_SHARED_SERVER][1]


def pytest_unconfigure(config: pytest.Config) -> None:
    """Stop the server that the workers shared."""
    if _SHARED_SERVER in config.stash:
        config.stash[_SHARED_SERVER][0].close()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out tests of drivers that TASKQUEUE_TEST_DRIVERS, a list with commas, does not name."""
    wanted = set(filter(None, os.environ.get("TASKQUEUE_TEST_DRIVERS", "").split(",")))
    if unknown := wanted - {driver.name for driver in DRIVERS}:
        raise pytest.UsageError(f"TASKQUEUE_TEST_DRIVERS names {', '.join(sorted(unknown))}")

    def is_wanted(item: pytest.Item) -> bool:
        parameters = item.callspec.params if hasattr(item, "callspec") else {}
        return "driver" not in parameters or str(parameters["driver"]) in wanted

    if wanted:
        left_out = [item for item in items if not is_wanted(item)]
        items[:] = [item for item in items if is_wanted(item)]
        config.hook.pytest_deselected(items=left_out)


@pytest.fixture(scope="session")
def server_url(request: pytest.FixtureRequest) -> Iterator[URL]:
    """The URL of an administrator's database on the test server, without a driver."""
    worker = getattr(request.config, "workerinput", None)
    if worker is not None:
        yield make_url(worker["server_url"])
    else:
        with test_server() as url:
            yield url


@pytest.fixture(scope="session")
def database_url(server_url: URL) -> Iterator[URL]:
    """The URL of this process's own database, without a driver (see ``Driver.url``)."""
    with fresh_database(server_url, os.environ.get("PYTEST_XDIST_WORKER", "main")) as url:
        yield url


@pytest.fixture(scope="session")
def database(database_url: URL) -> Iterator[Database]:
    """This process's own database: plain SQL, engines, tables."""
    database = Database(database_url)
    yield database
    database.close()


@pytest.fixture(scope="session")
def server_version(database: Database) -> int:
    """The server's major version: 15, 18."""
    return database.scalar("SELECT current_setting('server_version_num')::int / 10000")


@pytest.fixture(params=DRIVERS, ids=str)
def driver(request: pytest.FixtureRequest) -> Driver:
    """Each driver in turn; ``parametrize("driver", ["asyncpg"], indirect=True)`` names some."""
    if isinstance(request.param, Driver):
        return request.param
    return next(d for d in DRIVERS if d.name == request.param)


@pytest_asyncio.fixture
async def twin(database: Database, driver: Driver) -> AsyncIterator[Twin]:
    """One driver's view of the library, for tests that are written once: see ``tests/twin.py``."""
    twin = Twin(database, driver)
    yield twin
    await twin.close()
