"""The list of kinds, and how a factory gets into it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple


class Kind(NamedTuple):
    """A kind of host class.

    Attributes:
        make: Returns the class, the same at each call.
        values: What its own columns need.
        is_dataclass: Whether its constructor is a dataclass's.
    """

    make: Callable[[], Any]
    values: dict[str, Any]
    is_dataclass: bool

    def __str__(self) -> str:
        return self.make.__name__


KINDS: list[Kind] = []


def kind(is_dataclass: bool = False, **values: Any) -> Callable[[Callable[[], Any]], Any]:
    """Enter a factory into the list."""

    def enter(make: Callable[[], Any]) -> Any:
        made = functools.cache(make)
        KINDS.append(Kind(made, values, is_dataclass))
        return made

    return enter
