"""The row that a new task becomes: arguments checked, defaults evaluated, nothing sent yet."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from sqlalchemy import Column

from .. import checks
from ..errors import InvalidArgument
from ..payloads import check_payload

if TYPE_CHECKING:
    from sqlalchemy.orm import Mapper

    from .._core import QueueCore
    from ..values import TaskSpec

_NOW = timedelta(0)


@dataclass(slots=True)
class NewTask:
    """A checked row.

    Attributes:
        columns: Values by column key, without the times.
        id_values: The primary key, if the caller gave one.
        run_at: When it is due, if the caller gave a time.
        delay: How long from now it is due otherwise.
        size: Bytes of its payload as JSON.
    """

    columns: dict[str, Any]
    id_values: list[Any] | None
    run_at: datetime | None
    delay: timedelta
    size: int

    @property
    def key(self) -> str | None:
        """Its key."""
        return self.columns["key"]  # type: ignore[no-any-return]

    @property
    def unique_key(self) -> str | None:
        """Its unique key."""
        return self.columns["unique_key"]  # type: ignore[no-any-return]


def checked_actor(core: QueueCore[Any], actor: str | None) -> str | None:
    """Return who enqueues, if anybody says so.

    Raises:
        InvalidArgument: It is out of range.
    """
    return None if actor is None else checks.text("actor", actor, size=core.limits.name)


def new_task(core: QueueCore[Any], spec: TaskSpec, actor: str | None) -> NewTask:
    """Check a spec and return the row that it becomes; the actor is checked already.

    Raises:
        InvalidArgument: Something is out of range, unknown or missing.
    """
    limits, model = core.limits, core.model
    payload, size = check_payload("payload", spec.payload, limits.payload)
    if spec.run_at is not None and spec.delay is not None:
        raise InvalidArgument("delay", spec.delay, "cannot be given together with run_at=")
    columns: dict[str, Any] = {
        **({} if spec.values is None else _host_values(core, spec.values)),
        **core.scope_columns,
        "queue": core.name,
        "name": checks.text("name", spec.name, size=limits.name, empty=True),
        "payload": payload,
        "priority": checks.priority(spec.priority),
        "max_attempts": limits.max_attempts
        if isinstance(spec.max_attempts, str) and spec.max_attempts == "default"
        else checks.max_attempts(spec.max_attempts),
        "key": _key(core, "key", spec.key),
        "unique_key": _key(core, "unique_key", spec.unique_key),
        "created_by": actor,
    }
    id_values = None
    if spec.id is not None:
        id_values = model.key_values(spec.id, core.scope)
        columns |= zip((column.key for column in model.primary_key), id_values, strict=True)
    if model.mapper.version_id_col is not None:
        columns = _first_version(model.mapper) | columns
    model.need_values(columns)
    return NewTask(
        columns,
        id_values,
        None if spec.run_at is None else checks.moment("run_at", spec.run_at),
        _NOW if spec.delay is None else checks.duration("delay", spec.delay),
        size,
    )


def _first_version(mapper: Mapper[Any]) -> dict[str, Any]:
    """Return the version that a flush would give to a new row of a versioned class.

    Later writes leave it: it guards what the host edits, and the queue's have fences of their own.
    """
    column, make = mapper.version_id_col, mapper.version_id_generator
    return {column.key: make(None)} if isinstance(column, Column) and callable(make) else {}


def _host_values(core: QueueCore[Any], values: Mapping[str, Any]) -> dict[str, Any]:
    columns = core.model.host_values(values)
    if core.model.is_board and "meta" in values:
        meta = core.model.columns["meta"].key
        columns[meta], _ = check_payload("values['meta']", columns[meta], core.limits.payload)
    return columns


def _key(core: QueueCore[Any], argument: str, value: str | None) -> str | None:
    if value is None:
        return None
    return checks.text(argument, value, characters=core.limits.key, trim=True)
