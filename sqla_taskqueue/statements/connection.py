"""What the worker asks and sets on connections of its own."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Boolean, Text, func, literal_column, select

from ._parts import ONE, bind

backend_pid: Any = select(func.pg_backend_pid())
"""Which process of the server does the work; a pooler named another one when it connected."""

probe: Any = select(ONE)
"""Nothing, for an answer."""

set_lock_timeout: Any = select(
    func.set_config(
        literal_column("'lock_timeout'", Text),
        bind("value", Text),
        literal_column("false", Boolean),
    )
)
"""Limit how long statements of this connection wait for a lock; never through a pooler."""
