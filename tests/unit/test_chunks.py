"""What goes into one statement of a batch: so many rows, and so much JSON."""

from __future__ import annotations

from itertools import repeat

import pytest

from sqla_taskqueue._operations import _chunks
from sqla_taskqueue._operations._chunks import chunks


@pytest.fixture(autouse=True)
def ten_bytes(monkeypatch):
    """Ten bytes of JSON go into one statement."""
    monkeypatch.setattr(_chunks, "_JSON", 10)


@pytest.mark.parametrize(
    ("sizes", "cut"),
    [
        ([], []),
        ([1, 2, 3], [[1, 2, 3]]),
        ([1, 1, 1, 1], [[1, 1, 1], [1]]),
        ([5, 5, 5], [[5, 5], [5]]),
        ([5, 6, 4, 1], [[5], [6, 4], [1]]),
        ([1, 11, 1], [[1], [11], [1]]),
        ([99], [[99]]),
    ],
)
def test_no_statement_takes_too_much(sizes, cut):
    """Three rows or ten bytes, whichever is reached first; a larger row goes alone."""
    assert list(chunks(sizes, sizes, 3)) == cut


def test_rows_without_json_are_only_counted():
    """A heartbeat carries no JSON."""
    assert list(chunks(range(7), repeat(0), 3)) == [[0, 1, 2], [3, 4, 5], [6]]
