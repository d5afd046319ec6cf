"""What a run comes to: the figures of the last table and of ``--json``."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .evidence import Verdict
    from .settings import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The verdict, and what only the one who watched knows.

    Attributes:
        settings: What was run.
        server_version: On which PostgreSQL.
        verdict: What the evidence says.
        killed: How many processes were killed.
        killed_held: How many leases that process lost.
        seconds: From the start of the race to the last task.
        mishaps: What went wrong around the queue: a process that died, a standstill.
    """

    settings: Settings
    server_version: str
    verdict: Verdict
    killed: int
    killed_held: int
    seconds: float
    mishaps: list[str]

    @property
    def problems(self) -> list[str]:
        """Everything that must not be."""
        return [*self.mishaps, *self.verdict.problems]

    @property
    def status(self) -> int:
        """The exit status."""
        return 1 if self.problems else 0

    @property
    def per_second(self) -> float:
        """Tasks done per second."""
        return self.verdict.done / self.seconds if self.seconds else 0.0

    def as_dict(self) -> dict[str, Any]:
        """Return the figures for ``--json``."""
        figures = asdict(self.verdict)
        del figures["problems"]
        return {
            "driver": str(self.settings.driver),
            "mode": "async" if self.settings.is_async else "sync",
            "server_version": self.server_version,
            "workers": self.settings.workers,
            "concurrency": self.settings.concurrency,
            **figures,
            "killed": self.killed,
            "killed_held": self.killed_held,
            "seconds": round(self.seconds, 3),
            "tasks_per_second": round(self.per_second, 1),
            "ok": not self.problems,
            "problems": self.problems,
        }
