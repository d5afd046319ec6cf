"""User data on its way to the database: payloads are checked, results and errors are cleaned.

A payload that PostgreSQL would refuse is refused here, before any SQL, with a message that names
the place. A result or an error text is never refused for what it contains: it is cleaned, because
a task whose end cannot be written would run again for ever.
"""

from __future__ import annotations

import json
import math
import re
from typing import TYPE_CHECKING, Any

from .errors import InvalidPayload, shorten

if TYPE_CHECKING:
    from collections.abc import Mapping

JSONValue = dict[str, Any] | list[Any] | str | int | float | bool | None
"""What JSON can express, as ``json.loads`` returns it."""

MAX_DEPTH = 100
"""How deep lists and objects may nest; deeper values exhaust the stack of some JSON readers."""

_STEPS = 20
"""How many steps of a path a message shows."""

MAX_DIGITS = 640
"""How long a whole number may be: PostgreSQL keeps more, but no setting of Python reads fewer."""

encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
"""Return a checked value as JSON text."""

_MAX_WHOLE = 10**MAX_DIGITS
_LARGE = 1e16
"""From here on, floats are whole numbers, and Python writes them with an exponent."""
_MOST_CLEANED = 100_000
_REPLACEMENT = "\ufffd"
_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")


def check_payload(argument: str, value: Any, limit: int) -> tuple[Any, int]:
    """Return *value* so that ``jsonb`` gives back an equal one, and its size; or refuse it.

    Tuples are taken as lists. Text may hold any character but NUL and lone surrogates.

    Args:
        argument: Name for the message.
        value: None, bool, int, float, str, list, tuple, or dict with text keys.
        limit: Largest size of the encoded value, in bytes of UTF-8.

    Raises:
        InvalidPayload: Something cannot be stored; the message says where and why.
    """
    checker = _Checker(argument, limit)
    checker.check(value, None, ())
    if checker.has_large_floats:
        value = _exact(value)
    if (size := json_size(value)) > limit:
        raise InvalidPayload(argument, value, too_large(size, limit))
    return value, size


def too_large(size: int, limit: int) -> str:
    """Return what is wrong with JSON of so many bytes."""
    return f"has {size:,} bytes of JSON; the limit is {limit:,}"


def _exact(value: Any) -> Any:
    """Return *value* with each large float as the whole number that it is.

    PostgreSQL takes ``1e23`` for that decimal and gives back all its digits, which Python reads
    as a whole number. The float is another number, 8,388,608 less.
    """
    match value:
        case float():
            return int(value) if abs(value) >= _LARGE else value
        case list() | tuple():
            return [_exact(item) for item in value]
        case dict():
            return {key: _exact(item) for key, item in value.items()}
        case _:
            return value


_Place = tuple["_Place | None", Any]
"""Where a value was found: the place of its container, and the index or key there."""


class _Checker:
    """Walks through one value, refusing the first thing that cannot be stored."""

    def __init__(self, argument: str, limit: int) -> None:
        self._argument = argument
        self._limit = limit
        # Each value is a byte of JSON at least; what refers to one list from many places may be
        # more of them than there is memory for.
        self._left = limit
        self.has_large_floats = False

    def check(self, value: Any, place: _Place | None, within: tuple[int, ...]) -> None:
        """Refuse *value*, found at *place* inside the containers *within*, if need be."""
        self._left -= 1
        flaw: str | None = None
        match value:
            case _ if self._left < 0:
                flaw = f"is one value too many for {self._limit:,} bytes of JSON"
            case None | bool():
                return
            case str():
                flaw = text_problem(value)
            case int():
                if not -_MAX_WHOLE < value < _MAX_WHOLE:
                    flaw = f"has more than {MAX_DIGITS} digits"
            case float():
                if not math.isfinite(value):
                    flaw = "is not a finite number"
                elif abs(value) >= _LARGE:
                    self.has_large_floats = True
            case list() | tuple() | dict() if id(value) in within:
                flaw = "contains itself"
            case list() | tuple() | dict() if len(within) >= MAX_DEPTH:
                flaw = f"nests deeper than {MAX_DEPTH} levels"
            case list() | tuple():
                inner = (*within, id(value))
                for index, item in enumerate(value):
                    self.check(item, (place, index), inner)
            case dict():
                flaw = self._check_object(value, place, within)
            case _:
                flaw = f"is of type {type(value).__name__}, which JSON cannot express"
        if flaw is not None:
            raise InvalidPayload(self._argument, value, flaw, _path(place))

    def _check_object(
        self, value: Mapping[Any, Any], place: _Place | None, within: tuple[int, ...]
    ) -> str | None:
        inner = (*within, id(value))
        for key, item in value.items():
            if not isinstance(key, str):
                return (
                    f"has the key {shorten(key)}, which is of type {type(key).__name__}, not text"
                )
            if (flaw := text_problem(key)) is not None:
                return f"has the key {shorten(key)}, which {flaw}"
            self.check(item, (place, key), inner)
        if len({str.__str__(key) for key in value}) < len(value):
            return "has two keys of the same text"
        return None


def _path(place: _Place | None) -> str:
    """Return a place as Python writes it, which only a refusal needs."""
    steps: list[str] = []
    while place is not None:
        place, step = place
        steps.append(f"[{shorten(step)}]")
    if len(steps) > _STEPS:
        steps[_STEPS // 2 : -_STEPS // 2] = ["…"]
    return "".join(reversed(steps))


def text_problem(text: str) -> str | None:
    """Return why PostgreSQL cannot store *text*, or None."""
    if "\x00" in text:
        return "contains NUL (U+0000), which PostgreSQL cannot store"
    try:
        text.encode()
    except UnicodeEncodeError:
        return "contains a lone surrogate, which is not text"
    return None


def cut(text: str, limit: int) -> str:
    """Return *text* in at most *limit* characters; an ellipsis says that more was there."""
    return text if len(text) <= limit else text[: limit - 1] + "…"


def clean_text(text: str, limit: int | None = None) -> str:
    """Return *text* storable: NUL and lone surrogates replaced by U+FFFD, cut at *limit*."""
    if limit is not None and len(text) > limit:
        text = cut(text, limit)
    if text_problem(text) is None:
        return text
    return _UNSTORABLE.sub(_REPLACEMENT, text)


def clean_json(value: Any) -> Any:
    """Return *value* as something ``jsonb`` takes, changing no more than needed.

    Text is cleaned, numbers that JSON does not know become text, other objects become their
    ``str()``, what contains itself or nests deeper than the limit becomes an ellipsis, and of
    keys that become equal the last one stays.
    """
    return _Cleaner().clean(value, ())


class _Cleaner:
    """Walks through one value, at most so many of its parts."""

    def __init__(self) -> None:
        self._left = _MOST_CLEANED

    def clean(self, value: Any, within: tuple[int, ...]) -> Any:
        """Return *value*, found inside the containers *within*, as it can be stored."""
        self._left -= 1
        match value:
            case None | bool():
                return value
            case str():
                return clean_text(value)
            case int():
                fits = -_MAX_WHOLE < value < _MAX_WHOLE
                return value if fits else "a number too long to store"
            case float():
                return _exact(value) if math.isfinite(value) else str(value)
            case list() | tuple() | dict() if (
                self._left < 0 or id(value) in within or len(within) >= MAX_DEPTH
            ):
                return "…"
            case list() | tuple():
                inner = (*within, id(value))
                return [self.clean(item, inner) for item in value]
            case dict():
                inner = (*within, id(value))
                return {
                    clean_text(key if isinstance(key, str) else safe_str(key)): self.clean(
                        item, inner
                    )
                    for key, item in value.items()
                }
            case _:
                return clean_text(safe_str(value), 1_000)


def safe_str(value: object) -> str:
    """Return ``str(value)``, or what can be said of a value whose ``__str__`` raises."""
    try:
        return str(value)
    except Exception as error:  # noqa: BLE001 - a user's __str__ may raise anything
        return f"<{type(value).__name__} whose text raises {type(error).__name__}>"


def error_text(error: object, limit: int | None = None) -> str:
    """Return the text to store for *error*: an exception's class and message, or its text."""
    match error:
        case None:
            return ""
        case str():
            text = str.__str__(error)
        case BaseException():
            text = f"{type(error).__name__}: {safe_str(error)}".removesuffix(": ")
        case _:
            text = safe_str(error)
    return clean_text(text, limit)


def json_size(value: Any) -> int:
    """Return the size of a storable *value* in bytes of encoded JSON."""
    return len(encode(value).encode())
