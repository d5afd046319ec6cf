"""The command line of the demo, and what its exit status says."""

from __future__ import annotations

import json
import sys
from typing import Annotated

import typer
from sqlalchemy.exc import DBAPIError

from .settings import CannotRun, Driver, choose
from .show import Show
from .signals import Interrupted

_UNUSABLE = 2


def demo(
    *,
    url: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="PostgreSQL to use, in a schema of the demo's own that is dropped at the end. "
            "Without it, a server is started for the run.",
        ),
    ] = None,
    tasks: Annotated[
        int, typer.Option(min=1, metavar="N", help="How many tasks to enqueue.")
    ] = 2_000,
    workers: Annotated[
        int,
        typer.Option(
            min=1, max=15, metavar="N", help="How many workers race, each in its own process."
        ),
    ] = 5,
    concurrency: Annotated[
        int,
        typer.Option(min=1, max=1_000, metavar="N", help="How many tasks each does at once."),
    ] = 10,
    driver: Annotated[
        Driver | None,
        typer.Option(
            metavar="NAME",
            help="psycopg, psycopg2 or asyncpg; psycopg unless the URL names one.",
        ),
    ] = None,
    sync: Annotated[
        bool | None,
        typer.Option(
            "--sync/--async",
            help="Handlers as plain functions in threads or as coroutines; by default what the driver "
            "does.",
            show_default=False,
        ),
    ] = None,
    as_json: Annotated[
        bool,
        typer.Option("--json", help="Print the final figures as JSON; all else goes to stderr."),
    ] = False,
) -> None:
    """Watch workers race for tasks, lose a process, and do every task exactly once.

    Exit status: 0 when each task was done exactly once, 1 when not, 2 when the demo cannot run.
    """
    try:
        settings = choose(
            tasks=tasks,
            workers=workers,
            concurrency=concurrency,
            driver=driver,
            sync=sync,
            url=url,
        )
        # Only now is it known that everything it imports is installed.
        from .run import run  # noqa: PLC0415

        report = run(settings, Show(aside=as_json))
    except CannotRun as error:
        sys.stderr.write(f"{error}\n")
        raise typer.Exit(_UNUSABLE) from None
    except DBAPIError as error:
        words = str(error.orig).strip().splitlines() or [type(error.orig).__name__]
        sys.stderr.write(f"The database failed during the run: {words[0]}\n")
        raise typer.Exit(_UNUSABLE) from None
    except Interrupted as interrupted:
        sys.stderr.write(f"Ended by {interrupted}; everything was cleaned up.\n")
        raise typer.Exit(interrupted.status) from None
    if as_json:
        print(json.dumps(report.as_dict(), indent=2))
    raise typer.Exit(report.status)
