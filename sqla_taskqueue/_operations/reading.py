"""Reading tasks, histories and counts; a scope may be full, partial or none."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from .. import checks
from ..errors import InvalidArgument, UnsupportedModel
from ..statements import reading as statements
from ..states import ENDED, TaskState
from ..values import Holder, Page, QueueStats
from ._refusals import look
from ._targets import by_name

if TYPE_CHECKING:
    from .._core import QueueCore
    from .._sessions import Caller

_STATES = tuple(TaskState)
States = TaskState | str | Iterable[TaskState | str] | None


def get(
    caller: Caller,
    core: QueueCore[Any],
    *,
    id: Any,  # noqa: A002 - the public word
    key: str | None,
) -> Any:
    """Return one task as it is now, or None."""
    if key is not None:
        core.need_scope("get(key=…)")
    target = by_name(core, "get", id, key, partial=True)
    caller.flush()
    statement = core.statements(statements.get, core.bound, target.by)
    rows = caller.entities(statement, target.params)
    return rows[0][0] if rows else None


def find(
    caller: Caller,
    core: QueueCore[Any],
    *,
    state: States,
    name: str | None,
    holder: Holder | str | None,
    created_by: str | None,
    limit: int,
    after: Any,
    content: bool,
) -> Page[Any]:
    """Return one page of tasks, newest key first."""
    states = checked_states(state)
    checks.flag("content", content)
    longest = core.limits.name
    given: dict[str, str] = {}
    if name is not None:
        given["name"] = checks.text("name", name, size=longest, empty=True)
    if holder is not None:
        who = Holder.of(holder, longest)
        given |= {"worker": who.worker, "session": who.session}
    if created_by is not None:
        given["created_by"] = checks.text("created_by", created_by, size=longest)
    size = min(max(checks.integer("limit", limit), 1), core.limits.page)
    params = {**core.inside, "tq_limit": size + 1}
    filters = [filter_ for filter_ in statements.FILTERS if filter_ in given]
    params |= {f"tq_{filter_}": value for filter_, value in given.items()}
    if after is not None:
        filters.append("after")
        keys = core.model.key_values(after, {}, "after")
        params |= {f"tq_pk_{index}": value for index, value in enumerate(keys)}
    caller.flush()
    statement = core.statements(statements.find, core.bound, states, tuple(filters), content)
    rows = caller.entities(statement, params)
    shown = rows[:size]
    more = core.model.identity_of(shown[-1]) if len(rows) > size else None
    return Page(tuple(row[0] for row in shown), more)


def checked_states(state: States) -> tuple[TaskState, ...]:
    """Return the given states, sorted; none for None.

    Raises:
        InvalidArgument: One is unknown.
    """
    if state is None:
        return ()
    given: Any = [state] if isinstance(state, str) or not isinstance(state, Iterable) else state
    states = list(given)
    if not states or any(not isinstance(one, str) or one not in _STATES for one in states):
        problem = f"must be one or more of {', '.join(_STATES)}"
        raise InvalidArgument("state", state, problem)
    return tuple(sorted({TaskState(one) for one in states}))


def history(
    caller: Caller,
    core: QueueCore[Any],
    *,
    id: Any,  # noqa: A002
    key: str | None,
) -> list[Any]:
    """Return the events of one task, oldest first; none when there is no such task."""
    if core.model.events is None:
        message = (
            f"{core.model.cls.__name__} has no event class, so nothing is recorded: map one with "
            f"TaskEventMixin and __task_model__ = {core.model.cls.__name__}"
        )
        raise UnsupportedModel(message)
    target = by_name(core, "history", id, key)
    caller.flush()
    looked = look(caller, core, target, lock=False, route=None)
    if looked is None:
        return []
    values = core.model.key_values(looked.id, core.scope)
    params = {f"tq_pk_{index}": value for index, value in enumerate(values)}
    query = core.statements(statements.history)
    rows = caller.entities(query, params, route=query)
    return [row[0] for row in rows]


def stats(caller: Caller, core: QueueCore[Any]) -> QueueStats:
    """Count the tasks of each state."""
    caller.flush()
    counted = core.limits.counted
    row: Any = caller.rows(
        core.statements(statements.stats, core.bound), {**core.inside, "tq_counted": counted + 1}
    )[0]
    *by_state, due, expired, oldest_due_at = row
    counts = dict(zip(TaskState, by_state, strict=True))
    capped = frozenset(state for state in ENDED if counts[state] > counted)
    return QueueStats(
        **{
            state.value: min(count, counted) if state in capped else count
            for state, count in counts.items()
        },
        capped=capped,
        due=due,
        expired=expired,
        oldest_due_at=oldest_due_at,
    )
