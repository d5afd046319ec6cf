"""What values the host's columns take: checked where PostgreSQL's own types tell.

Keys and scopes are the library's arguments, and checked. Other columns are the host's affair.
"""

from __future__ import annotations

from datetime import UTC, date, datetime
from typing import Any
from uuid import UUID

from sqlalchemy import (
    BigInteger,
    Column,
    Date,
    DateTime,
    Enum,
    Integer,
    SmallInteger,
    String,
    Uuid,
)
from sqlalchemy.types import TypeDecorator

from . import checks
from .dialects import CUT_BY_CASTS
from .errors import InvalidArgument
from .payloads import text_problem

_BITS = {SmallInteger: 15, BigInteger: 63, Integer: 31}
_LONGEST_TEXT = 500
"""Bytes of a text in a key or scope: together with others it must fit into an index's entry."""


_FIRST, _LAST = datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)
_INFINITE: dict[type[date], frozenset[date]] = {
    date: frozenset({date.min, date.max}),
    datetime: frozenset({_FIRST, _LAST, _FIRST.replace(tzinfo=None), _LAST.replace(tzinfo=None)}),
}


def usable(argument: str, column: Column[Any], value: Any) -> Any:
    """Return a key or scope value as its column takes it and gives it back.

    Raises:
        InvalidArgument: It has the wrong type, or is out of the type's range.
    """
    of = column.type
    if isinstance(of, TypeDecorator):
        return value  # the host's own type decides what it takes
    try:
        expected: type[Any] = of.python_type
    except NotImplementedError:
        return value  # a type of the host's or of PostgreSQL's own
    # A bool is an int and a datetime is a date, but they do not mean the same.
    is_other = issubclass(type(value), bool | datetime) and expected not in (bool, datetime)
    if not isinstance(value, expected) or is_other:
        problem = (
            f"is of the wrong type: {column.name} takes {expected.__name__}, "
            f"not {type(value).__name__}"
        )
        raise InvalidArgument(argument, value, problem)
    match of:
        case Enum() if of.enum_class is None and value not in of.enums:
            raise InvalidArgument(argument, value, f"must be one of {', '.join(of.enums)}")
        case Enum():
            return value
        case Uuid() if isinstance(value, str):
            return _uuid_text(argument, value)
        case String():
            return checks.text(
                argument, value, empty=True, characters=of.length, size=_LONGEST_TEXT
            )
        case Integer():
            bits = next(bits for kind, bits in _BITS.items() if isinstance(of, kind))
            return checks.whole(argument, value, least=-(1 << bits), most=(1 << bits) - 1)
        case DateTime() if of.timezone:
            return _finite(argument, checks.utc(argument, value))
        case DateTime() if value.tzinfo is not None:
            raise InvalidArgument(argument, value, "must not have a time zone")
        case DateTime() | Date():
            return _finite(argument, value)
        case _:
            return value


def _finite(argument: str, value: date) -> date:
    """Refuse the first and the last time of Python's, which asyncpg stores as infinities."""
    kind = datetime if isinstance(value, datetime) else date
    if value in _INFINITE[kind]:
        problem = "is stored as an infinity by some drivers; take another time"
        raise InvalidArgument(argument, value, problem)
    return value


def _uuid_text(argument: str, value: str) -> str:
    try:
        return str(UUID(value))
    except ValueError:
        raise InvalidArgument(argument, value, "must be the text of a UUID") from None


def is_text(of: Any) -> bool:
    """Tell whether a type is one of plain text with a length."""
    return isinstance(of, String) and not isinstance(of, Enum) and of.length is not None


def is_cut(of: Any) -> bool:
    """Tell whether a cast to a type's array cuts what is too long, and the type must be kept."""
    if isinstance(of, TypeDecorator):
        return getattr(of.impl_instance, "length", None) is not None
    return isinstance(of, CUT_BY_CASTS) or (isinstance(of, Enum) and not of.native_enum)


def flaw(column: Column[Any], value: Any) -> str | None:
    """Return why PostgreSQL cannot store a value for a column of the host's own, if it is clear.

    That is text with NUL or a lone surrogate. All else that a type does not take is an error of
    the driver or the database, which pass through.
    """
    if isinstance(value, str) and isinstance(column.type, String):
        return text_problem(value)
    return None
