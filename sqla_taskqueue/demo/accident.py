"""SIGKILL for the process that holds most, at a moment when it does hold something."""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from sqlalchemy import func, select, text

from .. import TaskState
from .host import Task
from .job import application

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

    from .crew import Crew
    from .database import Database

_PATIENCE = 5.0
_GLANCE = 0.005


class Accident(NamedTuple):
    """What happened."""

    process: int
    held: int


def kill_one(database: Database, crew: Crew) -> Accident | None:
    """Kill a process while it holds claims; None when none does just now."""
    held = database.run(_held)
    if not held:
        return None
    number = held.most_common(1)[0][0]
    member = crew.members[number]
    # Frozen first: otherwise it might finish its tasks between the look and the blow.
    member.signal("SIGSTOP")
    try:
        _until_none(database, number, crew, only_active=True)
        if not database.run(_held)[number]:
            return None
        member.kill()
    finally:
        if not member.killed:
            member.signal("SIGCONT")
    # A commit that was on its way still counts: the server is asked once it is done with it all.
    _until_none(database, number, crew, only_active=False)
    return Accident(number, database.run(_held)[number])


def _held(session: Session) -> Counter[int]:
    """Return how many tasks each process holds."""
    rows = session.execute(
        select(Task.claimed_by, func.count())
        .where(Task.state == TaskState.CLAIMED)
        .group_by(Task.claimed_by)
    )
    held: Counter[int] = Counter()
    for worker, count in rows:
        held[int(str(worker).removeprefix("worker-"))] += count
    return held


def _until_none(database: Database, number: int, crew: Crew, *, only_active: bool) -> None:
    """Wait until the server has no (active) connection of a process any more."""
    name = application(database.schema, crew.members[number].orders.number)
    query = "SELECT count(*) FROM pg_stat_activity WHERE application_name = :name"
    if only_active:
        query += " AND state = 'active'"
    deadline = time.monotonic() + _PATIENCE
    while time.monotonic() < deadline:
        if not database.run(lambda session: session.scalar(text(query), {"name": name})):
            return
        time.sleep(_GLANCE)
