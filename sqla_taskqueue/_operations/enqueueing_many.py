"""Enqueue many tasks: arrays in statements of bounded size, answers in input order."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from .. import checks
from ..errors import InvalidArgument
from ..payloads import encode
from ..statements import batch as statements
from ..states import TaskState
from ..values import Enqueued, TaskSpec
from ._chunks import chunks
from ._rows import NewTask, checked_actor, new_task
from ._wakeups import wake
from .enqueueing import TRIES, explained, insert_or_explain, insert_or_find

if TYPE_CHECKING:
    from .._core import QueueCore
    from .._sessions import Caller

_CHUNK = 2_000
"""Rows of one statement: what bounds the memory of its arrays."""


class _Shape(NamedTuple):
    """What rows must have in common to go into one statement."""

    columns: frozenset[str]
    due: statements.Due
    recognisable: bool
    """Whether a row that comes back tells which one it is."""

    def insert(self, core: QueueCore[Any], on_conflict: statements.OnConflict) -> Any:
        """Return the statement."""
        columns = tuple(sorted(self.columns))
        return core.statements(statements.insert_tasks, columns, self.due, on_conflict)


Batch = list[tuple[int, NewTask]]


def enqueue_many(
    caller: Caller, core: QueueCore[Any], specs: Iterable[TaskSpec], *, actor: str | None
) -> list[Enqueued]:
    """Insert a task for each spec, or find the one that it names."""
    core.need_scope("enqueue_many")
    actor = checked_actor(core, actor)
    batches: defaultdict[_Shape, Batch] = defaultdict(list)
    size = 0
    for index, spec in enumerate(checks.items("specs", specs, "TaskSpecs")):
        place = f"specs[{index}]"
        if not isinstance(spec, TaskSpec):
            raise InvalidArgument(place, spec, f"must be a TaskSpec, not {type(spec).__name__}")
        try:
            new = new_task(core, spec, actor)
        except InvalidArgument as error:
            raise error.within(place) from None
        new.columns = core.model.with_defaults(new.columns)
        batches[_shape(core, new)].append((index, new))
        size = index + 1
    answers: dict[int, Enqueued] = {}
    caller.flush()
    for shape, batch in batches.items():
        # In key order: two batches that share keys must not deadlock.
        batch.sort(key=_keys)
        for chunk in chunks(batch, [new.size for _, new in batch], _CHUNK):
            if not core.model.fits_arrays(shape.columns):
                answers |= {i: insert_or_find(caller, core, new, actor) for i, new in chunk}
            elif shape.recognisable:
                answers |= _insert(caller, core, shape, chunk, actor)
            else:
                answers |= _insert_all(caller, core, shape, chunk, actor)
    return [answers[index] for index in range(size)]


def _keys(numbered: tuple[int, NewTask]) -> tuple[str, str]:
    columns = numbered[1].columns
    return columns["key"] or "", columns["unique_key"] or ""


def _shape(core: QueueCore[Any], new: NewTask) -> _Shape:
    columns = frozenset(new.columns)
    identified = columns.issuperset(core.model.key_names)
    return _Shape(
        columns,
        "now" if new.run_at is None and not new.delay else "given",
        identified or new.key is not None or new.unique_key is not None,
    )


def _insert(
    caller: Caller, core: QueueCore[Any], shape: _Shape, batch: Batch, actor: str | None
) -> dict[int, Enqueued]:
    """Insert rows that tell which they are, passing over those that exist already."""
    statement = shape.insert(core, "nothing")
    answers: dict[int, Enqueued] = {}
    pending = batch
    for _ in range(TRIES):
        returned = caller.rows(statement, _arrays(shape, pending))
        _record(caller, core, returned, actor, statement)
        answers |= _made(caller, core, shape, pending, returned, statement)
        pending = [numbered for numbered in pending if numbered[0] not in answers]
        if pending:
            answers |= _existing(caller, core, pending, statement)
            pending = [numbered for numbered in pending if numbered[0] not in answers]
        if not pending:
            return answers
    return answers | {index: insert_or_explain(caller, core, new, actor) for index, new in pending}


def _insert_all(
    caller: Caller, core: QueueCore[Any], shape: _Shape, batch: Batch, actor: str | None
) -> dict[int, Enqueued]:
    """Insert rows that the database numbers and nothing names: all of them, or none.

    They come back in the order of the arrays; if some could be missing, nothing would say which.
    """
    statement = shape.insert(core, "raise")
    with explained(caller, core, statement):
        returned = caller.rows(statement, _arrays(shape, batch))
    _record(caller, core, returned, actor, statement)
    return _all_made(core, batch, returned)


def _arrays(shape: _Shape, batch: Batch) -> dict[str, Any]:
    """Return the rows as one array per column; payloads as one array of JSON."""
    arrays: dict[str, Any] = {
        f"tq_new_{key}": [new.columns[key] for _, new in batch]
        for key in shape.columns
        if key != "payload"
    }
    arrays["tq_new_json"] = encode([new.columns["payload"] for _, new in batch])
    if shape.due == "given":
        arrays["tq_new_run_at"] = [new.run_at for _, new in batch]
        arrays["tq_new_tq_delay"] = [new.delay for _, new in batch]
    return arrays


def _all_made(core: QueueCore[Any], batch: Batch, returned: Sequence[Any]) -> dict[int, Enqueued]:
    return {
        index: _enqueued(core, row, created=True)
        for (index, _), row in zip(batch, returned, strict=True)
    }


def _made(
    caller: Caller,
    core: QueueCore[Any],
    shape: _Shape,
    pending: Batch,
    returned: Sequence[Any],
    route: Any,
) -> dict[int, Enqueued]:
    """Pair inserted rows with those that were sent; of two alike the first was inserted."""
    if len(returned) == len(pending):
        return _all_made(core, pending, returned)
    names = core.model.key_names
    has_id = shape.columns.issuperset(names)
    if has_id:
        of_new, of_row = itemgetter(*names), itemgetter(*range(len(names)))
    else:
        of_new, of_row = itemgetter("key", "unique_key"), itemgetter(-2, -1)
    rows = {of_row(row): row for row in returned}
    answers = {
        index: _enqueued(core, row, created=True)
        for index, new in pending
        if (row := rows.pop(of_new(new.columns), None)) is not None
    }
    if rows and has_id:
        # The database shows keys in a form of its own, and has to say whose they are.
        left = [numbered for numbered in pending if numbered[0] not in answers]
        for place, found in _look_up(caller, core, "id", left, route):
            if rows.pop(of_row(found), None) is not None:
                answers[left[place][0]] = _enqueued(core, found, created=True)
    return answers


def _existing(
    caller: Caller, core: QueueCore[Any], pending: Batch, route: Any
) -> dict[int, Enqueued]:
    """Look up the rows that exist already, by id, by key, and by unique key."""
    named: dict[statements.Identity, Batch] = {
        "id": [numbered for numbered in pending if numbered[1].id_values is not None],
        "key": [numbered for numbered in pending if numbered[1].key is not None],
        "unique_key": [numbered for numbered in pending if numbered[1].unique_key is not None],
    }
    answers: dict[int, Enqueued] = {}
    for by, sent in named.items():
        if sent:
            found = {
                sent[place][0]: _enqueued(core, row, created=False)
                for place, row in _look_up(caller, core, by, sent, route)
            }
            answers = found | answers
    return answers


def _look_up(
    caller: Caller, core: QueueCore[Any], by: statements.Identity, sent: Batch, route: Any
) -> list[tuple[int, Any]]:
    """Return the rows that exist under these names, in the order of *sent*, with their places."""
    if by == "id":
        names = {
            f"tq_sent_pk_{n}": [new.columns[key] for _, new in sent]
            for n, key in enumerate(core.model.key_names)
        }
    else:
        names = {"tq_wanted_value": [new.columns[by] for _, new in sent]}
    query = core.statements(statements.existing_tasks, by)
    rows = caller.rows(query, {**core.inside, **names}, route=route)
    return sorted(((row.tq_n - 1, row) for row in rows), key=itemgetter(0))


def _record(
    caller: Caller, core: QueueCore[Any], made: Sequence[Any], actor: str | None, route: Any
) -> None:
    """Record the creation of inserted rows, and wake workers."""
    if not made:
        return
    model = core.model
    if model.events is not None:
        keys = {
            f"tq_event_pk_{n}": [row[n] for row in made] for n in range(len(model.primary_key))
        }
        caller.rows(
            core.statements(statements.record_created),
            {**keys, **model.events.rows(len(made)), "tq_actor": actor},
            route=route,
        )
    wake(caller, core, route)


def _enqueued(core: QueueCore[Any], row: Any, *, created: bool) -> Enqueued:
    size = len(core.model.primary_key)
    id_ = core.model.identity(row[:size])
    return Enqueued(id_, created=created, state=TaskState(row[size]))
