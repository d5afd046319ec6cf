"""The acts whose plans are looked at leave out no statement of the library."""

from __future__ import annotations

from sqlalchemy.orm import Session

from sqla_taskqueue.models import TaskModel
from sqla_taskqueue.statements import Statements
from tests.plans.acts import ACTS, WORKER, Scene
from tests.plans.filling import CELL, LISTED, grow, make


def test_the_acts_send_every_statement(database, engine, monkeypatch):
    """Between them they ask for everything that `Statements.all` knows."""
    asked = set()
    build = Statements.__call__

    def note(statements, builder, *args, **kwargs):
        asked.add(f"{builder.__module__.rpartition('.')[2]}.{builder.__name__}{args!r}")
        return build(statements, builder, *args, **kwargs)

    make(database)
    for host in (CELL, LISTED):
        grow(database, host, done=500, later=10, blocked=200)
    monkeypatch.setattr(Statements, "__call__", note)
    for host in (CELL, LISTED):
        for act in ACTS:
            queue = host.queue_named("last" if act.last else "default")
            with Session(engine) as session:
                claims = queue.claim(session, holder=WORKER, limit=10)
                act.play(Scene(session, host, queue, claims))
                session.rollback()
    monkeypatch.undo()
    known = Statements(TaskModel(CELL.model)).all()
    unasked = {
        name
        for name in known
        if name not in asked
        # The insert that raises reads nothing; reads that choose what they please are sampled.
        and not name.endswith("'raise')")
        and not name.startswith("reading.")
    }
    assert unasked == {"catalogue.whole_index()"}  # of partitioned tables only
    assert {name.split("(")[0] for name in known} - {name.split("(")[0] for name in asked} == {
        "catalogue.whole_index"
    }
