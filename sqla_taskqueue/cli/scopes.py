"""Scopes as they are written on a command line: ``tenant_id=7,role=coder``."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import date, datetime
from enum import Enum
from typing import TYPE_CHECKING, Any

from .errors import CannotRun

if TYPE_CHECKING:
    from ..worker import Worker

_YES, _NO = {"true", "t", "1", "yes"}, {"false", "f", "0", "no"}


def read_scopes(worker: Worker, texts: Iterable[str]) -> list[dict[str, Any]]:
    """Return the scopes that *texts* write down, with values of their columns' types.

    Raises:
        CannotRun: A text has another form, names no scope column, or a value does not fit.
    """
    columns = {name: column for core in worker.cores for name, column in core.model.scope.items()}
    return [_scope(columns, text) for text in texts]


def _scope(columns: dict[str, Any], text: str) -> dict[str, Any]:
    scope: dict[str, Any] = {}
    for part in text.split(","):
        name, equals, value = part.partition("=")
        name = name.strip()
        if not equals:
            raise CannotRun(f"--scope {text!r} must be of the form name=value,name=value")
        if name not in columns:
            known = ", ".join(columns) or "none"
            raise CannotRun(f"--scope {text!r}: {name!r} is no scope column; there are {known}")
        scope[name] = _value(columns[name], value, text)
    return scope


def _value(column: Any, value: str, text: str) -> Any:
    try:
        kind = column.type.python_type
    except NotImplementedError:
        kind = str
    try:
        return _read(kind, value)
    except (ValueError, ArithmeticError, KeyError, TypeError):
        raise CannotRun(f"--scope {text!r}: {value!r} is no {kind.__name__}") from None


def _read(kind: type[Any], value: str) -> Any:
    if issubclass(kind, bool):
        if value.lower() not in _YES | _NO:
            raise ValueError(value)
        return value.lower() in _YES
    if issubclass(kind, Enum):
        return kind[value] if value in kind.__members__ else kind(value)
    if issubclass(kind, date | datetime):
        return kind.fromisoformat(value)
    return kind(value)
