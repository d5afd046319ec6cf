"""What a handler says instead of a result: try again, run later, give up.

Each may be raised or returned. It makes a difference where a handler has a session: what it wrote
is committed together with a directive that it returns, and rolled back when it raises one.
"""

from __future__ import annotations

from datetime import timedelta

from . import checks
from .errors import InvalidArgument
from .payloads import error_text


class Retry(Exception):
    """The attempt failed; the next one comes after some time, if any is left.

    Args:
        after: How long until then; by default what the handler's or queue's policy says.
        error: The exception or text to record. By default the exception that this one was raised
            from, or its own text.

    Raises:
        InvalidArgument: The time is out of range.
    """

    def __init__(self, after: timedelta | None = None, *, error: object = None) -> None:
        super().__init__(after)
        self.after = None if after is None else checks.duration("after", after)
        self.error = error

    @property
    def recorded(self) -> object:
        """The exception or text to record."""
        if self.error is not None:
            return self.error
        return str(self) if self.__cause__ is None else self.__cause__

    def __str__(self) -> str:
        text = "retry" if self.after is None else f"retry after {self.after}"
        return text if self.error is None else f"{text}: {error_text(self.error)}"


class Snooze(Exception):
    """Run the task again later; the attempt is not counted.

    Args:
        delay: How long until then.

    Raises:
        InvalidArgument: The time is out of range.
    """

    def __init__(self, delay: timedelta) -> None:
        super().__init__(delay)
        self.delay = checks.duration("delay", delay)

    def __str__(self) -> str:
        return f"snooze for {self.delay}"


class Cancel(Exception):
    """End the task as cancelled: it is no longer wanted.

    Args:
        reason: Why, for the row and the history. What cannot be stored in it is replaced.

    Raises:
        InvalidArgument: The reason is no text.
    """

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)
        if not isinstance(reason, str):
            raise InvalidArgument("reason", reason, f"must be text, not {type(reason).__name__}")
        # Not str(reason): of an enum's member that is the name of the member.
        self.reason = str.__str__(reason)

    def __str__(self) -> str:
        return f"cancelled: {self.reason}" if self.reason else "cancelled"
