"""Statements of bounded size."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeVar

RowT = TypeVar("RowT")

_JSON = 16 << 20
"""How much JSON one statement carries, unless a single row has more.

It bounds memory; and PostgreSQL takes no message of a gigabyte, nor an array of a quarter of it.
"""


def chunks(rows: Iterable[RowT], sizes: Iterable[int], most: int) -> Iterator[list[RowT]]:
    """Cut *rows* into what goes into one statement: at most *most*, and so much JSON.

    Args:
        rows: The rows.
        sizes: How long the JSON of each is.
        most: How many rows one statement takes.
    """
    chunk: list[RowT] = []
    total = 0
    for row, size in zip(rows, sizes, strict=False):
        if chunk and (len(chunk) == most or total + size > _JSON):
            yield chunk
            chunk, total = [], 0
        chunk.append(row)
        total += size
    if chunk:
        yield chunk
