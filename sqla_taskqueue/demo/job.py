"""What a worker process is told."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Orders:
    """What a worker process is told.

    Attributes:
        number: Which process it is, from 1.
        concurrency: How many tasks it works on at once.
        url: The database, password included.
        schema: Where the host's tables are.
        is_async: Whether its handlers are coroutines.
        pool: How many connections its handlers share.
        log: Where they write down their claims.
    """

    number: int
    concurrency: int
    url: str
    schema: str
    is_async: bool
    pool: int
    log: Path

    @property
    def worker(self) -> str:
        """The worker's name, as holder of its claims."""
        return f"worker-{self.number}"

    @property
    def application(self) -> str:
        """What its connections are called in ``pg_stat_activity``."""
        return application(self.schema, self.number)


def application(schema: str, number: int) -> str:
    """Return the name of a process's connections: of this very run and process."""
    return f"{schema} process {number}"
