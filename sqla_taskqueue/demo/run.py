"""The course of a run, from the server's start to the verdict."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from .accident import Accident, kill_one
from .crew import Crew
from .database import Database, schema_of_its_own, server_version
from .evidence import gather, judge, reclaimed
from .host import welcomes
from .producer import enqueue_all, enqueue_in_vain
from .report import Report
from .server import server
from .settings import FAILING, LEASE, PER_TRANSACTION
from .signals import Signals

if TYPE_CHECKING:
    from uuid import UUID

    from .settings import Settings
    from .show import Show, Track

_GLANCE = 0.1
_STANDSTILL = 30.0
"""Seconds without a task done after which the race is called off."""
_ACCIDENT_AT = 0.25
"""The share of the tasks that is done when a process is killed."""


def run(settings: Settings, show: Show) -> Report:
    """Run the demo; leave nothing behind, whatever happens.

    Raises:
        CannotRun: Something that the demo needs is missing or does not answer.
        Interrupted: Ctrl-C or another request to end.
    """
    with (
        Signals() as signals,
        tempfile.TemporaryDirectory(prefix="taskqueue-demo-", ignore_cleanup_errors=True) as name,
    ):
        folder = Path(name)
        show.title(
            "A task queue in an application's own tables",
            f"{_count(settings.tasks, 'task')} for {_count(settings.workers, 'worker')} of "
            f"{_count(settings.concurrency, 'handler')}: each is to be done exactly once.",
        )
        show.step("Database")
        if settings.url is None:
            show.say("Starting a PostgreSQL of the demo's own, in a temporary folder ...")
        with (
            server(settings, folder, signals) as url,
            schema_of_its_own(settings, url) as database,
        ):
            signals.check()
            return _perform(settings, show, signals, database, folder)


def _perform(
    settings: Settings, show: Show, signals: Signals, database: Database, folder: Path
) -> Report:
    version = database.run(server_version)
    mode = "async" if settings.is_async else "sync"
    show.say(f"PostgreSQL {version}, through {settings.driver} ({mode}).")
    show.say("The host's tables: users, tasks, task_events, deliveries.")
    with Crew(settings, database, folder) as crew:  # the processes start up meanwhile
        enqueued = _enqueue(settings, show, signals, database)
        show.step("Race")
        kind = "coroutines" if settings.is_async else "threads"
        show.say(
            f"Workers claim what they have free handlers ({kind}) for, under leases of "
            f"{LEASE.total_seconds():g} s. The first attempt of every {FAILING}th task fails."
        )
        crew.begin(signals)
        race = Race(show, signals, database, crew, total=len(enqueued))
        race.run()
        mishaps = [*race.mishaps, *crew.stop(signals)]
        show.step("Result")
        killed = [m for m in crew.members.values() if m.killed]
        evidence = database.run(
            lambda session: gather(
                session,
                enqueued=enqueued,
                logs=crew.logs,
                killed=[member.orders.worker for member in killed],
            )
        )
    report = Report(
        settings=settings,
        server_version=version,
        verdict=judge(evidence),
        killed=len(killed),
        killed_held=race.accident.held if race.accident else 0,
        seconds=race.seconds,
        mishaps=mishaps,
    )
    show.result(report)
    return report


def _enqueue(settings: Settings, show: Show, signals: Signals, database: Database) -> list[UUID]:
    show.step("Enqueue")
    vain = min(PER_TRANSACTION, settings.tasks)
    enqueued: list[UUID] = []
    transactions = 0
    with show.track("Enqueued", settings.tasks) as track:
        for ids in enqueue_all(database, settings.tasks, is_async=settings.is_async):
            enqueued += ids
            transactions += 1
            track.at(len(enqueued))
            signals.check()
        enqueue_in_vain(database, vain, is_async=settings.is_async)
    show.say(
        f"{_count(len(enqueued), 'user')} signed up, each with a task, in "
        f"{_count(transactions, 'transaction')}."
    )
    show.say(
        f"One more transaction, of {_count(vain, 'user')}, was rolled back: "
        "its tasks went with it."
    )
    return enqueued


class Race:
    """The workers at work, watched: counts what they do, and kills one."""

    def __init__(
        self, show: Show, signals: Signals, database: Database, crew: Crew, *, total: int
    ) -> None:
        self._show = show
        self._signals = signals
        self._database = database
        self._crew = crew
        self._total = total
        self._reclaimed = 0
        self._owed = 0  # how many there will be once the killed process's leases are back
        self.accident: Accident | None = None
        self.mishaps: list[str] = []
        self.seconds = 0.0

    def run(self) -> None:
        """Watch until everything is done, or nothing moves any more."""
        with self._show.track("Done", self._total) as track:
            self._watch(track)
        if self.accident is None:
            why = "one process is all there is" if len(self._crew.members) == 1 else "too quick"
            self._show.say(f"No process was killed: {why}.")

    def _watch(self, track: Track) -> None:
        start = moved = time.monotonic()
        done = 0
        while self._crew.somebody_works:
            stats = self._database.run(welcomes.stats)
            now = time.monotonic()
            if stats.done > done:
                done, moved = stats.done, now
            self.seconds = now - start
            rate = done / self.seconds if self.seconds else 0
            track.at(
                done,
                f"{stats.claimed:,} claimed now, {self._reclaimed:,} reclaimed, {rate:,.0f}/s",
            )
            if not stats.live:
                return
            if now - moved > _STANDSTILL:
                self.mishaps.append(f"No task was done for {_STANDSTILL:.0f} s.")
                return
            if done >= self._total * _ACCIDENT_AT:
                self._kill()
            self._look_for_reclaimed()
            for mishap in self._crew.casualties():
                self.mishaps.append(mishap)
                self._show.say(mishap, style="red")
            self._signals.wait(_GLANCE)

    def _kill(self) -> None:
        if self.accident is not None or len(self._crew.members) == 1:
            return
        self.accident = kill_one(self._database, self._crew)
        if self.accident is not None:
            self._owed = self._reclaimed + self.accident.held
            self._show.say(
                f"Killed process {self.accident.process} while it held "
                f"{_count(self.accident.held, 'task')}; "
                f"their leases run out in {LEASE.total_seconds():g} s.",
                style="yellow",
            )

    def _look_for_reclaimed(self) -> None:
        """See what the workers that are left have taken back."""
        self._reclaimed = self._database.run(reclaimed)
        if self._owed and self._reclaimed >= self._owed:
            self._show.say(
                f"{_count(self._reclaimed, 'lease')} ran out and were taken back: the tasks go "
                "to other workers.",
                style="yellow",
            )
            self._owed = 0


def _count(number: int, noun: str) -> str:
    if number == 1:
        return f"1 {noun}"
    return f"{number:,} {noun}{'es' if noun.endswith('s') else 's'}"
