# pyright: strict, reportUnnecessaryTypeIgnoreComment=true
"""What a handler's function tells about enqueueing; mistakes that both checkers find. Never run."""

from __future__ import annotations

from collections.abc import Coroutine, Iterator
from datetime import timedelta
from typing import Any, assert_type

from sqlalchemy import Connection
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_scoped_session
from sqlalchemy.orm import Session, scoped_session

from sqla_taskqueue import AsyncQueue, Claim, Enqueued, Exponential, Fixed, Queue, TaskSpec
from sqla_taskqueue._settings import QueueSettings
from sqla_taskqueue.handlers import AnyHandler, Handler, Handlers
from tests.typing.hosts import Board, Task

builds = Queue(Task, "builds")
tasks = Handlers(builds)

assert_type(tasks, Handlers[Task])
assert_type(Handlers(AsyncQueue(Board)), Handlers[Board])
assert_type(tasks.model, type[Task])
assert_type(tasks.queues, tuple[QueueSettings[Task], ...])
assert_type(tasks.get("builds", "plain"), AnyHandler | None)
assert_type(iter(tasks), Iterator[AnyHandler])


@tasks.handler
def plain(user_id: int, note: str = "") -> float:
    """Take plain arguments."""
    return 0.5


@tasks.handler(
    name="other", queue=AsyncQueue(Task, "others"), max_attempts=None, lease=timedelta(1)
)
async def awaited(*, names: list[str]) -> str:
    """Be awaited."""
    return ""


@tasks.handler
def nothing() -> None:
    """Take nothing."""


# --- Injected parameters -----------------------------------------------------------------------


class OwnSession(Session):
    pass


@tasks.handler
def with_task(task: Task, user_id: int) -> Task:
    """Take the entity."""
    return task


@tasks.handler
def with_claim(claim: Claim[Task], user_id: int) -> None:
    """Take the claim."""


@tasks.handler
def with_session(session: Session, user_id: int) -> None:
    """Take a session."""


@tasks.handler(time_limit=timedelta(minutes=1))
async def with_async_session(session: AsyncSession, user_id: int) -> None:
    """Take an asynchronous session."""


@tasks.handler
def with_own_session(session: OwnSession, user_id: int) -> None:
    """Take a session of the host's own class."""


@tasks.handler
def task_and_session(task: Task, session: Session, user_id: int) -> None:
    """Take two."""


@tasks.handler
async def task_and_async_session(task: Task, session: AsyncSession, user_id: int) -> None:
    """Take two."""


@tasks.handler
def claim_and_session(claim: Claim[Task], session: Session, user_id: int) -> None:
    """Take two."""


@tasks.handler(priority=3)
async def claim_and_async_session(
    claim: Claim[Task], session: AsyncSession, *, user_id: int
) -> bool:
    """Take two."""
    return True


@tasks.handler
def session_and_task(session: Session, task: Task, user_id: int) -> None:
    """Take two, in the other order."""


@tasks.handler
def all_three(session: Session, task: Task, claim: Claim[Task], user_id: int) -> None:
    """Take three."""


@tasks.handler
def only_injected(task: Task, session: Session) -> None:
    """Take nothing from the payload."""


def enqueueing(session: Session) -> None:
    """What is injected is not given."""
    assert_type(plain.enqueue(session, 7), Enqueued)
    plain.enqueue(session, user_id=7, note="n")
    awaited.enqueue(session, names=["a"])
    nothing.enqueue(session)
    with_task.enqueue(session, 7)
    with_claim.enqueue(session, user_id=7)
    with_session.enqueue(session, user_id=7)
    with_async_session.enqueue(session, user_id=7)
    with_own_session.enqueue(session, user_id=7)
    task_and_session.enqueue(session, 7)
    task_and_async_session.enqueue(session, 7)
    claim_and_session.enqueue(session, user_id=7)
    claim_and_async_session.enqueue(session, user_id=7)
    session_and_task.enqueue(session, user_id=7)
    all_three.enqueue(session, 7)
    all_three.enqueue(session, user_id=7)
    only_injected.enqueue(session)


def mistakes(session: Session) -> None:
    """A wrong name, a wrong type, too many and too few; injected parameters are unknown."""
    plain.enqueue(session)  # type: ignore[call-overload]
    plain.enqueue(session, "7")  # type: ignore[call-overload]
    plain.enqueue(session, user=7)  # type: ignore[call-overload]
    plain.enqueue(session, 7, "", 1)  # type: ignore[call-overload]
    plain.enqueue(7)  # type: ignore[call-overload]
    nothing.enqueue(session, 1)  # type: ignore[call-overload]
    awaited.enqueue(session, ["a"])  # type: ignore[call-overload]
    with_task.enqueue(session, "7")  # type: ignore[call-overload]
    with_session.enqueue(session, session, 7)  # type: ignore[call-overload]
    task_and_session.enqueue(session, user=7)  # type: ignore[call-overload]
    claim_and_async_session.enqueue(session, user_id="7")  # type: ignore[call-overload]
    only_injected.enqueue(session, 7)  # type: ignore[call-overload]
    all_three.enqueue(session, user_id="7")  # type: ignore[call-overload]
    plain.options(key="k").enqueue(session, "7")  # type: ignore[call-overload]
    plain.options(prio=1)  # type: ignore[call-arg]
    plain.spec(user=7)  # type: ignore[call-arg]
    with_task.spec("7")  # type: ignore[arg-type]
    plain.enqueue_many(session, [7])  # type: ignore[list-item]
    tasks.handler(queue=Queue(Board))  # type: ignore[arg-type]
    tasks.handler(retries=3)  # type: ignore[call-overload]
    tasks.handler(retry={ValueError: 3})  # type: ignore[dict-item]


# --- Calls -------------------------------------------------------------------------------------


async def calls(task: Task, session: Session, other: AsyncSession, claim: Claim[Task]) -> None:
    """A handler is called as its function, with everything."""
    assert_type(plain(7), float)
    assert_type(await awaited(names=[]), str)
    assert_type(with_task(task, 7), Task)
    assert_type(await claim_and_async_session(claim, other, user_id=7), bool)
    plain("7")  # type: ignore[arg-type]
    with_task(7)  # type: ignore[call-arg, arg-type]
    task_and_session(session, task, 7)  # type: ignore[arg-type]


# --- Either kind of session --------------------------------------------------------------------


def synchronous(scoped: scoped_session[Session], connection: Connection) -> None:
    """The answer is there at once, whatever the queue and the function are."""
    specs = [plain.spec(1), plain.options(key="k").spec(user_id=2)]
    assert_type(specs, list[TaskSpec])
    assert_type(plain.enqueue(scoped, 7), Enqueued)
    assert_type(awaited.enqueue(connection, names=[]), Enqueued)
    assert_type(plain.options(scope={"project": "9f2c"}).enqueue(connection, 7), Enqueued)
    assert_type(plain.enqueue_many(scoped, specs), list[Enqueued])
    assert_type(plain.options().enqueue_many(connection, specs), list[Enqueued])


async def asynchronous(
    session: AsyncSession, scoped: async_scoped_session[AsyncSession], connection: AsyncConnection
) -> None:
    """The answer is awaited."""
    sent: Coroutine[Any, Any, Enqueued] = plain.enqueue(session, 7)
    assert_type(await sent, Enqueued)
    assert_type(await with_session.enqueue(scoped, 7), Enqueued)
    assert_type(await awaited.enqueue(connection, names=[]), Enqueued)
    assert_type(await plain.options(max_attempts=None).enqueue(session, 7), Enqueued)
    assert_type(await plain.enqueue_many(session, [plain.spec(1)]), list[Enqueued])


# --- What the checkers cannot know -------------------------------------------------------------


@tasks.handler
def takes_anything(data: Any, user_id: int) -> float:
    """Take what might be injected, for all that is known."""
    return 0.5


@tasks.handler
def takes_an_object(data: object) -> float:
    """As above."""
    return 0.5


@tasks.handler
def not_first(user_id: int, session: Session) -> float:
    """Be injected, which only the worker knows."""
    return 0.5


@tasks.handler
def takes_json(data: dict[str, Any]) -> float:
    """Take a parameter of which something is known."""
    return 0.5


@tasks.handler
def takes_json_and_session(session: Session, data: dict[str, Any]) -> float:
    """Take it beside an injected one: mypy knows nothing then, which is its rule for `Any`."""
    return 0.5


def unknown(session: Session) -> None:
    """Nothing is refused where nothing is known."""
    takes_anything.enqueue(session, {"a": 1}, user_id=7)
    takes_an_object.enqueue(session, data=7)
    assert_type(takes_an_object, Handler[..., ..., float])
    not_first.enqueue(session, 7, session)
    takes_json.enqueue(session, data={"a": 1})
    takes_json.enqueue(session, data=["a"])  # type: ignore[call-overload]
    assert_type(takes_json({}), float)
    takes_json_and_session.enqueue(session, data={"a": 1})


# --- Retry rules -------------------------------------------------------------------------------


def decide(error: BaseException, attempt: int) -> timedelta | None:
    """Decide on the next attempt."""
    return None


tasks.handler(retry=Exponential())
tasks.handler(retry={ValueError: None, OSError: Fixed()})
tasks.handler(retry=decide)
