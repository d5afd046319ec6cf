"""Everything the demo prints; plain lines where there is no terminal to draw on."""

from __future__ import annotations

import textwrap
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich import box
from rich.console import Console
from rich.padding import Padding
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from collections.abc import Generator

    from .report import Report

_MARGIN = 3
_PLAIN_EVERY = 2.0
"""Seconds between two lines where nothing can be drawn over."""


class Track:
    """One stretch of progress."""

    def __init__(self, show: Show, label: str, total: int, progress: Progress | None) -> None:
        self._show = show
        self._label = label
        self._total = total
        self._progress = progress
        self._task = None if progress is None else progress.add_task(label, total=total, note="")
        self._spoke = time.monotonic()

    def at(self, done: int, note: str = "") -> None:
        """Say how far it is."""
        if self._progress is not None and self._task is not None:
            self._progress.update(self._task, completed=done, note=note)
        elif time.monotonic() - self._spoke >= _PLAIN_EVERY:
            self._spoke = time.monotonic()
            self._show.say(f"{self._label} {done:,} of {self._total:,}" + (note and f", {note}"))


class Show:
    """The demo's voice.

    Args:
        aside: Speak on stderr, because stdout is for the figures.
    """

    def __init__(self, *, aside: bool) -> None:
        self.console = Console(stderr=aside, highlight=False)
        self._steps = 0

    def title(self, text: str, explanation: str) -> None:
        """Begin."""
        self.console.print()
        self.console.print(Text(text, style="bold"))
        self.console.print(Text(explanation))

    def step(self, heading: str) -> None:
        """Begin the next part."""
        self._steps += 1
        self.console.print()
        self.console.print(Text(f"{self._steps}. {heading}", style="bold cyan"))

    def say(self, text: str, style: str = "") -> None:
        """Say what happens."""
        # Wrapped here: what rich indents it also pads, and plain lines would end in spaces.
        for line in textwrap.wrap(text, self.console.width - _MARGIN):
            self.console.print(Text(" " * _MARGIN + line, style=style))

    @contextmanager
    def track(self, label: str, total: int) -> Generator[Track]:
        """Show progress while the block runs; other lines appear above it."""
        if not self.console.is_terminal or self.console.is_dumb_terminal:
            yield Track(self, label, total, None)
            return
        progress = Progress(
            TextColumn(" " * _MARGIN + "{task.description}"),
            BarColumn(bar_width=18),
            TextColumn("{task.completed:,.0f} of {task.total:,.0f}"),
            TextColumn("{task.fields[note]}", style="dim"),
            console=self.console,
        )
        with progress:
            yield Track(self, label, total, progress)

    def result(self, report: Report) -> None:
        """Print the last table and the verdict."""
        verdict = report.verdict
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_header=False)
        table.add_column(no_wrap=True)
        table.add_column(justify="right", style="bold", no_wrap=True)
        table.add_column(style="dim")
        must_be_nought = {"Claimed twice", "Lost"}
        for label, figure, remark in (
            ("Enqueued", verdict.enqueued, "in transactions that were committed"),
            ("Claimed", verdict.claims, "claims handed out"),
            ("Done", verdict.done, ""),
            ("Retried", verdict.retried, "attempts that failed, to be tried again"),
            ("Reclaimed", verdict.reclaimed, "leases that ran out and were taken back"),
            ("Held when killed", report.killed_held, "leases of the process that got SIGKILL"),
            (
                "Claimed twice",
                verdict.claimed_twice,
                "tasks of which two workers got the same attempt",
            ),
            ("Lost", verdict.lost, "tasks neither done nor worked on"),
            ("Effects", verdict.effects, "deliveries, written with the completion"),
            ("Tasks per second", round(report.per_second), f"in {report.seconds:.1f} s"),
        ):
            style = ""
            if label in must_be_nought:
                style = "red" if figure else "green"
            table.add_row(label, Text(f"{figure:,}", style=style), remark)
        self.console.print(Padding(table, (0, 0, 0, _MARGIN - 1)))
        if report.problems:
            self.say("This must not be:", style="bold red")
            for problem in report.problems:
                self.say(f"- {problem}", style="red")
        else:
            self.say(
                f"Every task was done exactly once: {verdict.claims:,} claims = "
                f"{verdict.done:,} done + {verdict.retried:,} retried + "
                f"{verdict.reclaimed:,} reclaimed.",
                style="bold green",
            )
            if verdict.reclaimed > report.killed_held:
                others = verdict.reclaimed - report.killed_held
                self.say(
                    f"{others:,} of those leases were of workers that live: this machine is too "
                    "busy to renew within the lease. What they wrote too late was refused."
                )
        self.console.print()
