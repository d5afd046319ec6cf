"""What became of jobs, from the moment it is known until it is written."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from ._jobs import Job, log
from ._outcomes import Outcome

if TYPE_CHECKING:
    from ..models import TaskModel

_MOST = 1_000
_BUSY = 0.1
"""Seconds until a row that somebody else had locked is tried again."""


class Ends:
    """Outcomes that wait for a turn, are on their way, or rest because their row is locked.

    Args:
        models: The task classes; one statement writes outcomes of one of them.
        settled: Called with each job whose end is written, or is nobody's business any more.
    """

    def __init__(self, models: Iterable[TaskModel[Any]], settled: Callable[[Job], object]) -> None:
        self._waiting: dict[TaskModel[Any], deque[Outcome]] = {model: deque() for model in models}
        self._busy: list[Outcome] = []
        self._sent: Sequence[Outcome] = ()
        self._singly = 0
        self._settled = settled

    def __len__(self) -> int:
        """How many are not known to be written yet."""
        return len(self._sent) + len(self._busy) + sum(map(len, self._waiting.values()))

    def __bool__(self) -> bool:
        return True

    @property
    def models(self) -> list[TaskModel[Any]]:
        """The task classes of which some wait."""
        return [model for model, waiting in self._waiting.items() if waiting]

    @property
    def singly(self) -> bool:
        """Whether the next one is to be written alone, without claims beside it."""
        return self._singly > 0 and any(self._waiting.values())

    @property
    def rest_until(self) -> list[float]:
        """When those are to be tried again whose rows were locked."""
        return [outcome.not_before for outcome in self._busy]

    def add(self, outcome: Outcome) -> None:
        """Have an outcome written."""
        self._waiting[outcome.job.core.model].append(outcome)

    def take(self, model: TaskModel[Any]) -> list[Outcome]:
        """Return what the next statement is to write; it is under way until something is said."""
        waiting = self._waiting[model]
        most = _MOST
        if self._singly and waiting:
            self._singly -= 1
            most = 1
        outcomes = [waiting.popleft() for _ in range(min(len(waiting), most))]
        # In the order of their keys: two workers that end each other's tasks never deadlock. Keys
        # that Python cannot compare stay as they are, and a deadlock is tried again.
        with suppress(TypeError):
            outcomes.sort(key=lambda outcome: outcome.job.key)
        self._sent = outcomes
        return outcomes

    def answered(self) -> None:
        """Take note that nothing is under way."""
        self._sent = ()

    def put_back(self, outcomes: Sequence[Outcome], *, uncertain: bool = False) -> None:
        """Send outcomes again: nothing was written, or nobody knows."""
        self._sent = ()
        for outcome in reversed(outcomes):
            outcome.uncertain = outcome.uncertain or uncertain
            self._waiting[outcome.job.core.model].appendleft(outcome)

    def refused(self, outcomes: Sequence[Outcome], error: Exception, *, alone: bool) -> None:
        """See to it that what cannot be written keeps nothing else from being written.

        Nothing was written. Each is sent again in a statement of its own; the one that fails then
        is left to its lease, which is renewed no longer.
        """
        if alone and len(outcomes) == 1:
            self._sent = ()
            job = outcomes[0].job
            log.error(
                "%s: its end cannot be written; it is left to its lease", job, exc_info=error
            )
            self.settle(job)
        else:
            self.put_back(outcomes)
            self._singly = len(outcomes)

    def rest(self, outcome: Outcome, now: float) -> None:
        """Try again in a while: somebody else has locked the row."""
        outcome.not_before = now + _BUSY
        self._busy.append(outcome)

    def retry_rested(self, now: float) -> bool:
        """Have those wait for a turn again that have rested; return whether there are any."""
        due = [outcome for outcome in self._busy if outcome.not_before <= now]
        if due:
            self._busy = [outcome for outcome in self._busy if outcome.not_before > now]
            for outcome in due:
                self.add(outcome)
        return bool(due)

    def settle(self, job: Job) -> None:
        """Be done with a job."""
        if not job.settled:
            job.settled = True
            self._settled(job)
