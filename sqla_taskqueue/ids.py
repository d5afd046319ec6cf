"""UUIDs of version 7: keys that sort by the time they were made.

RFC 9562, sections 5.7 and 6.2 (method 2, a monotonic random counter): 48 bits of Unix
milliseconds, then 74 random bits that are *incremented* by a random step while the millisecond
stays the same. Ids of one process are strictly increasing, also from several threads and after
the clock was set back; new rows therefore land at the right-hand edge of every index.
"""

from __future__ import annotations

import os
import threading
import time
from uuid import UUID

_VERSION_AND_VARIANT = (0x7 << 76) | (0b10 << 62)
_RANDOM_BITS = 74
_RANDOM_MASK = (1 << _RANDOM_BITS) - 1
_LOW_BITS = 62
_LOW_MASK = (1 << _LOW_BITS) - 1
_STEP_BITS = 32


class _Generator:
    """State of the process's generator: the last millisecond and its counter."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Start over; a forked child must not go on with its parent's counter."""
        self._lock = threading.Lock()
        self._millisecond = 0
        self._counter = 0

    def __call__(self) -> UUID:
        with self._lock:
            millisecond = time.time_ns() // 1_000_000
            if millisecond > self._millisecond:
                self._millisecond = millisecond
                # The top bit stays clear: room for increments within the millisecond.
                self._counter = int.from_bytes(os.urandom(10)) & (_RANDOM_MASK >> 1)
            else:
                self._counter += 1 + int.from_bytes(os.urandom(_STEP_BITS // 8))
                if self._counter > _RANDOM_MASK:
                    self._millisecond += 1
                    self._counter = int.from_bytes(os.urandom(10)) & (_RANDOM_MASK >> 1)
            millisecond, counter = self._millisecond, self._counter
        return UUID(
            int=(millisecond << 80)
            | ((counter >> _LOW_BITS) << 64)
            | (counter & _LOW_MASK)
            | _VERSION_AND_VARIANT
        )


_generate = _Generator()
if hasattr(os, "register_at_fork"):  # not on Windows, which does not fork
    os.register_at_fork(after_in_child=_generate.reset)


def uuid7() -> UUID:
    """Make a UUID of version 7, greater than every one this process made before."""
    return _generate()
