"""Every kind of declarative class that a task class can be.

Each factory maps a class of its own on metadata of its own, once for the process.
"""

from __future__ import annotations

from tests.hosts.kinds.declarative import library_columns, plain
from tests.hosts.kinds.entry import KINDS, Kind
from tests.hosts.kinds.odd import sqlmodel_registry

__all__ = ["KINDS", "Kind", "library_columns", "plain", "sqlmodel_registry"]
