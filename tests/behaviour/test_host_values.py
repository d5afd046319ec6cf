"""`values=`: what the host's own columns do not take is the host's affair, and loses nothing."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import CHAR, Enum, String, TypeDecorator
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.exc import StatementError
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from sqla_taskqueue import BoardMixin, InvalidArgument, InvalidPayload, TaskMixin, TaskSpec, UuidId
from tests.behaviour.test_sessions import recording


class Base(DeclarativeBase):
    pass


class Hex(TypeDecorator):
    """Text of any characters, stored as their numbers."""

    impl = String
    cache_ok = True

    def process_bind_param(self, value, dialect):
        return None if value is None else " ".join(f"{ord(character):x}" for character in value)

    def process_result_value(self, value, dialect):
        return None if value is None else "".join(chr(int(word, 16)) for word in value.split())


class Task(UuidId, BoardMixin, TaskMixin, Base):
    __tablename__ = "tasks"

    note: Mapped[str | None] = mapped_column(String(5))
    number: Mapped[int | None]
    hidden: Mapped[str | None] = mapped_column(Hex)
    fixed: Mapped[str | None] = mapped_column(CHAR(5))
    short: Mapped[str | None] = mapped_column(Hex(5))
    colour: Mapped[str | None] = mapped_column(Enum("red", "green", native_enum=False))
    extra: Mapped[Any] = mapped_column(JSONB, nullable=True)


@pytest.fixture
def queue(twin):
    """The queue of a board class with columns of the host's own, whose table is empty."""
    twin.create(Base.metadata)
    return twin.queue(Task)


def notes(twin):
    """Return what was committed."""
    return [note for (note,) in twin.sql("SELECT note FROM tasks ORDER BY note")]


@pytest.mark.parametrize("many", [False, True], ids=["enqueue", "enqueue_many"])
@pytest.mark.parametrize("name", ["note", "title"])
@pytest.mark.parametrize("text", ["a\x00b", "\ud800"], ids=["NUL", "surrogate"])
async def test_text_that_no_column_can_store_is_refused(twin, queue, many, name, text):
    """A typed error that names the column, before any SQL, whatever the driver thinks of it."""
    values = {"number": 1, name: text}
    async with twin.begin() as session:
        await queue.enqueue(session, values={"note": "one"})
        with recording(twin.engine) as sent, pytest.raises(InvalidArgument) as caught:
            if many:
                await queue.enqueue_many(session, [TaskSpec(), TaskSpec(values=values)])
            else:
                await queue.enqueue(session, values=values)
        assert not sent
        of = "specs[1]." if many else ""
        assert str(caught.value).startswith(f"{of}values['{name}']={text!r} contains ")
    assert notes(twin) == ["one"]


@pytest.mark.parametrize("many", [False, True], ids=["enqueue", "enqueue_many"])
@pytest.mark.parametrize(
    "values",
    [
        pytest.param({"number": "abc"}, id="wrong type"),
        pytest.param({"number": 2**31}, id="out of range"),
        pytest.param({"note": "abcdef"}, id="too long"),
        pytest.param({"fixed": "abcdef"}, id="too long for CHAR"),
        pytest.param({"short": "abc"}, id="too long for the host's own type"),
        pytest.param({"colour": "redder"}, id="too long for an enum of text"),
        pytest.param({"extra": object()}, id="no JSON"),
    ],
)
async def test_other_errors_pass_through_and_lose_nothing(twin, queue, many, values):
    """The driver's or the database's own error; what was done before is kept by a savepoint.

    In a batch too: a cast to an array of VARCHAR(5) would cut a text, and say nothing.
    """
    async with twin.begin() as session:
        await queue.enqueue(session, values={"note": "one"})
        with pytest.raises((StatementError, TypeError)):
            async with session.begin_nested():
                if many:
                    await queue.enqueue_many(session, [TaskSpec(), TaskSpec(values=values)])
                else:
                    await queue.enqueue(session, values=values)
        await queue.enqueue(session, values={"note": "two"})
    assert notes(twin) == ["one", "two"]


async def test_a_type_of_the_hosts_own_decides_what_it_takes(twin, queue):
    """Only plain text columns are looked at: another type may store any character."""
    async with twin.begin() as session:
        await queue.enqueue(session, values={"hidden": "a\x00b"})
        await queue.enqueue_many(session, [TaskSpec(values={"hidden": "\ud800"})])
        tasks = await queue.find(session)
    assert {task.hidden for task in tasks} == {"a\x00b", "\ud800"}
    assert {hidden for (hidden,) in twin.sql("SELECT hidden FROM tasks")} == {"61 0 62", "d800"}


@pytest.mark.parametrize("many", [False, True], ids=["enqueue", "enqueue_many"])
async def test_the_metadata_of_a_board_is_json_like_a_payload(twin, queue, many):
    """Refused with its place, or read back equal."""

    async def enqueue(session, meta):
        values = {"meta": meta}
        if many:
            await queue.enqueue_many(session, [TaskSpec(values=values)])
        else:
            await queue.enqueue(session, values=values)

    async with twin.begin() as session:
        with recording(twin.engine) as sent, pytest.raises(InvalidPayload, match="NUL") as caught:
            await enqueue(session, {"labels": ["a", "b\x00"]})
        assert not sent
        assert "values['meta']['labels'][1]=" in str(caught.value)
        await enqueue(session, {"labels": ("a", 1e23)})
        [task] = await queue.find(session)
        assert task.meta == {"labels": ["a", 1e23]}
