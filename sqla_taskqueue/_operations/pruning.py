"""Delete tasks that ended long ago, one bounded batch per call."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from .. import checks
from ..errors import InvalidArgument
from ..statements import batch as statements
from ..states import ENDED
from .reading import States, checked_states

if TYPE_CHECKING:
    from .._core import QueueCore
    from .._sessions import Caller

_MOST = 10_000


def prune(
    caller: Caller,
    core: QueueCore[Any],
    *,
    older_than: timedelta,
    state: States,
    limit: int,
) -> int:
    """Delete up to *limit* tasks that ended before *older_than* ago; return how many."""
    age = checks.duration("older_than", older_than)
    limit = checks.whole("limit", limit, least=1, most=_MOST)
    states = checked_states(state)
    if live := [one.value for one in states if one not in ENDED]:
        raise InvalidArgument("state", live, f"must be none but {', '.join(ENDED)}")
    caller.flush()
    statement = core.statements(statements.prune, core.bound, states)
    return len(caller.rows(statement, {**core.inside, "tq_age": age, "tq_limit": limit}))
