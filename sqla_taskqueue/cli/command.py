"""The command line of ``sqla-taskqueue worker``."""

from __future__ import annotations

import logging
import os
import sys
from datetime import timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import InvalidArgument
from .errors import UNUSABLE, CannotRun
from .fleet import CHILD, Fleet
from .locate import locate
from .scopes import read_scopes
from .serve import serve
from .signals import Stopper, call_at_end_of_stdin

if TYPE_CHECKING:
    from ..worker import Worker

_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


class Level(StrEnum):
    """How much is logged."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


def worker(
    target: Annotated[
        str,
        typer.Argument(
            metavar="MODULE:NAME",
            help="A Worker, or a function that returns one: app.tasks:worker. "
            "The current folder is importable.",
            show_default=False,
        ),
    ],
    *,
    concurrency: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="How many tasks each process works on at once."),
    ] = None,
    queues: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME,…", help="Only these of the worker's queues."),
    ] = None,
    scope: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE,…",
            help="Only this scope; may be given several times, one scope each.",
        ),
    ] = None,
    processes: Annotated[
        int, typer.Option(min=1, max=1_000, metavar="N", help="How many processes.")
    ] = 1,
    grace: Annotated[
        float | None,
        typer.Option(
            min=0, metavar="SECONDS", help="How long handlers may go on after the first signal."
        ),
    ] = None,
    log_level: Annotated[
        Level,
        typer.Option(help="What is logged to stderr, where the application configures nothing."),
    ] = Level.INFO,
) -> None:
    """Run an application's worker until it is told to stop.

    The first SIGTERM or Ctrl-C: nothing more is claimed, handlers end or are given back after the
    grace period. The second ends it at once; its tasks are left to their leases.

    Exit status: 0 stopped in order, 1 the worker cannot go on, 2 used in a wrong way.

    Example: sqla-taskqueue worker app.tasks:worker --processes 4 --concurrency 20
    """
    is_child = os.environ.pop(CHILD, None) is not None
    stopper = Stopper(say=not is_child)
    stopper.install()
    if is_child:
        call_at_end_of_stdin(stopper.ask)
    try:
        found = _changed(locate(target), concurrency, queues, scope, grace)
    except CannotRun as error:
        sys.stderr.write(f"{error}\n")
        raise typer.Exit(UNUSABLE) from None
    # After the import: what the application has configured stays.
    logging.basicConfig(level=log_level.upper(), format=_FORMAT)
    if processes == 1:
        raise typer.Exit(serve(found, stopper))
    options: list[tuple[str, Any]] = [
        ("--log-level", log_level.value),
        *(("--concurrency", concurrency) for _ in "1" if concurrency is not None),
        *(("--grace", grace) for _ in "1" if grace is not None),
        *(("--queues", one) for one in queues or ()),
        *(("--scope", one) for one in scope or ()),
    ]
    arguments = ["-m", "sqla_taskqueue", "worker", target]
    for name, value in options:
        arguments += [name, str(value)]
    raise typer.Exit(Fleet(arguments, processes, found.grace.total_seconds()).run(stopper))


def _changed(
    found: Worker,
    concurrency: int | None,
    queues: list[str] | None,
    scopes: list[str] | None,
    grace: float | None,
) -> Worker:
    """Return a worker with the options of the command line."""
    changes: dict[str, Any] = {}
    if concurrency is not None:
        changes["concurrency"] = concurrency
    if queues:
        changes["queues"] = [name for text in queues for name in text.split(",")]
    if scopes:
        changes["scopes"] = read_scopes(found, scopes)
    try:
        if grace is not None:
            changes["grace"] = timedelta(seconds=grace)
        return found.replace(**changes) if changes else found
    except (InvalidArgument, OverflowError) as error:
        raise CannotRun(str(error)) from None
