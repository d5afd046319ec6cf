"""A PgBouncer of the tests' own, in transaction mode, in front of the test server."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg

from tests.servers import conninfo, plain

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy.engine import URL

# Debian installs it where only administrators look.
PROGRAM = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin")

SERVERS = 2
"""How many connections it has to the server, taken in turns: each transaction gets the other."""


@contextmanager
def pgbouncer(database: URL) -> Iterator[URL]:
    """Run PgBouncer for *database* on a free loopback port and yield the URL through it."""
    folder = Path(tempfile.mkdtemp(prefix="pgbouncer-"))
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    folder.chmod(0o755)  # whoever it runs as
    settings = folder / "pgbouncer.ini"
    settings.write_text(_settings(database, port))
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            [PROGRAM, "--quiet", settings], cwd=folder, stdout=log, stderr=log, **_user(database)
        )
    try:
        url = plain(database)._replace(host="127.0.0.1", port=port, query={})
        _wait(process, url, folder / "log")
        yield url
    finally:
        process.terminate()
        try:
            process.wait(timeout=10)
        finally:
            process.kill()
        shutil.rmtree(folder, ignore_errors=True)


def _settings(database: URL, port: int) -> str:
    url = plain(database)
    server = {
        "host": url.host or url.query.get("host"),
        "port": url.port or url.query.get("port"),
        "user": url.username,
        "password": url.password,
    }
    target = " ".join(f"{name}='{value}'" for name, value in server.items() if value)
    return f"""
[databases]
* = {target}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = {SERVERS}
min_pool_size = {SERVERS}
server_round_robin = 1
max_client_conn = 200
ignore_startup_parameters = extra_float_digits
"""


def _user(database: URL) -> dict[str, Any]:
    """Return as whom to run it: not as root, but as somebody who gets to the server's socket."""
    if os.geteuid() != 0:
        return {}
    socket_folder = plain(database).query.get("host")
    owner = Path(str(socket_folder)).stat().st_uid if socket_folder else 0
    user = pwd.getpwuid(owner) if owner else pwd.getpwnam("nobody")
    return {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}


def _wait(process: subprocess.Popen[bytes], url: URL, log: Path) -> None:
    """Wait until it answers.

    Raises:
        RuntimeError: It has ended, or does not answer.
    """
    deadline = time.monotonic() + 15
    while process.poll() is None and time.monotonic() < deadline:
        try:
            psycopg.connect(conninfo(url), prepare_threshold=None).close()
        except psycopg.OperationalError:
            time.sleep(0.02)
        else:
            return
    raise RuntimeError(f"PgBouncer does not answer:\n{log.read_text()}")
