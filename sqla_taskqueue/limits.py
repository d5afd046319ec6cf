"""The bounds of a queue's arguments."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from . import checks
from .errors import InvalidArgument

_MOST = 1 << 30
_LARGEST = {
    "claim": _MOST,
    # Keys and queue names must fit into an entry of an index, beside the scope.
    "key": 500,
    "name": 500,
    # Many small values take a multiple of their JSON in a jsonb, which has a limit of its own.
    "payload": 16 << 20,
    "result": 16 << 20,
    "error": 1 << 20,
    "event_error": 1 << 20,
    "page": _MOST,
    "counted": _MOST,
}
"""The largest values of the bounds."""
_SHORTEST_LEASE = timedelta(milliseconds=100)
_LONGEST_LEASE = timedelta(days=7)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds of one queue; ``Queue(..., limits=Limits(...))``.

    Out of range is a typed error before any SQL, except that leases and page sizes are clamped.

    Args:
        lease: Length of a lease unless the call says otherwise.
        lease_min: Shortest lease; at least 100 ms.
        lease_max: Longest lease; at most 7 days.
        max_attempts: Attempts of a task unless the call says otherwise; None is no limit.
        claim: Most tasks that one ``claim`` takes.
        key: Longest ``key`` and ``unique_key``, in characters; at most 500.
        name: Longest name of a queue, task, worker, session or actor, in bytes of UTF-8; at most
            500.
        payload: Largest payload, in bytes of JSON; at most 16 MiB.
        result: Largest result, in bytes of JSON; at most 16 MiB.
        error: Longest error text in the row, in characters; the rest is cut. At most 1,048,576.
        event_error: Longest error text in an event, in characters; the rest is cut. At most
            1,048,576.
        page: Most tasks on one page of ``find``.
        counted: Up to here ended tasks are counted exactly by ``stats``.
    """

    lease: timedelta = timedelta(seconds=300)
    lease_min: timedelta = _SHORTEST_LEASE
    lease_max: timedelta = _LONGEST_LEASE
    max_attempts: int | None = 20
    claim: int = 1_000
    key: int = 128
    name: int = 100
    payload: int = 1 << 20
    result: int = 64 << 10
    error: int = 1_000
    event_error: int = 10_000
    page: int = 200
    counted: int = 100_000

    def __post_init__(self) -> None:
        checks.max_attempts(self.max_attempts)
        for name in ("lease", "lease_min", "lease_max"):
            checks.duration(name, getattr(self, name))
        for name, most in _LARGEST.items():
            checks.whole(name, getattr(self, name), least=1, most=most)
        if not _SHORTEST_LEASE <= self.lease_min <= self.lease_max <= _LONGEST_LEASE:
            raise InvalidArgument(
                "lease_min",
                self.lease_min,
                f"must satisfy {_SHORTEST_LEASE} <= lease_min <= lease_max <= {_LONGEST_LEASE}",
            )

    @classmethod
    def board(cls) -> Limits:
        """Return the limits of board classes: leases of 30 s to 24 h, endless attempts."""
        return cls(
            lease=timedelta(seconds=900),
            lease_min=timedelta(seconds=30),
            lease_max=timedelta(hours=24),
            max_attempts=None,
        )

    def clamp_lease(self, lease: timedelta | None) -> timedelta:
        """Return *lease*, or the default for None, within the bounds."""
        if lease is None:
            lease = self.lease
        elif not isinstance(lease, timedelta):
            raise InvalidArgument(
                "lease", lease, f"must be a timedelta, not {type(lease).__name__}"
            )
        return min(max(lease, self.lease_min), self.lease_max)
