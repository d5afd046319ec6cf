"""How our mixins meet the host's declarative classes.

A mixin with ``Mapped[]`` annotations becomes part of the host's constructor when the host uses
``MappedAsDataclass`` (an error on SQLAlchemy 2.1), so :func:`column_mixin` hides the annotations
at run time; type checkers still see them. And a mixin's ``__table_args__`` is replaced by the
host's, so indexes and checks are added by a mapper event once the class is mapped: the only form
that works, and keeps its indexes, for every kind of declarative class on SQLAlchemy 2.0 and 2.1.
"""

from __future__ import annotations

from inspect import get_annotations
from typing import Any, TypeVar

from sqlalchemy import JSON, Boolean, Column, DateTime, Enum, Integer, String, TypeDecorator, Uuid
from sqlalchemy.orm import MappedColumn
from sqlalchemy.types import NullType

from .dialects import CASELESS

ClassT = TypeVar("ClassT")


def column_mixin(cls: type[ClassT]) -> type[ClassT]:
    """Hide the ``Mapped[]`` annotations of a mixin's columns from Declarative.

    Raises:
        TypeError: A column leaves its type to the annotation, which Declarative will not see.
    """
    columns = {name for name, value in vars(cls).items() if isinstance(value, MappedColumn)}
    for name in columns:
        if isinstance(getattr(cls, name).column.type, NullType):
            message = f"{cls.__name__}.{name} must name its type: its annotation is hidden"
            raise TypeError(message)
    cls.__annotations__ = {
        name: annotation
        for name, annotation in get_annotations(cls).items()
        if name not in columns
    }
    return cls


_KINDS = (JSON, Boolean, DateTime, Uuid, Integer, String)

_HOSTS_OWN = ("created_at", "updated_at")
"""Often columns of a host's base: written as they are, and compared with nothing."""
_GIVEN = ("payload", "key", "unique_key", "created_by", "max_attempts")
"""What callers give, and a host may therefore demand."""


def misfit(name: str, theirs: Column[Any], ours: Column[Any]) -> str | None:
    """Return why a host's column of this name cannot do the work of ours; None if it can."""
    if name in _HOSTS_OWN:
        return None
    # A payload is written and read by its column's type alone, whatever that makes of it.
    decorated = name == "payload" and isinstance(theirs.type, TypeDecorator)
    if not (decorated or _is_alike(theirs.type, ours.type)):
        return f"is {theirs.type!r}, and must be like {ours.type!r}"
    if ours.nullable and not theirs.nullable and name not in _GIVEN:
        return "must be able to be NULL"
    if not ours.nullable and theirs.default is None and theirs.server_default is None:
        return "has no default"
    return None


def _is_alike(theirs: Any, ours: Any) -> bool:
    kind = next(kind for kind in _KINDS if isinstance(ours, kind))
    if not isinstance(theirs, kind) or isinstance(theirs, Enum | CASELESS):
        return False  # these two compare, or come back, as something else than was sent
    if isinstance(theirs, DateTime):
        return theirs.timezone
    return not isinstance(theirs, Uuid) or theirs.as_uuid
