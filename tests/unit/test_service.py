"""What runs beside the handlers is served again after anything that passes, and fails for good."""

from __future__ import annotations

import asyncio
import logging

import psycopg.errors
import pytest
from sqlalchemy.exc import OperationalError, ProgrammingError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from sqla_taskqueue import TaskQueueError, WorkerFailed
from sqla_taskqueue.worker import _service
from sqla_taskqueue.worker._service import is_database, is_hopeless, is_refusal, supervise

LOST = OperationalError("SELECT 1", {}, psycopg.errors.AdminShutdown("terminated"))
MISSING = ProgrammingError("SELECT 1", {}, psycopg.errors.UndefinedTable("no relation tasks"))
REFUSED = OperationalError("UPDATE", {}, psycopg.errors.RaiseException("not this one"))


@pytest.fixture
def quick(monkeypatch):
    """Without pauses worth mentioning."""
    monkeypatch.setattr(_service, "_FIRST_PAUSE", 0.0001)
    monkeypatch.setattr(_service, "_LONGEST_PAUSE", 0.001)


def serving(*course):
    """Return a service that raises each error in turn, then returns; and its calls."""
    calls = []
    left = iter(course)

    async def serve():
        calls.append(1)
        if (error := next(left, None)) is not None:
            raise error

    return serve, calls


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(
    "error", [LOST, REFUSED, ConnectionResetError(), TimeoutError(), PoolTimeout(), EOFError()]
)
async def test_what_passes_is_waited_for(error, caplog):
    """However often: errors of the database, of the network and of the pool."""
    serve, calls = serving(*[error] * 50)
    await supervise("service", serve, asyncio.Event())
    assert len(calls) == 51
    assert caplog.records[0].levelno == logging.WARNING
    assert "service was interrupted" in caplog.records[0].message


@pytest.mark.usefixtures("quick")
async def test_what_does_not_pass_ends_it():
    """At once, with the reason; it is an error of the library."""
    serve, calls = serving(LOST, MISSING)
    with pytest.raises(WorkerFailed, match="service cannot go on: UndefinedTable") as caught:
        await supervise("service", serve, asyncio.Event())
    assert len(calls) == 2
    assert caught.value.__cause__ is MISSING
    assert isinstance(caught.value, TaskQueueError)


@pytest.mark.usefixtures("quick")
async def test_faults_of_our_own_end_it_after_some():
    """Five in a row; one of the database's between them begins the count anew."""
    serve, calls = serving(*[KeyError("k")] * 4, LOST, *[KeyError("k")] * 9)
    with pytest.raises(WorkerFailed, match="KeyError"):
        await supervise("service", serve, asyncio.Event())
    assert len(calls) == 10


async def test_a_pause_ends_when_the_worker_stops():
    """However long it is."""
    stopping = asyncio.Event()
    serve, calls = serving(LOST, LOST)
    asyncio.get_running_loop().call_soon(stopping.set)
    async with asyncio.timeout(15):
        await supervise("service", serve, stopping)
    assert len(calls) <= 2


async def test_a_cancellation_comes_out():
    """A service that is cancelled is not served again."""
    serve, calls = serving(asyncio.CancelledError())
    with pytest.raises(asyncio.CancelledError):
        await supervise("service", serve, asyncio.Event())
    assert len(calls) == 1


def test_kinds_of_errors():
    """Each is of one kind."""
    assert [is_hopeless(e) for e in (LOST, MISSING, REFUSED, KeyError())] == [
        False,
        True,
        False,
        False,
    ]
    assert [is_refusal(e) for e in (LOST, MISSING, REFUSED, KeyError())] == [
        False,
        False,
        True,
        False,
    ]
    assert [is_database(e) for e in (LOST, MISSING, REFUSED, KeyError())] == [
        True,
        True,
        True,
        False,
    ]
    duplicate = ProgrammingError("", {}, psycopg.errors.DuplicatePreparedStatement("s1"))
    assert not is_hopeless(duplicate)
