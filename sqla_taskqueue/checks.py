"""Checks of arguments: each returns the usable value or raises one typed error before any SQL."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from .errors import InvalidArgument
from .payloads import text_problem

_SMALLINT = 1 << 15
_INTEGER = 1 << 31
_FAR = timedelta(days=36_500)
_EARLIEST = datetime(1900, 1, 1, tzinfo=UTC)
_LATEST = datetime(9000, 1, 1, tzinfo=UTC)


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
    if trim:
        value = value.strip()
    if not (value or empty):
        raise InvalidArgument(argument, value, "must not be empty")
    if text_problem(value) is not None:
        raise InvalidArgument(argument, value, "contains NUL or a lone surrogate")
    if characters is not None and len(value) > characters:
        raise InvalidArgument(
            argument, value, f"has {len(value)} characters; the limit is {characters}"
        )
    if size is not None and len(value.encode()) > size:
        raise InvalidArgument(
            argument, value, f"is {len(value.encode())} bytes of UTF-8; the limit is {size}"
        )
    return str(value)


def whole(argument: str, value: object, *, least: int, most: int) -> int:
    """Return *value* as a whole number between *least* and *most*."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise InvalidArgument(
            argument, value, f"must be a whole number, not {type(value).__name__}"
        )
    if not least <= value <= most:
        raise InvalidArgument(argument, value, f"must lie between {least:,} and {most:,}")
    return value


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
    if not timedelta(0) <= value <= _FAR:
        raise InvalidArgument(argument, value, "must lie between zero and a century")
    return value


def moment(argument: str, value: object) -> datetime:
    """Return a point in time that knows its zone."""
    if not isinstance(value, datetime):
        raise InvalidArgument(argument, value, f"must be a datetime, not {type(value).__name__}")
    if value.tzinfo is None or value.utcoffset() is None:
        raise InvalidArgument(argument, value, "has no time zone; use datetime.now(UTC) or alike")
    if not _EARLIEST <= value <= _LATEST:
        raise InvalidArgument(argument, value, "must lie between the years 1900 and 9000")
    return value
