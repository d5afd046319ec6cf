"""Inserting a task, once: ``INSERT … ON CONFLICT DO NOTHING``, then a look at what is there.

Without a conflict target, because a target raises on the *other* unique index; and as two
statements, because insert-or-select in one returns nothing when it loses a race.
"""

from __future__ import annotations

from typing import Any, Literal

from sqlalchemy import Interval, Select, Text, insert, select

from .._schema import is_state
from ..dialects import now, or_nothing
from ..states import LIVE
from ._parts import Parts, bind, sent_json

Due = Literal["delay", "run_at"]
"""Whether the call says how long to wait or until when."""
Identity = Literal["id", "key", "unique_key"]
"""By what an existing task is recognised."""


def insert_task(parts: Parts, due: Due, on_conflict: Literal["nothing", "raise"]) -> Any:
    """Insert one task; its columns are those of the parameters, the payload comes as text."""
    values: dict[str, Any] = {"created_at": now(), "updated_at": now()}
    if parts.model.keeps_json:
        values["payload"] = sent_json("payload")
    if due == "delay":
        values["run_at"] = now() + bind("delay", Interval)
    statement = insert(parts.model.cls).values(values)
    if on_conflict == "nothing":
        statement = or_nothing(statement)
    # "raw": parameters are named by column, and Core evaluates the host's Python-side defaults.
    return statement.returning(*parts.model.primary_key, parts.c.state).execution_options(
        dml_strategy="raw"
    )


def existing(parts: Parts, by: Identity) -> Select[Any]:
    """Find the task that kept another one out."""
    c = parts.c
    query: Select[Any] = select(*parts.model.primary_key, c.state)
    match by:
        case "id":
            # In any queue, like a key.
            return query.where(*parts.scoped(), *parts.named("id"))
        case "key":
            # Within the key's scope, which need not contain the queue.
            return query.where(*parts.in_key_scope(), *parts.named("key"))
        case "unique_key":
            return query.where(
                *parts.inside(),
                c.unique_key == bind("unique_key", Text),
                is_state(c.state, *LIVE),
            )


def record_created(parts: Parts) -> Any:
    """Record that a task was made; parameters are named by column.

    Core: the event goes where its task went, whatever the event class is bound to.
    """
    events = parts.model.events
    assert events is not None
    return insert(events.table).values({"created_at": now()}).returning(events.table.c.id)
