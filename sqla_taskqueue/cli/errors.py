"""What keeps the command from running, and the exit statuses."""

from __future__ import annotations

STOPPED, FAILED, UNUSABLE = 0, 1, 2
"""Exit statuses: stopped in order; the worker could not go on; used in a wrong way."""


class CannotRun(Exception):
    """The command was given something that it cannot use; the text says what."""
