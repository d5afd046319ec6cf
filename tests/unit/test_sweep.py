"""Where a worker's sweep begins, and how often it looks at everything."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from sqla_taskqueue.worker._upkeep import Sweep

OLDEST = datetime(2026, 1, 1, tzinfo=UTC)


def test_the_first_sweep_looks_at_everything():
    """Then it begins where the oldest live claim is."""
    sweep = Sweep(None)
    assert sweep.since_at(100.0) is None
    sweep.learn(OLDEST, 100.5, 0.5, full=True)
    assert sweep.since_at(101.0) == OLDEST


@pytest.mark.parametrize(("seconds", "pause"), [(0.001, 0.1), (0.5, 50.0), (60.0, 600.0)])
def test_full_sweeps_take_their_share_of_the_time(seconds, pause):
    """A hundredth at most; and however dear they are, there is one every ten minutes."""
    sweep = Sweep(None)
    sweep.learn(OLDEST, 100.0, seconds, full=True)
    # Sweeps between them change nothing about it.
    sweep.learn(OLDEST, 100.05, 30.0, full=False)
    assert sweep.since_at(100.0 + pause - 0.01) == OLDEST
    assert sweep.since_at(100.0 + pause + 0.01) is None
