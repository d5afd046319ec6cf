"""Tables with tasks in them, made with plain SQL."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import uuid4

from sqla_taskqueue import Queue
from tests.behaviour.hosts import Base as Shared
from tests.behaviour.hosts import Board, Logged, Pair, Task
from tests.plans.hosts import Audited, Cell, Grid, Listed, Word
from tests.plans.hosts import Base as Further

if TYPE_CHECKING:
    from tests.database import Database


_numbers = count()


class Host(NamedTuple):
    """A host class, the scope of its tasks, and its key as SQL of a number ``i``."""

    model: type[Any]
    scope: dict[str, Any]
    key: dict[str, str]

    @property
    def table(self) -> str:
        return self.model.__tablename__

    @property
    def pk(self) -> list[str]:
        return [column.name for column in self.model.__table__.primary_key]

    @property
    def queue(self) -> Queue[Any]:
        return self.queue_named("default")

    def queue_named(self, name: str) -> Queue[Any]:
        """Return a queue of the class, its scope bound."""
        return Queue(self.model, name).scope(**self.scope)

    def new_id(self) -> Any:
        """Return a primary key that no task has."""
        number = 10**9 + next(_numbers)
        if self.key["id" if "id" in self.key else "row"] == "gen_random_uuid()":
            return uuid4()
        whole = (*self.scope.values(), number, number)
        return number if self is PAIR else str(number) if self is WORD else whole

    def fill(self, database: Database, number: int, **columns: str) -> None:
        """Insert *number* tasks; *columns* are SQL expressions of ``i``, from 1."""
        scope = {name: repr(value) for name, value in self.scope.items()}
        given = scope | self.key | columns
        names = ", ".join(f'"{name}"' for name in given)
        database.sql(
            f"INSERT INTO {self.table} ({names})"
            f" SELECT {', '.join(given.values())} FROM generate_series(1, {number}) AS i"
        )


TASK = Host(Task, {"project_hash": "9f2c", "role": "coder"}, {"id": "gen_random_uuid()"})
LOGGED = Host(Logged, {}, {"id": "gen_random_uuid()"})
PAIR = Host(Pair, {"tenant_id": 7}, {"id": "nextval('filled')"})
BOARD = Host(Board, {"team_id": 7}, {"id": "gen_random_uuid()"})
GRID = Host(Grid, {}, {"row": "nextval('filled') % 7", "column": "lastval()"})
WORD = Host(Word, {}, {"id": "md5(nextval('filled')::text)"})
AUDITED = Host(Audited, {"tenant": "a"}, {"id": "gen_random_uuid()"})
CELL = Host(Cell, {"tenant": 7}, {"row": "nextval('filled') % 7", "column": "lastval()"})
LISTED = Host(Listed, {"tenant": "a"}, {"id": "gen_random_uuid()"})

HOSTS = (TASK, LOGGED, PAIR, GRID, CELL)
"""Keys of one and several columns, with and without scope and events."""


def make(database: Database) -> None:
    """Make all tables anew, without statistics."""
    database.create(Shared.metadata, Further.metadata, fresh=True)
    database.sql("CREATE SEQUENCE filled")


YESTERDAY = "statement_timestamp() - interval '1 day' - i * interval '1 second'"
TOMORROW = "statement_timestamp() + interval '1 day' + i * interval '1 second'"
CLAIMED = {
    "state": "'claimed'",
    "lease_token": "gen_random_uuid()",
    "lease_expires_at": YESTERDAY,
    "heartbeat_at": YESTERDAY,
    "claimed_at": YESTERDAY,
    "claimed_by": "'gone'",
    "claimed_session": "''",
    "attempt": "CASE i % 2 WHEN 0 THEN 1 ELSE 20 END",
    "key": "'held-' || i",
}


def grow(database: Database, host: Host, done: int, later: int, blocked: int) -> None:
    """Add so many tasks that are done, due tomorrow or blocked, and what acts need."""
    past = {"run_at": YESTERDAY, "priority": "i % 5"}
    ended = {"finished_at": YESTERDAY, "claimed_at": YESTERDAY, "attempt": "1"}
    host.fill(database, done, state="'done'", key="'done-' || i", **past, **ended)
    host.fill(database, later, run_at=TOMORROW, priority="i % 5")
    host.fill(database, blocked, state="'blocked'", pending="1", unique_key="'u-' || i")
    host.fill(database, 200, **CLAIMED)
    host.fill(database, 1_000, key="'due-' || i", **past)
    host.fill(database, 1_000, queue="'last'", key="'last-' || i", max_attempts="1", **past)
