"""How our mixins meet the host's declarative classes.

A mixin with ``Mapped[]`` annotations becomes part of the host's constructor when the host uses
``MappedAsDataclass`` (an error on SQLAlchemy 2.1), so :func:`column_mixin` hides the annotations
at run time; type checkers still see them. And a mixin's ``__table_args__`` is replaced by the
host's, so indexes and checks are added by a mapper event once the class is mapped: the only form
that works, and keeps its indexes, for every kind of declarative class on SQLAlchemy 2.0 and 2.1.
"""

from __future__ import annotations

from inspect import get_annotations
from typing import TypeVar

from sqlalchemy.orm import MappedColumn
from sqlalchemy.types import NullType

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
