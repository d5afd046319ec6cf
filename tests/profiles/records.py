"""The recorded numbers: TOML that people can read, and that a command renews."""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

import sqlalchemy

from tests.profiles.counting import CALLERS
from tests.profiles.operations import OPERATIONS

if TYPE_CHECKING:
    from tests.servers import Driver

FILE = Path(__file__).with_name("records.toml")
RENEW = "python -m pytest tests/profiles --record-profiles"
STATEMENTS = "statements"

HEAD = f"""\
# What each operation costs: on a plain class, and on one whose changes are logged as events;
# through a Session, and on a Connection (the second number).
#
# First the statements that it sends, whatever the versions. Then, for each set of versions, the
# functions that it calls: Python's and built-in ones, SQLAlchemy's and the driver's among them.
#
# Renew with: {RENEW}
"""

Counts = dict[str, list[int]]
"""By kind of class, a number for each kind of caller: ``{"plain": [518, 322], …}``."""


def calls_with(driver: Driver) -> str:
    """Return the section of the calls that this interpreter makes with a driver."""
    python = ".".join(map(str, sys.version_info[:2]))
    library = ".".join(sqlalchemy.__version__.split(".")[:2])
    return f"Python {python}, SQLAlchemy {library}, {driver}"


class Records:
    """Counts by section and operation."""

    def __init__(self, text: str) -> None:
        self._sections: dict[str, dict[str, Counts]] = tomllib.loads(text)

    def __contains__(self, section: object) -> bool:
        return section in self._sections

    def note(self, section: str, operation: str, counted: Counts) -> None:
        """Record new counts."""
        self._sections.setdefault(section, {})[operation] = counted

    def differences(
        self, section: str, operation: str, counted: Counts, *, tolerance: float = 0
    ) -> list[str]:
        """Return a line for each count that is not as recorded, give or take a share of it."""
        recorded = self._sections.get(section, {}).get(operation, {})
        return [
            f"{operation} ({kind}, {caller}): counted {now}, recorded {before}; {section}"
            for kind in {**recorded, **counted}
            for caller, now, before in zip(
                CALLERS,
                counted.get(kind, [None, None]),
                recorded.get(kind, [None, None]),
                strict=True,
            )
            if now is None or before is None or abs(now - before) > tolerance * before
        ]

    def __str__(self) -> str:
        """Return the file's text, in a fixed order; operations of the past are left out."""
        lines = [HEAD]
        for section in sorted(self._sections, key=lambda name: (name != STATEMENTS, name)):
            lines.append(f'["{section}"]')
            lines += [
                _line(operation.name, self._sections[section][operation.name])
                for operation in OPERATIONS
                if operation.name in self._sections[section]
            ]
            lines.append("")
        return "\n".join(lines)


def _line(operation: str, counts: Counts) -> str:
    numbers = ", ".join(
        f"{kind} = [{', '.join(f'{number:5}' for number in of_kind)}]"
        for kind, of_kind in counts.items()
    )
    name = f'"{operation}"'
    return f"{name:36} = {{ {numbers} }}"
