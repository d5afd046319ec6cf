"""The threads that work on plain handlers."""

from __future__ import annotations

import asyncio
import random
import threading
from itertools import islice

from sqla_taskqueue.worker._crew import Crew


class Worked:
    """What has come out of a crew, in the event loop."""

    def __init__(self, most, run):
        self.crew = Crew(most, run, self.end)
        self.ended = []
        self._news = asyncio.Event()

    def end(self, job, outcome):
        self.ended.append((job, outcome))
        self._news.set()

    async def until(self, number):
        async with asyncio.timeout(15):
            while len(self.ended) < number:
                self._news.clear()
                await self._news.wait()


async def test_each_job_ends_once():
    """In batches of all sizes, quick ones and slow ones among each other."""
    chance = random.Random(1)

    def run(job):
        if job % 50 == 0:
            threading.Event().wait(0.001)
        return -job

    worked = Worked(8, run)
    jobs = iter(range(3_000))
    put = 0
    while put < 3_000:
        # Never more than there are threads: the worker claims no more than it has slots.
        free = 8 - (put - len(worked.ended))
        if batch := [*islice(jobs, chance.randint(0, free))]:
            worked.crew.put(batch)
            put += len(batch)
        await asyncio.sleep(0)
    await worked.until(3_000)
    assert sorted(worked.ended) == [(job, -job) for job in range(3_000)]
    worked.crew.close()


async def test_a_long_job_keeps_no_other_from_being_told():
    """The loop hears of those that ended before it, whichever thread took which."""
    go = threading.Event()
    worked = Worked(3, lambda job: go.wait(15) if job == "long" else None)
    for batch in (["short", "long"], ["short"]):
        worked.crew.put(batch)
    await worked.until(2)
    assert [job for job, _ in worked.ended] == ["short", "short"]
    go.set()
    await worked.until(3)
    worked.crew.close()


async def test_all_jobs_run_at_once():
    """As many as there are threads: each waits for all the others."""
    together = threading.Barrier(10, timeout=15)
    worked = Worked(10, lambda job: together.wait() >= 0)
    for _ in range(3):
        worked.ended.clear()
        worked.crew.put([*range(10)])
        await worked.until(10)
        assert all(outcome for _, outcome in worked.ended)
    worked.crew.close()


async def test_threads_are_started_when_needed_and_end():
    """One for one job at a time, and none is left after the end."""
    worked = Worked(10, lambda job: threading.current_thread())
    for number in range(1, 6):
        worked.crew.put([number])
        await worked.until(number)
    [thread] = {outcome for _, outcome in worked.ended}
    worked.crew.close()
    await asyncio.to_thread(thread.join, 15)
    assert not thread.is_alive()
