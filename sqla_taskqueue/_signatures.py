"""What the function of a handler takes: arguments from the payload, and what is injected.

A parameter is injected by its annotation: the host's task class, ``Claim``, ``Session`` or
``AsyncSession``. Everything is worked out once, when the handler is made; a call costs little.
"""

from __future__ import annotations

import functools
import inspect
import re
import sys
from collections.abc import Callable, Mapping
from inspect import Parameter, Signature
from types import SimpleNamespace
from typing import Any, Literal, NamedTuple, get_origin, get_type_hints

from sqlalchemy.orm import Session

from .errors import UnfitArguments, UnsupportedHandler, shorten
from .mixins import TaskMixin
from .values import Claim

_AS_WRITTEN: dict[str, Any] = {}
if sys.version_info >= (3, 14):
    import annotationlib

    # Names that do not exist at run time stay names.
    _AS_WRITTEN = {"annotation_format": annotationlib.Format.FORWARDREF}

Kind = Literal["task", "claim", "session"]
_KINDS: tuple[Kind, ...] = ("task", "claim", "session")
"""What ``Parameters.call`` is given, in this order."""

_LAST_NAME = re.compile(r"(?:\w+\.)*(\w+)(?:\[.*\])?", re.DOTALL)
"""The class that ``orm.Session`` or ``values.Claim[Task]`` names."""


class _Injected(NamedTuple):
    """What a parameter is given: a kind, and the class that its annotation names."""

    kind: Kind
    cls: type[Any]


# --- Functions ---------------------------------------------------------------------------------


def described(function: Any) -> str:
    """Return how messages call a function."""
    name = getattr(function, "__qualname__", None)
    return f"{function.__module__}.{name}" if isinstance(name, str) else shorten(function)


def is_coroutine_function(function: Callable[..., Any]) -> bool:
    """Tell whether a call returns a coroutine, as far as that can be known before."""
    return inspect.iscoroutinefunction(_beneath(function))


def _beneath(function: Any) -> Any:
    """Return the function that a call runs: that of a partial, or an object's ``__call__``."""
    while isinstance(function, functools.partial):
        function = function.func
    return function if inspect.isroutine(function) else type(function).__call__


def _signature(function: Callable[..., Any]) -> Signature:
    """Return the signature of a function that may be a handler.

    Raises:
        UnsupportedHandler: It has none, or a call does not run it.
    """
    if not callable(function) or isinstance(function, type):
        raise UnsupportedHandler(f"{described(function)} cannot be a handler: it is no function")
    body = _beneath(function)
    if inspect.isgeneratorfunction(body) or inspect.isasyncgenfunction(body):
        raise UnsupportedHandler(
            f"{described(function)} cannot be a handler: it is a generator, which a call only makes"
        )
    try:
        return inspect.signature(function, **_AS_WRITTEN)
    except ValueError as error:
        raise UnsupportedHandler(f"{described(function)} cannot be a handler: {error}") from None


# --- Annotations -------------------------------------------------------------------------------


def async_classes(*names: str) -> tuple[type[Any], ...]:
    """Return classes of SQLAlchemy's asyncio extension; none where nobody has imported it.

    It is not imported for this: it needs greenlet, which a synchronous host may not have. As long
    as it is not imported, nothing is of these classes.
    """
    module = sys.modules.get("sqlalchemy.ext.asyncio")
    return () if module is None else tuple(getattr(module, name) for name in names)


def _names_of(function: Any) -> dict[str, Any]:
    """Return the global names that a function's annotations may use.

    Of what ``functools.wraps`` made, these are the names of the function within.
    """
    within = function
    while within is not None:
        function = within
        within = getattr(function, "__wrapped__", None) or getattr(function, "__func__", None)
        if within is None and not hasattr(function, "__globals__"):
            beneath = _beneath(function)
            within = None if beneath is function else beneath
    names: dict[str, Any] = getattr(function, "__globals__", {})
    return names


def _resolved(annotation: Any, names: dict[str, Any]) -> Any:
    """Return what an annotation means; itself if that cannot be known."""
    # One by one: a name that exists for type checkers only must not hide what the others mean.
    alone = SimpleNamespace(__annotations__={"annotation": annotation})
    try:
        return get_type_hints(alone, names)["annotation"]
    except Exception:  # noqa: BLE001 - annotations may be any code
        return annotation


def _injected(annotation: Any, model: type[TaskMixin]) -> _Injected | None:
    """Return what is injected for an annotation, if anything is."""
    written = getattr(annotation, "__forward_arg__", annotation)
    if isinstance(written, str):
        match = _LAST_NAME.fullmatch(written.strip())
        return _injected_by_name(match[1], model) if match else None
    cls = get_origin(annotation) or annotation
    if not isinstance(cls, type):
        return None
    if cls is Claim:
        return _Injected("claim", cls)
    if issubclass(cls, TaskMixin):
        return _Injected("task", cls)
    bases: tuple[type[Any], ...] = (Session, *async_classes("AsyncSession"))
    found = next((base for base in bases if issubclass(cls, base)), None)
    return None if found is None else _Injected("session", found)


def _injected_by_name(name: str, model: type[TaskMixin]) -> _Injected | None:
    """Return what is injected for a name that exists for type checkers only."""
    if name == model.__name__:
        return _Injected("task", model)
    if name == "Claim":
        return _Injected("claim", Claim)
    if name == "Session":
        return _Injected("session", Session)
    if name == "AsyncSession":
        # Imported here: see async_classes(). This host needs it.
        from sqlalchemy.ext.asyncio import AsyncSession  # noqa: PLC0415

        return _Injected("session", AsyncSession)
    return None


# --- Parameters --------------------------------------------------------------------------------


class Parameters:
    """What a function takes, and how to call it.

    Args:
        function: The function.
        model: The host's task class.
        handler: The handler's name, for messages.

    Attributes:
        injected: Names of the injected parameters, by kind.
        session_type: ``Session``, ``AsyncSession``, or None where no session is injected.

    Raises:
        UnsupportedHandler: It takes what no payload has, or what no worker injects.
    """

    def __init__(self, function: Callable[..., Any], model: type[TaskMixin], handler: str) -> None:
        signature = _signature(function)
        self._function = function
        self._model = model
        self._handler = handler
        self.injected: dict[Kind, str] = {}
        self.session_type: type[Any] | None = None
        own: list[Parameter] = []
        names = _names_of(function)
        for parameter in signature.parameters.values():
            if parameter.kind is Parameter.VAR_POSITIONAL:
                raise self._unsupported(parameter, "takes values without a name")
            injected = None
            if parameter.kind is not Parameter.VAR_KEYWORD:
                injected = _injected(_resolved(parameter.annotation, names), model)
            if injected is None:
                own.append(parameter)
            else:
                self._inject(parameter, injected)
        self._prepare(own, list(signature.parameters.values()))

    def _unsupported(self, parameter: Parameter, problem: str) -> UnsupportedHandler:
        return UnsupportedHandler(
            f"{described(self._function)} cannot be a handler: its parameter {parameter.name!r} {problem}"
        )

    def _inject(self, parameter: Parameter, injected: _Injected) -> None:
        kind, cls = injected
        if kind in self.injected:
            raise self._unsupported(parameter, f"asks for a second {kind}")
        if kind == "task" and not issubclass(self._model, cls):
            raise self._unsupported(
                parameter, f"asks for another class than the queue's, {self._model.__name__}"
            )
        if kind == "session":
            if cls is not Session and not is_coroutine_function(self._function):
                raise self._unsupported(parameter, "can only be awaited by an async function")
            self.session_type = cls
        self.injected[kind] = parameter.name

    def _prepare(self, own: list[Parameter], everything: list[Parameter]) -> None:
        """Work out what calls will need."""
        by_name = [one for one in own if one.kind is not Parameter.VAR_KEYWORD]
        self._own = Signature(own)
        self._known = frozenset(one.name for one in by_name)
        self._required = frozenset(one.name for one in by_name if one.default is one.empty)
        self._rest = next((one.name for one in own if one not in by_name), None)
        self._only_by_position = [
            (one.name, one.default) for one in everything if one.kind is one.POSITIONAL_ONLY
        ]
        self._placed = [
            (self.injected[kind], place)
            for place, kind in enumerate(_KINDS)
            if kind in self.injected
        ]
        self._taken = frozenset(self.injected.values())
        """Names that ``**kwargs`` cannot have."""
        self._reads_payload = not own and not {"claim", "task"}.isdisjoint(self.injected)

    def payload(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any] | None:
        """Return arguments as a JSON object of names, or None where there are none.

        Raises:
            TypeError: They do not fit, as in a call of the function.
        """
        if args or self._only_by_position or not self._fits(kwargs):
            try:
                bound = self._own.bind(*args, **kwargs).arguments
            except TypeError as error:
                raise TypeError(f"{self._handler}: {error}") from None
            rest: Mapping[str, Any] = {}
            if self._rest is not None:
                rest = bound.pop(self._rest, rest)
            for name in rest:
                if name in self._taken or name in self._known:
                    raise TypeError(f"{self._handler}: {name!r} is the name of another parameter")
            kwargs = {**bound, **rest}
        return kwargs or None

    def _fits(self, given: Mapping[str, Any]) -> bool:
        names = given.keys()
        return self._required <= names and (
            names <= self._known if self._rest is None else names.isdisjoint(self._taken)
        )

    def arguments(self, payload: Any) -> dict[str, Any]:
        """Return what a stored payload gives to the function's own parameters.

        Raises:
            UnfitArguments: They are not what it takes.
        """
        if self._reads_payload:
            return {}
        given: dict[str, Any] = {} if payload is None else payload
        if isinstance(given, dict) and self._fits(given):
            return given
        if not isinstance(given, dict):
            raise UnfitArguments(self._handler, given)
        names = given.keys()
        raise UnfitArguments(
            self._handler,
            given,
            missing=sorted(self._required - names),
            unexpected=sorted(names & self._taken if self._rest else names - self._known),
        )

    def call(self, arguments: dict[str, Any], *injected: Any) -> Any:
        """Call the function with arguments that fit, and a task, a claim and a session."""
        function = self._function
        if not self._placed and not self._only_by_position:
            return function(**arguments)
        arguments = {**arguments, **{name: injected[place] for name, place in self._placed}}
        if not self._only_by_position:
            return function(**arguments)
        by_position = [arguments.pop(name, default) for name, default in self._only_by_position]
        return function(*by_position, **arguments)
