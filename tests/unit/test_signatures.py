"""What a function takes: own parameters and injected ones, of signatures of every shape."""

from __future__ import annotations

import functools
import inspect
import subprocess
import sys
from typing import TYPE_CHECKING, Annotated, Any, Optional, Union

import pytest
from sqlalchemy import orm
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import DeclarativeBase, Session, registry

import sqla_taskqueue  # noqa: F401 - an annotation names it
from sqla_taskqueue import Claim, TaskMixin, UuidId
from sqla_taskqueue._signatures import Parameters, described, is_coroutine_function
from sqla_taskqueue.errors import UnfitArguments, UnsupportedHandler
from tests.strange import kind

if TYPE_CHECKING:
    from nowhere import Missing


class Base(DeclarativeBase):
    pass


class Abstract(UuidId, TaskMixin):
    """What several task classes of a host have in common."""


class Task(Abstract, Base):
    __tablename__ = "tasks"


class Other(UuidId, TaskMixin, Base):
    __tablename__ = "others"


class OwnSession(Session):
    pass


class OwnAsyncSession(AsyncSession):
    pass


def of(function, model=Task):
    """Return the parameters of a function."""
    return Parameters(function, model, "work")


def injected(function):
    """Return what is injected into a function."""
    return of(function).injected


# --- What is injected --------------------------------------------------------------------------


def test_everything_is_injected_by_annotation():
    """Wherever the parameters stand and whatever they are called."""

    async def work(a: int, t: Task, b: str, *, c: Claim[Task], d: float = 1, s: AsyncSession): ...

    parameters = of(work)
    assert parameters.injected == {"task": "t", "claim": "c", "session": "s"}
    assert parameters.session_type is AsyncSession
    assert parameters.payload((1, "x"), {}) == {"a": 1, "b": "x"}


def test_nothing_is_injected_by_name():
    """Without an annotation, or with another, every parameter is the payload's."""

    def work(task, claim: dict, session: str = ""): ...

    assert of(work).injected == {}
    assert of(work).session_type is None
    assert of(work).payload((1,), {"claim": 2}) == {"task": 1, "claim": 2}


@pytest.mark.parametrize(
    ("annotation", "kind"),
    [
        (Task, "task"),
        (Abstract, "task"),
        (TaskMixin, "task"),
        (Claim, "claim"),
        (Claim[Task], "claim"),
        (Claim[Any], "claim"),
        (Claim["Missing"], "claim"),
        (Session, "session"),
        (OwnSession, "session"),
        (AsyncSession, "session"),
        (OwnAsyncSession, "session"),
        (Annotated[Session, "which"], "session"),
        (Annotated["Session", "which"], "session"),
        ("Task", "task"),
        ("Session", "session"),
        ("orm.Session", "session"),
        ("OwnSession", "session"),
        ("Claim[Task]", "claim"),
        ("sqla_taskqueue.Claim[Task]", "claim"),
        # Names that exist for type checkers only.
        ("Claim[Missing]", "claim"),
        ("missing.Claim[dict[str, Missing]]", "claim"),
        ("missing.Session", "session"),
        ("missing.somewhere.Task", "task"),
        ("missing.AsyncSession", "session"),
        (" missing . Task", None),
        ("missing.Other", None),
        ("Missing", None),
        ("list[Missing]", None),
        ("Missing | Session", None),
        ("not even Python", None),
        # What is no class, or another one.
        (Session | None, None),
        (Optional[Session], None),  # noqa: UP045
        (Union[Task, str], None),  # noqa: UP007
        ("Session | None", None),
        (type[Task], None),
        (list[Task], None),
        (UuidId, None),
        (orm.scoped_session, None),
        (object, None),
        (Any, None),
        (None, None),
        (7, None),
        (int, None),
    ],
    ids=str,
)
def test_annotations(annotation, kind):
    """The class counts: bare, subscribed, annotated, quoted, or known to type checkers only."""

    async def work(it): ...

    work.__annotations__["it"] = annotation
    assert of(work).injected == ({} if kind is None else {kind: "it"})


def test_annotations_without_the_future_import():
    """Annotations that are objects, not text."""
    names = {"Session": Session, "Task": Task}
    program = "def work(task: Task, user_id: int, session: Session | None = None): ..."
    exec(compile(program, "eager", "exec", dont_inherit=True), names)
    assert injected(names["work"]) == {"task": "task"}


def test_a_name_for_checkers_only_hides_nothing():
    """Where one annotation cannot be resolved, the others can."""

    def work(missing: Missing, s: OwnSession, other: list[Missing] | None = None): ...

    assert injected(work) == {"session": "s"}
    assert of(work).payload((1,), {}) == {"missing": 1}


def test_classes_of_a_function_are_known_by_name():
    """A task class that is no global name of the module."""

    class Base(DeclarativeBase):
        pass

    class Local(UuidId, TaskMixin, Base):
        __tablename__ = "local"

    def work(it: Local, claim: Claim[Local]): ...

    assert of(work, Local).injected == {"task": "it", "claim": "claim"}


def test_classes_of_every_declarative_kind():
    """Nothing but the class is looked at."""

    @registry().mapped
    class Mapped(UuidId, TaskMixin):
        __tablename__ = "mapped"

    def work(it: Mapped): ...

    assert of(work, Mapped).injected == {"task": "it"}


def test_a_default_changes_nothing():
    """A parameter that may be left out in tests is injected all the same."""

    def work(session: Session = None): ...

    assert injected(work) == {"session": "session"}


def test_keyword_arguments_are_never_injected():
    """`**sessions: Session` is a name for many values."""

    def work(**sessions: Session): ...

    assert injected(work) == {}


@pytest.mark.parametrize("annotation", [Session, OwnSession])
def test_the_kind_of_session(annotation):
    """Of a subclass, the class of SQLAlchemy's that a worker can choose by."""

    def work(s): ...

    work.__annotations__["s"] = annotation
    assert of(work).session_type is Session


# --- What is refused ---------------------------------------------------------------------------


def refused(function, model=Task):
    """Return the message with which a function is refused."""
    with pytest.raises(UnsupportedHandler) as caught:
        of(function, model)
    assert described(function) in str(caught.value)
    return str(caught.value)


def test_arguments_without_a_name():
    """A payload is an object of names."""

    def work(a, *rest): ...

    message = refused(work)
    assert "'rest'" in message
    assert "without a name" in message


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (Task, Task),
        (Task, Abstract),
        (Claim[Task], Claim),
        (Session, Session),
        (Session, OwnSession),
        (AsyncSession, AsyncSession),
        (Session, AsyncSession),
        (AsyncSession, Session),
    ],
)
def test_two_of_a_kind(first, second):
    """One task, one claim, one session; never a session of each world."""

    async def work(one, two): ...

    work.__annotations__.update(one=first, two=second)
    assert "'two' asks for a second" in refused(work)


def test_an_async_session_in_a_plain_function():
    """Nothing could be awaited on it."""

    def work(db: AsyncSession): ...

    assert "'db' can only be awaited by an async function" in refused(work)


def test_a_session_in_an_async_function():
    """Is the host's own choice."""

    async def work(db: Session): ...

    assert injected(work) == {"session": "db"}


def test_another_task_class():
    """No payload holds an entity, and no worker has one of another class."""

    def work(it: Other): ...

    assert "'it' asks for another class than the queue's, Task" in refused(work)
    assert of(work, Other).injected == {"task": "it"}


def _generator():
    yield


async def _asynchronous_generator():
    yield


class Generating:
    def __call__(self):
        yield


@pytest.mark.parametrize(
    "function",
    [_generator, _asynchronous_generator, functools.partial(_generator), Generating()],
    ids=kind,
)
def test_generators(function):
    """A call would do _nothing, and look like a success."""
    assert "generator" in refused(function)


@pytest.mark.parametrize("value", [None, 7, "work", Task, dict, classmethod(lambda cls: 1)])
def test_what_is_no_function(value):
    """Classes included, whose instances are no results."""
    with pytest.raises(UnsupportedHandler, match="is no function"):
        of(value)


def test_a_function_whose_parameters_cannot_be_known():
    """Some functions written in C do not tell."""
    silent = next(
        one for one in (max, min, dict.pop, vars, getattr, iter) if not _has_signature(one)
    )
    assert "no signature" in refused(silent)


def _has_signature(function):
    try:
        inspect.signature(function)
    except ValueError:
        return False
    return True


# --- Functions of every shape ------------------------------------------------------------------


class Plainly:
    def __call__(self, user_id: int, s: Session, *, again: bool = False):
        return user_id, s, again


class Awaitably:
    async def __call__(self, user_id: int, s: AsyncSession): ...


class Service:
    def plain(self, user_id: int, s: Session, *, again: bool = False):
        return user_id, s, again

    async def asynchronous(self, user_id: int): ...

    @classmethod
    def of_class(cls, user_id: int, s: Session, *, again: bool = False):
        return user_id, s, again

    @staticmethod
    def static(user_id: int, s: Session, *, again: bool = False):
        return user_id, s, again


def _function(user_id: int, s: Session, *, again: bool = False):
    return user_id, s, again


async def _coroutine_function(user_id: int): ...


def _positional(user_id: int, s: Session, /, *, again: bool = False):
    return user_id, s, again


def _three(ignored: str, user_id: int, s: Session, *, again: bool = False):
    return user_id, s, again


def logged(function):
    """Decorate as most decorators do: its own annotations are not the function's."""

    @functools.wraps(function)
    def wrapper(*args: Missing, **kwargs: Missing) -> Missing:
        return function(*args, **kwargs)

    return wrapper


SHAPES = {
    "function": _function,
    "lambda": lambda user_id, s, again=False: (user_id, s, again),
    "positional": _positional,
    "partial": functools.partial(_three, "ignored"),
    "partial of a partial": functools.partial(functools.partial(_three), "ignored"),
    "partial with a keyword": functools.partial(_function, again=False),
    "partial of a callable": functools.partial(Plainly()),
    "callable": Plainly(),
    "method": Service().plain,
    "method of a class": Service.of_class,
    "static method": Service.static,
    "decorated": logged(_function),
    "decorated twice": logged(logged(_function)),
    "decorated callable": logged(Plainly()),
    "decorated partial": logged(functools.partial(_three, "ignored")),
    "decorated method": logged(Service().plain),
    "cached": functools.lru_cache(_function),
}
SHAPES["lambda"].__annotations__ = {"s": Session}


@pytest.mark.parametrize("shape", SHAPES)
def test_shapes(shape):
    """Each takes a user by name or place, and is given a session."""
    parameters = of(SHAPES[shape])
    assert parameters.injected == {"session": "s"}
    stored = parameters.payload((), {"user_id": 7}) if shape != "positional" else {"user_id": 7}
    assert stored == {"user_id": 7}
    assert parameters.payload((7,), {"again": True}) == {"user_id": 7, "again": True}
    arguments = parameters.arguments({"user_id": 7, "again": True})
    assert parameters.call(arguments, "task", "claim", "session") == (7, "session", True)
    assert parameters.call({"user_id": 7}, None, None, "session") == (7, "session", False)


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (_function, False),
        (_coroutine_function, True),
        (functools.partial(_coroutine_function, 7), True),
        (functools.partial(functools.partial(_coroutine_function)), True),
        (Plainly(), False),
        (Awaitably(), True),
        (functools.partial(Awaitably(), 7), True),
        (Service().plain, False),
        (Service().asynchronous, True),
        (functools.partial(Service().asynchronous), True),
        (logged(_function), False),
    ],
    ids=kind,
)
def test_what_is_to_be_awaited(function, expected):
    """Coroutine functions, objects that are called with one, and partials of either."""
    assert is_coroutine_function(function) is expected


# --- Payloads ----------------------------------------------------------------------------------


def _plain(a, b=2, *, c=3): ...


def _only_by_position(a, b=2, /, c=3): ...


def _rest(a, *, session: Session, **more): ...


def _rest_by_position(a, /, **more): ...


def _nothing(): ...


@pytest.mark.parametrize(
    ("function", "args", "kwargs", "payload"),
    [
        (_plain, (1,), {}, {"a": 1}),
        (_plain, (), {"a": 1}, {"a": 1}),
        (_plain, (1, 2), {"c": 3}, {"a": 1, "b": 2, "c": 3}),
        (_plain, (), {"c": None, "a": None}, {"c": None, "a": None}),
        (_only_by_position, (1,), {}, {"a": 1}),
        (_only_by_position, (1, 5, 6), {}, {"a": 1, "b": 5, "c": 6}),
        (_only_by_position, (1,), {"c": 6}, {"a": 1, "c": 6}),
        (_rest, (1,), {}, {"a": 1}),
        (_rest, (1,), {"x": 2, "more": 3}, {"a": 1, "x": 2, "more": 3}),
        (_rest, (), {"a": 1, "x": 2}, {"a": 1, "x": 2}),
        (_nothing, (), {}, None),
        (lambda a=1: a, (), {}, None),
        (lambda **more: more, (), {}, None),
    ],
)
def test_arguments_become_a_payload(function, args, kwargs, payload):
    """Names and the values given; defaults that were not given stay the function's own."""
    assert of(function).payload(args, kwargs) == payload
    # What is stored is what the function gets.
    assert of(function).arguments(payload) == (payload or {})


@pytest.mark.parametrize(
    ("function", "args", "kwargs", "problem"),
    [
        (_plain, (), {}, "missing a required .*'a'"),
        (_plain, (1, 2, 3), {}, "too many positional"),
        (_plain, (1,), {"a": 1}, "multiple values for argument 'a'"),
        (_plain, (1,), {"d": 1}, "unexpected keyword argument 'd'"),
        (_only_by_position, (), {"a": 1}, "'a'"),
        (_nothing, (1,), {}, "too many"),
        (_rest, (1,), {"session": 1}, "'session' is the name of another parameter"),
        (_rest, (), {"a": 1, "session": 1}, "'session' is the name of another parameter"),
        (_rest_by_position, (1,), {"a": 2}, "'a' is the name of another parameter"),
    ],
)
def test_arguments_that_do_not_fit(function, args, kwargs, problem):
    """As in a call: a `TypeError`, which names the handler."""
    with pytest.raises(TypeError, match=f"^work: .*{problem}") as caught:
        of(function).payload(args, kwargs)
    assert not isinstance(caught.value, UnfitArguments)


@pytest.mark.parametrize(
    ("function", "payload"),
    [
        (_plain, {"a": 1}),
        (_plain, {"a": 1, "b": 2, "c": 3}),
        (_only_by_position, {"a": 1, "c": 2}),
        (_rest, {"a": 1}),
        (_rest, {"a": 1, "x": 2}),
        (_rest_by_position, {"a": 1}),
        (_nothing, {}),
    ],
)
def test_payloads_that_fit(function, payload):
    """Become arguments as they are."""
    assert of(function).arguments(payload) == payload


@pytest.mark.parametrize("function", [_nothing, lambda a=1: a, lambda **more: more])
def test_no_payload_is_no_arguments(function):
    """Tasks that were enqueued without a payload."""
    assert of(function).arguments(None) == {}


@pytest.mark.parametrize(
    ("function", "payload", "missing", "unexpected"),
    [
        (_plain, None, ["a"], []),
        (_plain, {}, ["a"], []),
        (_plain, {"b": 1}, ["a"], []),
        (_plain, {"a": 1, "y": 1, "x": 1}, [], ["x", "y"]),
        (_plain, {"x": 1}, ["a"], ["x"]),
        (_only_by_position, {"c": 1}, ["a"], []),
        (_rest, {"x": 1}, ["a"], []),
        (_rest, {"a": 1, "session": 1}, [], ["session"]),
        (_nothing, {"x": 1}, [], ["x"]),
    ],
)
def test_payloads_that_do_not_fit(function, payload, missing, unexpected):
    """The error names the handler and every name, for whoever wrote the one or the other."""
    with pytest.raises(UnfitArguments) as caught:
        of(function).arguments(payload)
    error, text = caught.value, str(caught.value)
    assert error.handler == "work"
    assert error.missing == tuple(missing)
    assert error.unexpected == tuple(unexpected)
    assert "'work'" in text
    assert all(repr(name) in text for name in missing + unexpected)
    assert ("missing" in text, "unexpected" in text) == (bool(missing), bool(unexpected))


@pytest.mark.parametrize("payload", [[], [1], "a", 1, 1.5, True, False, ""])
@pytest.mark.parametrize("function", [_plain, _nothing, _rest])
def test_payloads_that_are_no_objects(function, payload):
    """Have no names."""
    with pytest.raises(UnfitArguments, match=f"of type {type(payload).__name__}, not an object"):
        of(function).arguments(payload)


def test_the_message_stays_short():
    """However many strange names there are."""
    with pytest.raises(UnfitArguments) as caught:
        of(_plain).arguments({f"{'x' * 1_000}{number}": 1 for number in range(1_000)})
    assert len(str(caught.value)) < 1_000
    assert len(caught.value.unexpected) == 1_000


def _claims(claim: Claim[Task]): ...


def _entities(task: Task, session: Session): ...


@pytest.mark.parametrize("function", [_claims, _entities])
@pytest.mark.parametrize("payload", [None, {}, {"a": 1}, [1], "text", 7])
def test_handlers_that_read_the_payload_themselves(function, payload):
    """What takes the claim or the task and nothing else finds any payload there."""
    assert of(function).arguments(payload) == {}


def test_handlers_that_cannot_read_the_payload():
    """A session has none."""

    def work(session: Session): ...

    assert of(work).arguments(None) == {}
    with pytest.raises(UnfitArguments):
        of(work).arguments({"a": 1})


# --- Calls -------------------------------------------------------------------------------------


def test_each_parameter_gets_its_own():
    """By name, and by place where it must be."""

    def work(a, t: Task, b=2, /, c=3, *, s: Session, claim: Claim[Task], **more):
        return a, t, b, c, s, claim, more

    arguments = {"a": 1, "c": 5, "x": 6}
    called = of(work).call(arguments, "task", "claim", "session")
    assert called == (1, "task", 2, 5, "session", "claim", {"x": 6})


@pytest.mark.parametrize("function", [_plain, _only_by_position, _rest, _entities])
def test_a_call_leaves_the_arguments(function):
    """They may be the payload of an entity in somebody's session."""
    parameters = of(function)
    stored = None if function is _entities else {"a": 1}
    arguments = parameters.arguments(stored)
    before = dict(arguments)
    parameters.call(arguments, "task", "claim", "session")
    assert arguments == before


def test_a_call_without_the_session_that_nobody_asked_for():
    """What is not injected is not given."""
    assert of(lambda a: a).call({"a": 1}, "task", "claim", "session") == 1


# --- Imports -----------------------------------------------------------------------------------


def test_neither_greenlet_nor_the_asyncio_extension_is_imported():
    """Hosts without greenlet make handlers, too; also of functions that name `Session`."""
    program = """
import sys
# As if it were not installed; SQLAlchemy 2.0 looks for it by itself.
sys.modules["greenlet"] = None
sys.modules["sqlalchemy.ext.asyncio"] = None
from sqlalchemy.orm import DeclarativeBase, Session
from sqla_taskqueue import Queue, TaskMixin, UuidId
from sqla_taskqueue.handlers import Handlers

class Base(DeclarativeBase): pass
class Task(UuidId, TaskMixin, Base): __tablename__ = "tasks"
tasks = Handlers(Queue(Task))

@tasks.handler
def work(task: Task, session: Session, a: int): ...

assert work.session_type is Session
assert work.spec(1).payload == {"a": 1}
try:
    work.enqueue(object(), 1)
except TypeError as error:
    assert "must be a Session" in str(error)
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
