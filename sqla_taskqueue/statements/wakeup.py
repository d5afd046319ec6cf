"""Telling idle workers that there is something to look at."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Text, func, select, text
from sqlalchemy.dialects import postgresql

from ._parts import Parts, bind


def notify(parts: Parts) -> Any:  # noqa: ARG001 - every builder takes the parts
    """Notify the table's channel; PostgreSQL delivers it at commit, once per distinct payload.

    A statement of its own: within a RETURNING clause it would run on the shard that has the row.
    """
    return select(func.pg_notify(bind("channel", Text), bind("queue", Text)))


_preparer: Any = postgresql.dialect().identifier_preparer  # type: ignore[no-untyped-call]


def listen(channel: str) -> Any:
    """Begin to hear what is sent on a channel."""
    return text(f"LISTEN {_preparer.quote_identifier(channel)}")
