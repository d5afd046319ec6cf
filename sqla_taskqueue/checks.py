"""Checks of arguments: each returns the usable value or raises one typed error before any SQL.

Usable means plain: a member of an enum of texts or numbers, and any other subclass, becomes what
it is a subclass of, since drivers disagree about the rest.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from .errors import InvalidArgument
from .payloads import text_problem

_SMALLINT = 1 << 15
_INTEGER = 1 << 31
_CENTURY = timedelta(days=36_500)
_EARLIEST = datetime(1900, 1, 1, tzinfo=UTC)
_LATEST = datetime(9000, 1, 1, tzinfo=UTC)

ItemT = TypeVar("ItemT")


def text(
    argument: str,
    value: object,
    *,
    characters: int | None = None,
    size: int | None = None,
    empty: bool = False,
    trim: bool = False,
) -> str:
    """Return *value* as storable text, within limits of characters and bytes of UTF-8."""
    if not isinstance(value, str):
        raise InvalidArgument(argument, value, f"must be text, not {type(value).__name__}")
    # Not str(value): of an enum's member that is the name of the member.
    plain = str.strip(value) if trim else str.__str__(value)
    if not (plain or empty):
        raise InvalidArgument(argument, value, "must not be empty")
    if (problem := text_problem(plain)) is not None:
        raise InvalidArgument(argument, value, problem)
    if characters is not None and len(plain) > characters:
        problem = f"has {len(plain):,} characters; the limit is {characters:,}"
        raise InvalidArgument(argument, value, problem)
    if size is not None and (bytes_ := len(plain.encode())) > size:
        problem = f"has {bytes_:,} bytes of UTF-8; the limit is {size:,}"
        raise InvalidArgument(argument, value, problem)
    return plain


def choice(argument: str, value: object, *options: str) -> None:
    """Insist on one of the *options*."""
    if not (isinstance(value, str) and value in options):
        raise InvalidArgument(argument, value, f"must be {' or '.join(map(repr, options))}")


def flag(argument: str, value: object) -> bool:
    """Return *value*, which must be True or False and not just count as one of them."""
    if not isinstance(value, bool):
        problem = f"must be True or False, not {type(value).__name__}"
        raise InvalidArgument(argument, value, problem)
    return value


def items(argument: str, value: Iterable[ItemT], what: str) -> list[ItemT]:
    """Return the items of *value*, which must have an order and be no text."""
    given: Any = value
    if not isinstance(given, list | tuple) and (
        isinstance(given, str | bytes | bytearray | Mapping | AbstractSet)
        or not isinstance(given, Iterable)
    ):
        problem = f"must be a list, or another iterable, of {what}, not {type(given).__name__}"
        raise InvalidArgument(argument, given, problem)
    return list(value)


def whole(argument: str, value: object, *, least: int, most: int) -> int:
    """Return *value* as a whole number between *least* and *most*."""
    number = integer(argument, value)
    if not least <= number <= most:
        raise InvalidArgument(argument, value, f"must lie between {least:,} and {most:,}")
    return number


def integer(argument: str, value: object) -> int:
    """Return *value* as a whole number of any size."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise InvalidArgument(
            argument, value, f"must be a whole number, not {type(value).__name__}"
        )
    return int(value)


def priority(value: object) -> int:
    """Return a priority: a PostgreSQL ``smallint``."""
    return whole("priority", value, least=-_SMALLINT, most=_SMALLINT - 1)


def max_attempts(value: object) -> int | None:
    """Return a number of attempts of at least one, or None for no limit."""
    return None if value is None else whole("max_attempts", value, least=1, most=_INTEGER - 1)


def duration(argument: str, value: object) -> timedelta:
    """Return a duration of at least zero and at most a century."""
    if not isinstance(value, timedelta):
        raise InvalidArgument(argument, value, f"must be a timedelta, not {type(value).__name__}")
    if not timedelta(0) <= value <= _CENTURY:
        raise InvalidArgument(argument, value, f"must lie between zero and {_CENTURY.days:,} days")
    return value


def moment(argument: str, value: object) -> datetime:
    """Return a point in time, in UTC."""
    if not isinstance(value, datetime):
        raise InvalidArgument(argument, value, f"must be a datetime, not {type(value).__name__}")
    moment = utc(argument, value)
    if not _EARLIEST <= moment <= _LATEST:
        raise InvalidArgument(argument, value, "must lie between the years 1900 and 9000")
    return moment


def utc(argument: str, value: datetime) -> datetime:
    """Return a time that knows its zone in UTC: drivers do not take every offset of Python's."""
    try:
        moment = None if value.utcoffset() is None else value.astimezone(UTC)
    except OverflowError:
        problem = "must lie between the years 1 and 9999 in UTC"
        raise InvalidArgument(argument, value, problem) from None
    except Exception as error:
        problem = f"has a time zone that raises {type(error).__name__}"
        raise InvalidArgument(argument, value, problem) from error
    if moment is None:
        raise InvalidArgument(argument, value, "has no time zone; use datetime.now(UTC) or alike")
    return moment
