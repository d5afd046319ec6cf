"""The claim floor: where to look for the next tasks of one queue and scope, and how often below.

A worker remembers for each lane where its last claim ended, and begins there: index entries of
finished tasks that a held snapshot keeps alive lie below. Tasks may come in below, too: committed
late, released, reclaimed. Looks further back find them, and take only their share of the time:
five seconds back at most a tenth, from the beginning at most a twentieth. No look is triggered by
a clock alone or by a short batch: each full look costs in proportion to all that is dead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import Any, Literal

Look = Literal["full", "back", "floor"]
"""From the beginning of every lane, from some seconds below the floors, or from the floors."""
Position = tuple[Any, ...]
"""``run_at`` and the primary key's part beyond the scope."""

_SHORTEST, _LONGEST = 0.010, 30.0
_FULL_SHARE, _BACK_SHARE = 20, 10
_MEMORY = 0.2
"""The weight of the newest batch in the moving average."""


class Floor:
    """What a worker knows of one queue and scope. Times are of the process's monotonic clock.

    Args:
        rank: What positions are compared by; by default themselves.
    """

    def __init__(self, rank: Callable[[Position], Any] = lambda position: position) -> None:
        self._rank = rank
        self.lanes: dict[int, Position] = {}
        self.next_full = 0.0
        self.next_back = 0.0
        self._usual = 0.0

    def look(self, now: float) -> Look:
        """Return which look is due."""
        if now >= self.next_full or not self.lanes:
            return "full"
        return "back" if now >= self.next_back else "floor"

    def learn(
        self,
        look: Look,
        now: float,
        seconds: float,
        found: Iterable[tuple[int, Position]],
        *,
        limit: int,
    ) -> None:
        """Take in what a look has found, and what it cost.

        Args:
            look: Which look it was.
            now: When it ended.
            seconds: How long it took.
            found: Priority and position of each claimed task.
            limit: How many it could have found.
        """
        rank = self._rank
        highest: dict[int, Position] = {}
        total = 0
        for priority, position in found:
            total += 1
            if priority not in highest or rank(position) > rank(highest[priority]):
                highest[priority] = position
        exhausted = total < limit
        for priority, position in highest.items():
            before = self.lanes.get(priority)
            # There may be more between the last one found and the floor, unless none is left.
            if not exhausted or before is None or rank(position) > rank(before):
                self.lanes[priority] = position
        extra = max(seconds - self._usual, 0.0)
        if look == "full":
            self.next_full = now + _clamp(_FULL_SHARE * extra)
        elif look == "back":
            self.next_back = now + _clamp(_BACK_SHARE * extra)
        elif not exhausted:
            self._usual += (seconds - self._usual) * (_MEMORY if self._usual else 1)

    def lower(self, priority: int, position: Position) -> None:
        """Note that a task of one's own is queued again at *position*, due at once."""
        floor = self.lanes.get(priority)
        if floor is not None and self._rank(position) <= self._rank(floor):
            self.lanes[priority] = (position[0] - timedelta(microseconds=1), *position[1:])


def _clamp(seconds: float) -> float:
    return min(max(seconds, _SHORTEST), _LONGEST)
