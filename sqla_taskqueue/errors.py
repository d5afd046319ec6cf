"""What the library raises.

::

    TaskQueueError
     ├─ InvalidArgument (ValueError)     an argument is out of its documented range
     │   └─ InvalidPayload               a value cannot be stored as JSON
     ├─ ScopeMissing                     a scope column has no value
     ├─ UnsupportedModel (TypeError)     a class cannot carry a queue
     ├─ UnsupportedHandler (TypeError)   a function cannot be a handler
     ├─ UnfitArguments (TypeError)       a stored payload does not fit its handler
     ├─ UnsupportedDialect               the database is not PostgreSQL
     ├─ TaskExists                       enqueue(if_exists="raise") met an existing task
     ├─ EnqueueConflict                  one of the host's own constraints keeps the row out
     └─ LeaseLost                        the caller no longer holds the task

All of them are raised before any SQL is sent, or after statements that did not fail: the
caller's transaction stays usable. Errors of the database itself pass through untouched.
"""

from __future__ import annotations

import copyreg
import reprlib
from enum import Enum
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .values import Refused

_SHOWN = 80
_NAMED = 5
"""How many names of one kind a message lists."""


class _Beginning(reprlib.Repr):
    """Shows the beginning of a value: the work is small, however large the value is."""

    def __init__(self) -> None:
        super().__init__()
        self.maxlevel = 4
        self.maxdict = self.maxlist = self.maxtuple = self.maxset = self.maxfrozenset = 20
        # Enough that the middle, which reprlib leaves out of long texts, is cut off with the end.
        self.maxstring = 4 * _SHOWN

    def repr1(self, x: Any, level: int) -> str:
        # By kind, not by the name of the class: subclasses are as large as what they derive from.
        for kind in (str, list, tuple, dict, set, frozenset):
            if isinstance(x, kind) and not isinstance(x, Enum):
                shown: str = getattr(self, f"repr_{kind.__name__}")(x, level)
                return shown
        return repr(x[: self.maxstring] if isinstance(x, bytes | bytearray) else x)


_beginning = _Beginning().repr


def shorten(value: object) -> str:
    """Show *value* in at most about 80 characters, whatever its ``repr`` does."""
    try:
        text = _beginning(value)
    except Exception as error:  # noqa: BLE001 - a host's __repr__ may raise anything
        text = f"<{type(value).__name__} whose repr raises {type(error).__name__}>"
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}…"


class TaskQueueError(Exception):
    """The root of every error that this library raises by itself."""

    def __reduce__(self) -> tuple[Any, ...]:
        # The message is made by __init__, from what __init__ alone is given: other processes get
        # the message and the attributes.
        return copyreg.__newobj__, (type(self), *self.args), self.__dict__  # type: ignore[attr-defined]


class InvalidArgument(TaskQueueError, ValueError):
    """An argument is out of its documented range; nothing was sent to the database.

    Attributes:
        argument: The argument's name; ``specs[3].key`` in a batch.
        place: Where in the argument the flaw is, ``['to'][1]``; '' for the argument itself.
        value: What was found there.
        problem: What is wrong with it, as the message says it.
    """

    def __init__(self, argument: str, value: object, problem: str, place: str = "") -> None:
        super().__init__(f"{argument}{place}={shorten(value)} {problem}")
        self.argument = argument
        self.place = place
        self.value = value
        self.problem = problem

    def within(self, outer: str) -> Self:
        """Return the same error about an argument that is part of *outer*."""
        return type(self)(f"{outer}.{self.argument}", self.value, self.problem, self.place)


class InvalidPayload(InvalidArgument):
    """A value cannot be stored as JSON; the message names the place within it."""


class ScopeMissing(TaskQueueError):
    """The operation needs a value for every scope column.

    Attributes:
        missing: Names of the scope columns without a value.
    """

    def __init__(self, queue: str, operation: str, missing: Sequence[str]) -> None:
        names = ", ".join(f"{name}=…" for name in missing)
        super().__init__(
            f"{operation} on queue {queue!r} needs the scope {', '.join(missing)}: "
            f"call it on queue.scope({names})"
        )
        self.missing = tuple(missing)


class UnsupportedModel(TaskQueueError, TypeError):
    """A class cannot carry a queue; the message names the class and the feature."""


class UnsupportedHandler(TaskQueueError, TypeError):
    """A function cannot be a handler; the message names the function and the parameter."""


class UnfitArguments(TaskQueueError, TypeError):
    """A stored payload does not fit the parameters of its handler, which was not called.

    Attributes:
        handler: The handler's name.
        missing: Parameters without a default that the payload has no value for.
        unexpected: Names in the payload that are no parameters.
    """

    def __init__(
        self,
        handler: str,
        payload: object,
        *,
        missing: Sequence[str] = (),
        unexpected: Sequence[str] = (),
    ) -> None:
        flaws = [
            f"{kind} {', '.join(map(shorten, names[:_NAMED]))}{', …' * (len(names) > _NAMED)}"
            for kind, names in (("missing", missing), ("unexpected", unexpected))
            if names
        ] or [f"{shorten(payload)} is of type {type(payload).__name__}, not an object of names"]
        super().__init__(f"the payload does not fit handler {handler!r}: {'; '.join(flaws)}")
        self.handler = handler
        self.missing = tuple(missing)
        self.unexpected = tuple(unexpected)


class UnsupportedDialect(TaskQueueError):
    """The queue runs on PostgreSQL only.

    Tables can be created on other databases, so that a host's own test suite can run there.
    """

    def __init__(self, dialect: str) -> None:
        super().__init__(
            f"the queue needs PostgreSQL 14 or later and was given {dialect!r}; "
            "only its tables can be created there"
        )
        self.dialect = dialect


class TaskExists(TaskQueueError):
    """``enqueue(if_exists="raise")`` met a task that exists already; nothing was inserted.

    Attributes:
        id: Primary key of the existing task.
        state: Its state.
    """

    def __init__(self, subject: str, id: Any, state: str) -> None:  # noqa: A002 - the public word
        super().__init__(f"{subject} exists already and is {state}; look it up with get()")
        self.id = id
        self.state = state


class EnqueueConflict(TaskQueueError):
    """A unique constraint that is not the queue's own keeps the row out.

    Attributes:
        constraint: Name of the constraint or index; of the whole table where that is partitioned.
    """

    def __init__(self, constraint: str | None, table: str) -> None:
        super().__init__(
            f"a row of {table!r} that this queue and scope cannot see already satisfies "
            f"{constraint or 'a unique constraint'}; nothing was inserted"
        )
        self.constraint = constraint


class LeaseLost(TaskQueueError):
    """The caller no longer holds the task; nothing was written.

    Raised rather than returned, so that the caller's transaction block rolls back together with
    whatever else was done for the task.

    Attributes:
        refused: Who has the task now, or what has become of it.
    """

    def __init__(self, refused: Refused[Any]) -> None:
        super().__init__(str(refused))
        self.refused = refused
