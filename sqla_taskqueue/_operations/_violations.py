"""Which unique constraint or index of the task's table kept a row out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .._drivers import UNIQUE_VIOLATION, constraint_name, schema_name, sqlstate
from ..statements import catalogue

if TYPE_CHECKING:
    from .._core import QueueCore
    from .._sessions import Caller


def is_unique_violation(error: BaseException) -> bool:
    """Tell whether a database error is about a unique constraint or index."""
    return sqlstate(error) == UNIQUE_VIOLATION


def violated(caller: Caller, core: QueueCore[Any], error: BaseException, route: Any) -> str | None:
    """Return the name of what a unique violation is about, once its savepoint is rolled back.

    A partition reports the name of its own part of an index: that of the whole index is asked
    for, unless the host's class knows the name as it is.
    """
    table, name = core.model.table, constraint_name(error)
    known = {one.name for one in table.constraints} | {one.name for one in table.indexes}
    if name is None or name in known:
        return name
    params = {"tq_schema": schema_name(error), "tq_index": name}
    rows = caller.rows(core.statements(catalogue.whole_index), params, route=route)
    return rows[0].relname if rows else name
