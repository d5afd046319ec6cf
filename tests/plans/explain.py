"""What the server makes of the library's own statements."""

from __future__ import annotations

import json
import re
from contextlib import contextmanager
from datetime import timedelta
from itertools import count
from typing import TYPE_CHECKING, Any, NamedTuple

from psycopg import sql
from sqlalchemy import event

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy import Connection, Engine

MODES = ("force_generic_plan", "force_custom_plan")

WORST = {
    f"enable_{name}": "off"
    for name in ("hashjoin", "mergejoin", "hashagg", "sort", "material", "memoize")
}
"""Settings under which a careless subselect runs once for every outer row (B01)."""


class Sent(NamedTuple):
    """A statement as it went to the driver."""

    text: str
    params: dict[str, Any]


@contextmanager
def recording(engine: Engine) -> Iterator[list[Sent]]:
    """Collect what is sent through *engine* within the block."""
    sent: list[Sent] = []

    def record(connection, cursor, statement, parameters, context, executemany):
        sent.append(Sent(statement, dict(parameters or {})))

    event.listen(engine, "before_cursor_execute", record)
    try:
        yield sent
    finally:
        event.remove(engine, "before_cursor_execute", record)


def only(sent: list[Sent], beginning: str) -> Sent:
    """Return the one statement that contains *beginning* and is not the wake-up."""
    [found] = [one for one in sent if beginning in one.text and "pg_notify" not in one.text]
    return found


def configure(connection: Connection, settings: dict[str, str]) -> None:
    """Set *settings* for the rest of the transaction."""
    for name, value in settings.items():
        connection.exec_driver_sql(f"SET LOCAL {name} = {value}")


class Explained(NamedTuple):
    """A statement as it went to the driver, and its plan at that moment."""

    text: str
    mode: str
    plan: dict[str, Any]

    def __str__(self) -> str:
        return f"{self.mode}: {self.text}\n{json.dumps(self.plan, indent=1)}"


@contextmanager
def explaining(engine: Engine) -> Iterator[list[Explained]]:
    """Explain what is sent through *engine*, in both plan modes, just before it is sent.

    Where it is sent: in the same transaction, whose rows it finds; its effect is undone.
    """
    explained: list[Explained] = []

    def look(connection, cursor, statement, parameters, context, executemany):
        if "pg_notify" in statement or "SAVEPOINT" in statement:
            return
        raw = connection.connection.dbapi_connection
        sent = Sent(statement, dict(parameters or {}))
        for mode in MODES:
            raw.execute("SAVEPOINT before_the_look")
            raw.execute(f"SET LOCAL plan_cache_mode = {mode}")
            explained.append(Explained(statement, mode, _explained(raw, sent)))
            raw.execute("ROLLBACK TO SAVEPOINT before_the_look")

    event.listen(engine, "before_cursor_execute", look)
    try:
        yield explained
    finally:
        event.remove(engine, "before_cursor_execute", look)


_names = count()


def explain(engine: Engine, sent: Sent, *, mode: str, **settings: str) -> dict[str, Any]:
    """Run *sent* as a prepared statement under a plan *mode*, undo it, and return its plan."""
    with engine.connect() as connection:
        configure(connection, {"plan_cache_mode": mode, **settings})
        plan = _explained(connection.connection.dbapi_connection, sent)
        connection.rollback()
    return plan


def _explained(raw: Any, sent: Sent) -> dict[str, Any]:
    order: list[str] = []

    def number(match: re.Match[str]) -> str:
        if match[1] not in order:
            order.append(match[1])
        place = f"${order.index(match[1]) + 1}"
        # The driver says that it sends an interval; PREPARE has to be told.
        return f"{place}::interval" if isinstance(sent.params[match[1]], timedelta) else place

    text = re.sub(r"%\((\w+)\)s", number, sent.text).replace("%%", "%")
    name = f"explained_{next(_names)}"
    raw.execute(f"PREPARE {name} AS {text}", prepare=False)
    values = sql.SQL(", ").join(sql.Literal(sent.params[one]) for one in order)
    arguments = sql.SQL("({})").format(values) if order else sql.SQL("")
    [[plan]] = raw.execute(
        sql.SQL("EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) EXECUTE {} {}").format(
            sql.Identifier(name), arguments
        ),
        prepare=False,
    ).fetchone()
    return plan["Plan"]


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield every node of a plan that was executed."""
    if plan["Actual Loops"]:
        yield plan
    for inner in plan.get("Plans", ()):
        yield from nodes(inner)


def scans(plan: dict[str, Any], table: str) -> list[str]:
    """Return how a table was read: names of its indexes, or the kind of scan."""
    indexed = [node for node in nodes(plan) if "Index Name" in node]
    of_table = [
        node["Node Type"]
        for node in nodes(plan)
        if node.get("Relation Name") == table
        and node["Node Type"] not in ("ModifyTable", "Bitmap Heap Scan")
        and "Index Name" not in node
    ]
    return sorted({node["Index Name"] for node in indexed} | set(of_table))


def removed(plan: dict[str, Any]) -> float:
    """Return how many rows were read in vain."""
    return sum(
        node.get("Rows Removed by Filter", 0) * node["Actual Loops"] for node in nodes(plan)
    )


def buffers(plan: dict[str, Any]) -> int:
    """Return how many pages a plan, or a part of it, looked at."""
    return plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]
