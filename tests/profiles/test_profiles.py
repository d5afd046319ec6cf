"""What each operation costs in calls of functions and in statements, beside what is recorded.

Wall clocks tell little on a machine that others use too. These numbers are the same on each, and
a loop that does too much shows in them at once.
"""

from __future__ import annotations

import sys

import pytest

from tests.profiles.counting import CALLERS, calls_of, statements_of
from tests.profiles.operations import OPERATIONS
from tests.profiles.records import RENEW, STATEMENTS, calls_with

every_operation = pytest.mark.parametrize("operation", OPERATIONS, ids=str)
both_facades = pytest.mark.parametrize("driver", ["psycopg", "asyncpg"], indirect=True)

TOLERANCE = 0.05
"""By which share calls may differ: not every release of a driver calls the same functions."""

TESTED_PYTHON = (3, 11)
"""The Python of continuous integration, where nothing may go unrecorded."""


@both_facades
@every_operation
async def test_statements(twin, records, recording, operation):
    """Each operation sends as many statements as recorded, whatever the versions."""
    counted = {
        kind: [await statements_of(twin, operation, kind, caller) for caller in CALLERS]
        for kind in operation.kinds
    }
    if recording:
        records.note(STATEMENTS, operation.name, counted)
    different = records.differences(STATEMENTS, operation.name, counted)
    assert not different, "\n".join([*different, f"If that is right: {RENEW}"])


@both_facades
@every_operation
async def test_calls(twin, records, recording, operation):
    """Each operation calls about as many functions as recorded for these versions."""
    section = calls_with(twin.driver)
    if section not in records and not recording and sys.version_info[:2] != TESTED_PYTHON:
        pytest.skip(f"no calls are recorded for {section}; to record them: {RENEW}")
    counted = {
        kind: [(await calls_of(twin, operation, kind, caller))[0] for caller in CALLERS]
        for kind in operation.kinds
    }
    if recording:
        records.note(section, operation.name, counted)
    different = records.differences(section, operation.name, counted, tolerance=TOLERANCE)
    assert not different, "\n".join([*different, f"If that is right: {RENEW}"])
