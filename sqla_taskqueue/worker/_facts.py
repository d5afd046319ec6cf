"""What the database says of jobs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Literal

from ..models import TaskModel, value_of
from ..statements import batch as statements
from ._jobs import Job, sent_keys

if TYPE_CHECKING:
    from sqlalchemy import Connection

Fact = Literal["held", "ended", "lost"]
"""A job is still held under its token, was ended under it, or is somebody else's."""


def facts(model: TaskModel[Any], jobs: Iterable[Job], connection: Connection) -> dict[Job, Fact]:
    """Read how it stands with jobs of one class."""
    known: dict[Job, Fact] = {}
    by_queue: dict[str, list[Job]] = {}
    for job in jobs:
        known[job] = "lost"
        by_queue.setdefault(job.core.name, []).append(job)
    columns = model.table.c
    for name, some in by_queue.items():
        statement = some[0].core.statements(statements.look)
        rows = {
            tuple(value_of(row, column) for column in model.primary_key): row
            for row in connection.execute(statement, {"tq_queue": name, **sent_keys(some)})
        }
        for job in some:
            if (row := rows.get(job.key)) is None:
                continue
            if value_of(row, columns.lease_token) == job.token:
                known[job] = "held"
            elif value_of(row, columns.ended_token) == job.token:
                known[job] = "ended"
    return known
