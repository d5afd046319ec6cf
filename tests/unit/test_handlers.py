"""The registry, what a handler is, its options, and when the next attempt comes."""

from __future__ import annotations

import functools
import inspect
import logging
import pickle
import sys
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker
from sqlalchemy.orm import DeclarativeBase, Mapped, Session

from sqla_taskqueue import (
    AsyncQueue,
    Claim,
    Exponential,
    Fixed,
    InvalidArgument,
    Limits,
    Linear,
    Queue,
    TaskMixin,
    TaskSpec,
    UuidId,
)
from sqla_taskqueue.errors import TaskQueueError, UnfitArguments, UnsupportedHandler
from sqla_taskqueue.handlers import Handler, Handlers
from tests.strange import Array, Fruit, Level, kind

MINUTE = timedelta(minutes=1)
DEFAULT = Fixed(timedelta(seconds=77))


class Base(DeclarativeBase):
    pass


class Task(UuidId, TaskMixin, Base):
    __tablename__ = "tasks"
    __scope__ = ("team",)
    team: Mapped[int]


class Other(UuidId, TaskMixin, Base):
    __tablename__ = "others"


emails = Queue(Task, "emails")
pictures = AsyncQueue(Task, "pictures")


@pytest.fixture
def tasks() -> Handlers[Task]:
    """A registry without handlers."""
    return Handlers(emails)


def _work(user_id: int, note: str = "") -> tuple[int, str]:
    """Work."""
    return user_id, note


# --- The registry ------------------------------------------------------------------------------


@pytest.mark.parametrize("queue", [emails, pictures, emails.scope(team=7)], ids=str)
def test_a_registry_of_either_kind_of_queue(queue):
    """The queue is the default of the handlers, and the only one before there are any."""
    tasks = Handlers(queue)
    assert tasks.model is Task
    assert tasks.queues == (queue,)
    assert len(tasks) == 0
    assert list(tasks) == []
    assert tasks.handler(_work).queue is queue


@pytest.mark.parametrize("queue", [None, Task, "emails", Queue, object()])
def test_a_registry_of_something_else(queue):
    """A typed error says what is needed."""
    with pytest.raises(InvalidArgument, match=r"^queue=.* must be a Queue or AsyncQueue"):
        Handlers(queue)


def test_handlers_are_found_by_queue_and_name(tasks):
    """And by nothing else."""
    handler = tasks.handler(_work)
    assert tasks.get("emails", "_work") is handler
    assert tasks.get("emails", "work") is None
    assert tasks.get("pictures", "_work") is None
    assert list(tasks) == [handler]
    assert len(tasks) == 1


def test_one_name_in_two_queues(tasks):
    """Are two handlers, of one function if need be."""
    first = tasks.handler(name="work")(_work)
    second = tasks.handler(name="work", queue=pictures)(first)
    assert tasks.get("emails", "work") is first
    assert tasks.get("pictures", "work") is second
    assert second.function is _work
    assert second.queue is pictures
    assert list(tasks) == [first, second]


@pytest.mark.parametrize(
    "queue", [None, emails, Queue(Task, "emails"), AsyncQueue(Task, "emails")], ids=str
)
def test_one_name_twice_in_one_queue(tasks, queue):
    """Is refused, also where two values are the same queue, and leaves the first in place."""
    first = tasks.handler(name="work")(_work)
    with pytest.raises(InvalidArgument, match=r"^name='work' has a handler in queue 'emails'"):
        tasks.handler(name="work", queue=queue)(lambda: 1)
    assert list(tasks) == [first]


def test_two_registries_share_nothing(tasks):
    """The same function may have a handler in each."""
    first = tasks.handler(_work)
    other = Handlers(emails)
    assert len(other) == 0
    second = other.handler(first)
    assert second is not first
    assert second.function is first.function is _work


def test_queues_come_in_order_and_once(tasks):
    """The registry's own first, though it has no handler; each name once."""
    third = Queue(Task, "third")
    for number, queue in enumerate([pictures, third, Queue(Task, "pictures"), third]):
        tasks.handler(name=f"work {number}", queue=queue)(_work)
    assert tasks.queues == (emails, pictures, third)
    tasks.handler(_work)
    assert tasks.queues == (emails, pictures, third)


def test_a_queue_of_another_class(tasks):
    """Would give its handlers tasks that are none of the registry's."""
    with pytest.raises(InvalidArgument, match=r"^queue=.* must be a queue of Task"):
        tasks.handler(queue=Queue(Other))(_work)


def test_registries_and_handlers_show_what_they_are(tasks):
    """In logs and at a prompt."""
    assert repr(tasks) == "<Handlers of <Queue 'emails' of Task>: none>"
    handler = tasks.handler(name="work")(_work)
    assert repr(tasks) == "<Handlers of <Queue 'emails' of Task>: work>"
    assert repr(handler) == "<Handler 'work' of queue 'emails': tests.unit.test_handlers._work>"


# --- A handler is its function -----------------------------------------------------------------


def test_a_handler_is_called_as_its_function(tasks):
    """With the same arguments, injected ones included, and the same result."""

    @tasks.handler
    def work(session: Session, user_id: int) -> tuple[object, int]:
        return session, user_id

    assert isinstance(work, Handler)
    assert work("a session", user_id=7) == ("a session", 7)
    with pytest.raises(TypeError, match=r"work\(\) missing 1 required"):
        work("a session")


async def test_an_async_handler_is_awaited(tasks):
    """As its function is."""

    @tasks.handler
    async def work(user_id: int) -> int:
        return user_id

    assert work.is_async
    assert await work(7) == 7
    if sys.version_info >= (3, 12):
        assert inspect.iscoroutinefunction(work)


def test_a_handler_looks_like_its_function(tasks):
    """For documentation, debuggers, and whoever reads signatures."""
    handler = tasks.handler(name="other")(_work)
    assert handler.__name__ == "_work"
    assert handler.__qualname__ == "_work"
    assert handler.__module__ == __name__
    assert handler.__doc__ == "Work."
    assert handler.__wrapped__ is _work
    assert inspect.signature(handler) == inspect.signature(_work)
    assert not inspect.iscoroutinefunction(handler)


def test_attributes_of_a_function_hide_nothing(tasks):
    """Other decorators leave some, `retry` and `call` among them."""

    @functools.wraps(_work)
    def work(user_id: int, note: str = "") -> tuple[int, str]:
        return user_id, note

    vars(work).update(enqueue=1, call=2, retry=3, name=4, options=5, _core=6)
    handler = tasks.handler(work)
    assert handler.name == "_work"
    assert handler.retry is None
    assert handler.call({"user_id": 7}) == (7, "")
    assert handler.options(key="k").spec(7).key == "k"


def test_static_methods(tasks):
    """Are the functions that they wrap, whichever decorator comes first."""

    class Service:
        @tasks.handler
        @staticmethod
        async def inner(user_id: int) -> int:
            return user_id

        @staticmethod
        @tasks.handler
        def outer(user_id: int) -> int:
            return user_id

    assert Service.inner.is_async
    assert Service.outer.call({"user_id": 7}) == Service().outer(7) == 7


def test_what_is_injected_can_be_asked(tasks):
    """By the worker, before it calls."""

    @tasks.handler
    async def everything(task: Task, claim: Claim[Task], session: AsyncSession): ...

    @tasks.handler
    def nothing(): ...

    @tasks.handler
    def session(session: Session): ...

    asked = [(one.takes_task, one.takes_claim, one.session_type) for one in tasks]
    assert asked == [(True, True, AsyncSession), (False, False, None), (False, False, Session)]
    assert [one.is_async for one in tasks] == [True, False, False]


def test_a_call_injects_by_keyword(tasks):
    """What a worker does with a stored payload."""

    @tasks.handler
    def work(task: Task, user_id: int, session: Session, /, claim: Claim[Task], more: int = 2):
        return task, user_id, session, claim, more

    arguments = work.arguments({"user_id": 7})
    called = work.call(arguments, task="task", claim="claim", session="session")
    assert called == ("task", 7, "session", "claim", 2)


def test_an_unfit_payload_names_the_handler(tasks):
    """By its name as a handler, not as a function; the error reaches other processes whole."""
    handler = tasks.handler(name="send mail")(_work)
    with pytest.raises(UnfitArguments, match="'send mail': missing 'user_id'") as caught:
        handler.arguments({})
    assert isinstance(caught.value, TaskQueueError)
    assert isinstance(caught.value, TypeError)
    arrived = pickle.loads(pickle.dumps(caught.value))
    assert (str(arrived), vars(arrived)) == (str(caught.value), vars(caught.value))


def test_an_unsupported_function_leaves_no_trace(tasks):
    """Neither does any other error at the decorator."""
    with pytest.raises(UnsupportedHandler, match=r"<lambda> cannot be .* 'rest'"):
        tasks.handler(name="work")(lambda *rest: rest)
    with pytest.raises(InvalidArgument):
        tasks.handler(name="work", priority="high")(_work)
    assert len(tasks) == 0
    tasks.handler(name="work")(_work)


# --- Options -----------------------------------------------------------------------------------


def test_the_defaults(tasks):
    """Are the queue's."""
    handler = tasks.handler(_work)
    assert (handler.name, handler.queue) == ("_work", emails)
    assert (handler.priority, handler.max_attempts) == (0, "default")
    assert (handler.retry, handler.time_limit, handler.lease) == (None, None, None)


def test_every_option(tasks):
    """Is an attribute of the handler."""
    handler = tasks.handler(
        name="send",
        queue=pictures,
        priority=-3,
        max_attempts=5,
        retry=DEFAULT,
        time_limit=MINUTE,
        lease=2 * MINUTE,
    )(_work)
    assert (handler.name, handler.queue) == ("send", pictures)
    assert (handler.priority, handler.max_attempts) == (-3, 5)
    assert (handler.retry, handler.time_limit, handler.lease) == (DEFAULT, MINUTE, 2 * MINUTE)
    spec = handler.spec(7)
    assert (spec.name, spec.priority, spec.max_attempts) == ("send", -3, 5)


def test_a_decorator_can_be_kept(tasks):
    """And gets further options: what several handlers have in common is said once."""
    careful = tasks.handler(max_attempts=None, priority=2)
    first = careful(name="first")(_work)
    second = careful(name="second", priority=3)(_work)
    assert (first.max_attempts, first.priority) == (None, 2)
    assert (second.max_attempts, second.priority) == (None, 3)


def test_unknown_options(tasks):
    """Are refused as unknown arguments are."""
    with pytest.raises(TypeError, match="timeout"):
        tasks.handler(timeout=MINUTE)(_work)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("name", ""),
        ("name", 7),
        ("name", "x" * 101),
        ("name", "a\x00"),
        ("name", Array()),
        ("queue", "emails"),
        ("queue", Queue),
        ("priority", 1 << 15),
        ("priority", "high"),
        ("priority", None),
        ("priority", True),
        ("max_attempts", 0),
        ("max_attempts", "all"),
        ("max_attempts", 1.5),
        ("max_attempts", Array()),
        ("time_limit", timedelta(0)),
        ("time_limit", -MINUTE),
        ("time_limit", 60),
        ("time_limit", timedelta.max),
        ("lease", timedelta(0)),
        ("lease", -MINUTE),
        ("lease", 60),
        ("retry", 3),
        ("retry", "often"),
        ("retry", Fixed),
        ("retry", [Fixed()]),
        ("retry", {ValueError: 3}),
        ("retry", {ValueError: Fixed}),
        ("retry", {ValueError: lambda error, attempt: None}),
        ("retry", {ValueError(): Fixed()}),
        ("retry", {"ValueError": Fixed()}),
        ("retry", {int: Fixed()}),
        ("retry", {(ValueError, KeyError): Fixed()}),
    ],
    ids=kind,
)
def test_options_out_of_range(tasks, option, value):
    """Are refused at the decorator, by their name."""
    with pytest.raises(InvalidArgument, match=rf"^{option}="):
        tasks.handler(**{option: value})(_work)
    assert len(tasks) == 0


def test_an_async_retry_function(tasks):
    """Would return no wait but a coroutine."""

    async def decide(error, attempt): ...

    with pytest.raises(InvalidArgument, match="retry"):
        tasks.handler(retry=decide)(_work)


def test_the_queues_limits_count():
    """Names have the length, and leases the bounds, that the queue has."""
    limits = Limits(name=5, lease_min=MINUTE, lease_max=2 * MINUTE, lease=MINUTE)
    tasks = Handlers(Queue(Task, "q", limits=limits))
    with pytest.raises(InvalidArgument, match="the limit is 5"):
        tasks.handler(name="123456")(_work)
    leases = [MINUTE / 2, MINUTE, 3 * MINUTE]
    made = [tasks.handler(name=f"{i}", lease=one)(_work) for i, one in enumerate(leases)]
    assert [one.lease for one in made] == [MINUTE, MINUTE, 2 * MINUTE]


def test_nearly_right_values_become_plain(tasks):
    """Members of enums, as everywhere."""
    handler = tasks.handler(name=Fruit.APPLE, priority=Level.HIGH, max_attempts=Level.HIGH)(_work)
    spec = handler.spec(1)
    assert [type(one) for one in (spec.name, spec.priority, spec.max_attempts)] == [str, int, int]
    assert (spec.name, spec.priority) == ("apple", 3)
    assert tasks.get("emails", "apple") is handler


@pytest.mark.parametrize(
    "function", [lambda: 1, functools.partial(_work, 1), functools.partial(lambda: 1)], ids=kind
)
def test_functions_without_a_name(tasks, function):
    """Need one, for tasks are found by it."""
    with pytest.raises(InvalidArgument, match=r"^name=None must be given"):
        tasks.handler(function)
    assert tasks.handler(name="work")(function).name == "work"


def test_methods_have_the_name_of_the_function(tasks):
    """Without the class's."""

    class Service:
        def send(self, user_id: int) -> int:
            return user_id

    handler = tasks.handler(Service().send)
    assert handler.name == "send"
    assert handler.call({"user_id": 7}) == 7


# --- Specs -------------------------------------------------------------------------------------


def test_a_spec_holds_the_names_and_values_given(tasks):
    """And the handler's name."""
    handler = tasks.handler(name="work")(_work)
    assert handler.spec(7) == TaskSpec("work", {"user_id": 7})
    assert handler.spec(note="x", user_id=7) == TaskSpec("work", {"user_id": 7, "note": "x"})
    assert tasks.handler(name="nothing")(lambda: 1).spec() == TaskSpec("nothing", None)


def test_options_of_one_call(tasks):
    """All that enqueue has; the handler itself stays as it is."""
    handler = tasks.handler(name="work", priority=1, max_attempts=3)(_work)
    at = datetime(2030, 1, 1, tzinfo=UTC)
    given = {"key": "k", "unique_key": "u", "priority": 0, "run_at": at, "id": "i"}
    values = {"reviewer": "r"}
    special = handler.options(**given, max_attempts=None, values=values)
    assert special.spec(7) == TaskSpec(
        "work", {"user_id": 7}, **given, max_attempts=None, values=values
    )
    assert handler.spec(7) == TaskSpec("work", {"user_id": 7}, priority=1, max_attempts=3)


def test_options_add_up(tasks):
    """What is not given stays as it was."""
    handler = tasks.handler(name="work", priority=1, max_attempts=3)(_work)
    special = handler.options(key="k", delay=MINUTE, max_attempts=4).options(key="l").options()
    assert special.spec(7) == TaskSpec(
        "work", {"user_id": 7}, key="l", delay=MINUTE, priority=1, max_attempts=4
    )


@pytest.mark.parametrize("scope", [{"colour": 1}, {"team": None}, ["team"], "team", 7])
def test_scopes_that_cannot_be_bound(tasks, scope):
    """Are refused at once."""
    with pytest.raises(InvalidArgument, match=r"^(scope|colour|team)="):
        tasks.handler(_work).options(scope=scope)


# --- Before anything is sent -------------------------------------------------------------------


def _nobody():
    raise AssertionError("a connection was asked for")


@pytest.fixture
def session():
    """A session whose every statement would be noticed."""
    with Session(create_engine("postgresql+psycopg://", creator=_nobody)) as session:
        yield session


@pytest.mark.parametrize(
    ("args", "kwargs"), [((), {}), ((1, "", 3), {}), ((1,), {"user_id": 1}), ((1,), {"x": 1})]
)
def test_arguments_that_do_not_fit(tasks, session, args, kwargs):
    """As in a call of the function."""
    handler = tasks.handler(name="work")(_work)
    for send in (handler.enqueue, handler.options(key="k").enqueue):
        with pytest.raises(TypeError, match=r"^work: "):
            send(session, *args, **kwargs)
    with pytest.raises(TypeError, match=r"^work: "):
        handler.spec(*args, **kwargs)


def test_options_that_are_out_of_range(tasks, session):
    """Are the errors of `Queue.enqueue`."""
    mine = tasks.handler(_work).options(scope={"team": 7})
    for wrong in (
        {"key": 1},
        {"priority": 1 << 15},
        {"delay": -MINUTE},
        {"max_attempts": "all"},
        {"max_attempts": Array()},
        {"values": {"nothing": 1}},
        {"run_at": datetime(2030, 1, 1, tzinfo=UTC), "delay": MINUTE},
    ):
        with pytest.raises(InvalidArgument):
            mine.options(**wrong).enqueue(session, 7)
    with pytest.raises(InvalidArgument, match=r"\['user_id'\]"):
        mine.enqueue(session, object())


@pytest.mark.parametrize("name", ["other", "", None, 7, Array()], ids=kind)
def test_specs_of_another_handler(tasks, session, name):
    """Or of none are refused, by their place."""
    handler = tasks.handler(name="work")(_work)
    with pytest.raises(InvalidArgument, match=r"^specs\[1\]\.name="):
        handler.options(scope={"team": 7}).enqueue_many(session, [handler.spec(7), TaskSpec(name)])


@pytest.mark.parametrize("specs", [None, 7, "specs", {}, [7], [("work", {})]])
def test_specs_that_are_none(tasks, session, specs):
    """Are refused as by the queue."""
    with pytest.raises(InvalidArgument, match=r"^specs"):
        tasks.handler(_work).options(scope={"team": 7}).enqueue_many(session, specs)


@pytest.mark.parametrize(
    "other", [None, "session", Session, create_engine("sqlite://"), async_sessionmaker()], ids=kind
)
def test_what_is_no_session(tasks, other):
    """Is a `TypeError` that names the type, at the call."""
    handler = tasks.handler(_work)
    for send in (lambda: handler.enqueue(other, 7), lambda: handler.enqueue_many(other, [])):
        with pytest.raises(TypeError, match=r"^the first argument must be a Session"):
            send()


# --- The next attempt --------------------------------------------------------------------------


class Mine(ConnectionError):
    pass


class Both(Mine, ValueError):
    pass


def after(tasks, retry, error=None, attempt=1, default=DEFAULT):
    """Return the wait that a rule decides on."""
    handler = tasks.handler(name="work", retry=retry)(_work)
    return handler.delay_after(ValueError() if error is None else error, attempt, default)


class ByAttempt:
    """A policy of the host's own."""

    def delay(self, attempt):
        return attempt * MINUTE


def test_no_rule_is_the_queues_policy(tasks, caplog):
    """Which the worker knows."""
    assert after(tasks, None) == DEFAULT.wait
    assert not caplog.records


@pytest.mark.parametrize("policy", [ByAttempt(), Linear(MINUTE)])
def test_a_policy(tasks, policy):
    """Decides by the attempt."""
    assert after(tasks, policy, attempt=3) == 3 * MINUTE


MAPPING = {
    OSError: Fixed(timedelta(seconds=1)),
    ConnectionError: Fixed(timedelta(seconds=2)),
    Both: ByAttempt(),
    LookupError: None,
}


@pytest.mark.parametrize(
    ("error", "wait"),
    [
        (OSError(), timedelta(seconds=1)),
        (ConnectionError(), timedelta(seconds=2)),
        (ConnectionResetError(), timedelta(seconds=2)),
        (TimeoutError(), timedelta(seconds=1)),
        (Mine(), timedelta(seconds=2)),
        (Both(), 3 * MINUTE),
        (KeyError(), None),
        (LookupError(), None),
        (ValueError(), DEFAULT.wait),
        (KeyboardInterrupt(), DEFAULT.wait),
    ],
    ids=kind,
)
@pytest.mark.parametrize("order", [list, reversed])
def test_policies_by_class(tasks, error, wait, order):
    """The most specific class counts, in whichever order they are named."""
    rule = dict(order(list(MAPPING.items())))
    assert after(tasks, rule, error, attempt=3) == wait


def test_a_mapping_is_copied(tasks):
    """What was checked is what is used."""
    rule = {ValueError: None}
    handler = tasks.handler(retry=rule)(_work)
    rule[ValueError] = "often"
    assert handler.delay_after(ValueError(), 1, DEFAULT) is None


def test_a_function_of_error_and_attempt(tasks):
    """Returns a wait, or None for no further attempt."""
    seen = []

    def decide(error, attempt):
        seen.append((error, attempt))
        return None if attempt > 2 else MINUTE

    handler = tasks.handler(retry=decide)(_work)
    error = ValueError()
    assert handler.delay_after(error, 2, DEFAULT) == MINUTE
    assert handler.delay_after(error, 3, DEFAULT) is None
    assert seen == [(error, 2), (error, 3)]


def raising(*_):
    """Fail as a policy or as a function of error and attempt."""
    raise RuntimeError("no idea")


class Odd:
    """A policy that returns or raises what it is given."""

    def __init__(self, answer):
        self._answer = answer

    def delay(self, attempt):
        return raising() if self._answer is raising else self._answer

    def __repr__(self):
        return f"<Odd {self._answer}>"


ODD = [raising, 60, "1 minute", -MINUTE, timedelta.max, Array(), object()]


@pytest.mark.parametrize("answer", [*ODD, None], ids=kind)
@pytest.mark.parametrize("rule", [Odd, lambda answer: {Exception: Odd(answer)}])
def test_policies_that_fail(tasks, answer, rule, caplog):
    """The default decides, and a warning says which handler's policy failed, and how."""
    caplog.set_level(logging.WARNING, "sqla_taskqueue.handlers")
    assert after(tasks, rule(answer)) == DEFAULT.wait
    [record] = caplog.records
    assert record.name == "sqla_taskqueue.handlers"
    assert "'work'" in record.getMessage()
    assert record.exc_info is not None
    assert ("no idea" in caplog.text) == (answer is raising)


@pytest.mark.parametrize("answer", ODD, ids=kind)
def test_functions_that_fail(tasks, answer, caplog):
    """As policies that fail."""
    decide = raising if answer is raising else lambda error, attempt: answer
    assert after(tasks, decide) == DEFAULT.wait
    assert len(caplog.records) == 1


@pytest.mark.parametrize("answer", [*ODD, None], ids=kind)
@pytest.mark.parametrize("rule", [None, raising, {KeyError: None}])
def test_a_default_that_fails(tasks, answer, rule, caplog):
    """The library's own policy decides: at most 5 s, give or take a tenth, at first."""
    wait = after(tasks, rule, default=Odd(answer))
    assert timedelta(seconds=4.5) <= wait <= timedelta(seconds=5.5)
    assert len(caplog.records) == (1 if rule is None else 2)


@pytest.mark.parametrize("attempt", [1, 1_000, 1_000_000])
def test_attempts_without_end(tasks, attempt):
    """Policies are asked for any attempt there may be."""
    assert after(tasks, Exponential(jitter=0), attempt=attempt) <= timedelta(hours=1)
