"""User data on its way to the database: payloads are checked, results and errors are cleaned.

A payload that PostgreSQL would refuse is refused here, before any SQL, with a message that names
the place. A result or an error text is never refused for what it contains: it is cleaned, because
a task whose end cannot be written would run again for ever.
"""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

from .errors import InvalidPayload, shorten

if TYPE_CHECKING:
    from collections.abc import Mapping

JSONValue = dict[str, Any] | list[Any] | str | int | float | bool | None
"""What JSON can express, as ``json.loads`` returns it."""

MAX_DEPTH = 100
"""How deep lists and objects may nest; deeper values exhaust the stack of some JSON readers."""

MAX_DIGITS = 1_000
"""How long a whole number may be; PostgreSQL keeps them all, Python reads up to 4,300 digits."""

encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
"""Return a checked value as JSON text."""

_MAX_WHOLE = 10**MAX_DIGITS
_MOST_CLEANED = 100_000
_REPLACEMENT = "\ufffd"


def check_payload(argument: str, value: Any, limit: int) -> int:
    """Refuse *value* unless it can be stored as ``jsonb`` and read back equal; return its size.

    Tuples are taken as lists. Text may hold any character but NUL and lone surrogates.

    Args:
        argument: Name for the message.
        value: None, bool, int, float, str, list, tuple, or dict with text keys.
        limit: Largest size of the encoded value, in bytes of UTF-8.

    Raises:
        InvalidPayload: Something cannot be stored; the message says where and why.
    """
    _Checker(argument, limit).check(value, None, ())
    if (size := json_size(value)) > limit:
        raise InvalidPayload(argument, value, f"is {size:,} bytes of JSON; the limit is {limit:,}")
    return size


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

    def check(self, value: Any, place: _Place | None, within: tuple[int, ...]) -> None:
        """Refuse *value*, found at *place* inside the containers *within*, if need be."""
        self._left -= 1
        if self._left < 0:
            problem = f"has too many values for {self._limit:,} bytes of JSON"
            raise InvalidPayload(self._argument, "…", problem)
        flaw: str | None = None
        match value:
            case None | bool():
                return
            case str():
                flaw = text_problem(value)
            case int():
                if not -_MAX_WHOLE < value < _MAX_WHOLE:
                    # Such a number may be too long even for repr().
                    problem = f"{self._path(place)} has more than {MAX_DIGITS:,} digits"
                    raise InvalidPayload(self._argument, "…", problem)
            case float():
                flaw = None if math.isfinite(value) else "is not a finite number"
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
                flaw = f"is a {type(value).__name__}, which JSON cannot express"
        if flaw is not None:
            raise InvalidPayload(self._argument, value, f"{self._path(place)} {flaw}")

    def _check_object(
        self, value: Mapping[Any, Any], place: _Place | None, within: tuple[int, ...]
    ) -> str | None:
        inner = (*within, id(value))
        for key, item in value.items():
            if not isinstance(key, str):
                return f"has the key {shorten(key)}, which is not text"
            if (flaw := text_problem(key)) is not None:
                return f"has the key {shorten(key)}, which {flaw}"
            self.check(item, (place, key), inner)
        return None

    def _path(self, place: _Place | None) -> str:
        """Return a place in words, which only a refusal needs."""
        steps: list[str] = []
        while place is not None:
            place, step = place
            steps.append(f"[{shorten(step)}]")
        return "".join([self._argument, *reversed(steps)])


def text_problem(text: str) -> str | None:
    """Return why PostgreSQL cannot store *text*, or None."""
    if "\x00" in text:
        return "contains NUL (U+0000), which PostgreSQL cannot store"
    try:
        text.encode()
    except UnicodeEncodeError:
        return "contains a lone surrogate, which is not text"
    return None


def clean_text(text: str, limit: int | None = None) -> str:
    """Return *text* storable: NUL and lone surrogates replaced by U+FFFD, cut at *limit*."""
    if limit is not None and len(text) > limit:
        text = text[: limit - 1] + "…"
    if text_problem(text) is None:
        return text
    return "".join(
        _REPLACEMENT if character == "\x00" or "\ud800" <= character <= "\udfff" else character
        for character in text
    )


def clean_json(value: Any) -> Any:
    """Return *value* as something ``jsonb`` takes, changing no more than needed.

    Text is cleaned, numbers that JSON does not know become text, other objects become their
    ``str()``, and what contains itself or nests deeper than the limit becomes text.
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
                return value if math.isfinite(value) else str(value)
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


def error_text(error: BaseException | str) -> str:
    """Return the text to store for *error*: its class and message, or the given text."""
    if isinstance(error, str):
        return clean_text(error)
    return clean_text(f"{type(error).__name__}: {safe_str(error)}".removesuffix(": "))


def json_size(value: Any) -> int:
    """Return the size of a storable *value* in bytes of encoded JSON."""
    return len(encode(value).encode())
