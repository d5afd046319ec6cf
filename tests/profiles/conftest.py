"""The records of this run; with ``--record-profiles`` they are written instead of compared."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.profiles.records import FILE, Records

if TYPE_CHECKING:
    from collections.abc import Iterator


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option, for runs that name this folder."""
    parser.addoption(
        "--record-profiles",
        action="store_true",
        help="write the counts of calls and statements to tests/profiles/records.toml",
    )


@pytest.fixture(scope="session")
def recording(request: pytest.FixtureRequest) -> bool:
    """Whether counts are written down instead of compared."""
    return request.config.getoption("--record-profiles", default=False)


@pytest.fixture(scope="session")
def records(recording: bool, request: pytest.FixtureRequest) -> Iterator[Records]:
    """The records; written at the end if this run renews them."""
    assert not (recording and hasattr(request.config, "workerinput")), "record without -n"
    records = Records(FILE.read_text() if FILE.exists() else "")
    yield records
    if recording:
        FILE.write_text(str(records))
