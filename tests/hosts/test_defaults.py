"""Columns of the host's own in batches: a default for each row, whatever makes it (A5)."""

from __future__ import annotations

import enum
import itertools
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID, uuid4

import pytest
from sqlalchemy import (
    ARRAY,
    Computed,
    Enum,
    Identity,
    LargeBinary,
    Numeric,
    Sequence,
    String,
    Text,
    TypeDecorator,
    Uuid,
    func,
    text,
)
from sqlalchemy.dialects.postgresql import INET, JSONB
from sqlalchemy.orm import (
    DeclarativeBase,
    Mapped,
    declared_attr,
    mapped_column,
    orm_insert_sentinel,
)
from sqlalchemy.types import UserDefinedType

from sqla_taskqueue import InvalidArgument, TaskEventMixin, TaskMixin, TaskSpec, UuidId, uuid7

two_drivers = pytest.mark.parametrize("driver", ["psycopg", "asyncpg"], indirect=True)

COUNTER = itertools.count(1)


class Base(DeclarativeBase):
    pass


class Colour(enum.Enum):
    RED = "r"
    BLUE = "b"


class Reversed(TypeDecorator):
    """Text that is stored backwards."""

    impl = String(20)
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Any) -> str | None:
        return None if value is None else value[::-1]

    def process_result_value(self, value: str | None, dialect: Any) -> str | None:
        return None if value is None else value[::-1]


class CaseLess(UserDefinedType):
    """A type that SQLAlchemy knows nothing about."""

    cache_ok = True

    def get_col_spec(self, **_: Any) -> str:
        return "varchar(9)"


def labelled(context: Any) -> str:
    """Name a row after itself: a default that asks for its context."""
    return f"{context.get_current_parameters()['name']}!"


class Plain:
    """Columns whose values can travel as arrays."""

    number: Mapped[int] = mapped_column(default=lambda: next(COUNTER))
    after_number: Mapped[str] = mapped_column(
        default=lambda context: f"number {context.current_parameters['number']}"
    )
    label: Mapped[str] = mapped_column("Label %", Text, default=labelled)
    made_at: Mapped[datetime] = mapped_column(insert_default=func.now())
    origin: Mapped[str] = mapped_column(server_default=text("'server'"))
    doubled: Mapped[int] = mapped_column(Computed("number * 2", persisted=True))
    counted: Mapped[int] = mapped_column(Identity())
    colour: Mapped[Colour] = mapped_column(Enum(Colour, name="colour"), default=Colour.RED)
    secret: Mapped[str] = mapped_column(Reversed, default="secret")
    ratio: Mapped[Decimal] = mapped_column(Numeric(5, 2), default=Decimal("1.25"))
    blob: Mapped[bytes] = mapped_column(LargeBinary, default=b"\x00\xff")
    day: Mapped[date] = mapped_column(default=date(2030, 2, 28))
    hour: Mapped[time] = mapped_column(default=time(23, 59))
    span: Mapped[timedelta] = mapped_column(default=timedelta(days=40, seconds=1))
    share: Mapped[float] = mapped_column(default=0.5)
    is_new: Mapped[bool] = mapped_column(default=True)
    token: Mapped[UUID] = mapped_column(default=uuid4)
    address: Mapped[str | None] = mapped_column(INET, default=None)
    maybe: Mapped[str | None]

    @declared_attr
    def ticket(cls) -> Mapped[int]:  # noqa: N805 - a class method, says declared_attr
        return mapped_column(Sequence(f"{cls.__tablename__}_tickets"))


class Various(Plain):
    """Columns with values that are lists or objects themselves, or of unknown type."""

    tags: Mapped[list[str]] = mapped_column(ARRAY(Text), default=lambda: ["a", f"{next(COUNTER)}"])
    extra: Mapped[dict[str, Any]] = mapped_column(JSONB, default=lambda: {"n": next(COUNTER)})
    code: Mapped[str] = mapped_column(CaseLess, default=lambda: f"c{next(COUNTER)}")


def loud_uuid() -> str:
    """Return a UUID as PostgreSQL takes it, but never shows it."""
    return uuid7().hex.upper()


class Rewritten(TaskMixin, Base):
    """The database shows keys in another form than the host makes them in."""

    __tablename__ = "rewritten"

    id: Mapped[str] = mapped_column(Uuid(as_uuid=False), primary_key=True, default=loud_uuid)


class RewrittenEvent(TaskEventMixin, Base):
    __tablename__ = "rewritten_events"
    __task_model__ = Rewritten


class Task(Plain, UuidId, TaskMixin, Base):
    __tablename__ = "tasks"

    sentinel: Mapped[int] = orm_insert_sentinel()


class TaskEvent(TaskEventMixin, Base):
    __tablename__ = "task_events"
    __task_model__ = Task

    serial: Mapped[int] = mapped_column(default=lambda: next(COUNTER))


class Counted(Plain, TaskMixin, Base):
    """With a key that the database counts: nothing names a row until it is there."""

    __tablename__ = "counted"

    id: Mapped[int] = mapped_column(Sequence("counted_ids"), primary_key=True)


class Other(Various, UuidId, TaskMixin, Base):
    __tablename__ = "others"


every_class = pytest.mark.parametrize("model", [Task, Counted, Other])
pytestmark = two_drivers


async def read(twin: Any, model: Any) -> list[Any]:
    """Return the entities by name, read in a session of its own."""
    async with twin.session() as session:
        page = await twin.queue(model).find(session, content=True)
        return sorted(page, key=lambda task: task.name)


@every_class
@pytest.mark.parametrize("form", ["enqueue", "enqueue_many"])
async def test_defaults_are_evaluated_for_each_row(twin, model, form):
    """Single and batch form write the same: one value per row, in the order of the columns."""
    twin.create(Base.metadata)
    queue = twin.queue(model)
    names = ["a", "b", "c"]
    async with twin.begin() as session:
        if form == "enqueue":
            sent = [await queue.enqueue(session, name, {"of": name}) for name in names]
        else:
            sent = await queue.enqueue_many(
                session, [TaskSpec(name, {"of": name}) for name in names]
            )
        assert [one.created for one in sent] == [True] * 3
    tasks = await read(twin, model)
    assert [task.id for task in tasks] == [one.id for one in sent]
    assert [task.payload for task in tasks] == [{"of": name} for name in names]
    assert len({task.number for task in tasks}) == len({task.token for task in tasks}) == 3
    assert [task.label for task in tasks] == ["a!", "b!", "c!"]
    assert sorted(task.ticket for task in tasks) == [1, 2, 3]
    assert sorted(task.counted for task in tasks) == [1, 2, 3]
    for task in tasks:
        assert task.after_number == f"number {task.number}"
        assert task.doubled == task.number * 2
        assert (task.origin, task.colour, task.secret) == ("server", Colour.RED, "secret")
        assert (task.ratio, task.blob, task.share) == (Decimal("1.25"), b"\x00\xff", 0.5)
        assert (task.day, task.hour) == (date(2030, 2, 28), time(23, 59))
        assert task.span == timedelta(days=40, seconds=1)
        assert (task.is_new, task.address, task.maybe) == (True, None, None)
        assert abs((task.made_at - datetime.now(UTC).replace(tzinfo=None)).days) <= 1
    assert twin.sql(f"SELECT DISTINCT secret FROM {model.__tablename__}") == [("terces",)]
    if model is Other:
        assert len({task.extra["n"] for task in tasks}) == 3
        assert len({task.tags[1] for task in tasks}) == 3
        assert len({task.code for task in tasks}) == 3


@every_class
async def test_given_values_overrule_defaults(twin, model):
    """`values=` of a batch are written as given, by rows with different columns among them."""
    twin.create(Base.metadata)
    queue = twin.queue(model)
    given = {
        "number": -1,
        "colour": Colour.BLUE,
        "secret": "other",
        "address": "10.0.0.1",
        "maybe": "x",
        "is_new": False,
        "span": timedelta(0),
    }
    async with twin.begin() as session:
        sent = await queue.enqueue_many(
            session,
            [TaskSpec("a", values=given), TaskSpec("b"), TaskSpec("c", values={"maybe": "y"})],
        )
    tasks = await read(twin, model)
    assert [task.id for task in tasks] == [one.id for one in sent]
    assert [task.maybe for task in tasks] == ["x", None, "y"]
    assert [task.colour for task in tasks] == [Colour.BLUE, Colour.RED, Colour.RED]
    assert [task.secret for task in tasks] == ["other", "secret", "secret"]
    assert [str(task.address) for task in tasks] == ["10.0.0.1", "None", "None"]
    assert tasks[0].after_number == "number -1"
    assert tasks[0].number == -1 != tasks[1].number


async def test_events_of_a_batch_have_a_value_each(twin):
    """The host's event columns get their defaults too, one for each event of a batch."""
    twin.create(Base.metadata)
    queue = twin.queue(Task)
    async with twin.begin() as session:
        await queue.enqueue_many(session, [TaskSpec(), TaskSpec(), TaskSpec()])
        claims = await queue.claim(session, holder="w1", limit=3)
        await queue.complete_many(session, claims)
    assert twin.scalar("SELECT count(DISTINCT serial) FROM task_events") == 9


async def test_a_column_without_a_default_is_missed_before_any_sql(twin):
    """What only the host can fill in is named, in a batch as in the single form."""

    class Own(DeclarativeBase):
        pass

    class Job(UuidId, TaskMixin, Own):
        __tablename__ = "jobs"

        team: Mapped[str]

    twin.create(Own.metadata)
    queue = twin.queue(Job)
    async with twin.begin() as session:
        for call in (
            lambda: queue.enqueue(session),
            lambda: queue.enqueue_many(session, [TaskSpec(values={"team": "a"}), TaskSpec()]),
        ):
            with pytest.raises(InvalidArgument, match="'team'"):
                await call()
        assert await queue.enqueue_many(session, [TaskSpec(values={"team": "a"})])


async def test_keys_that_come_back_in_another_form(twin):
    """A key that the database shows in its own form is paired with its row all the same."""
    twin.create(Base.metadata)
    queue = twin.queue(Rewritten)
    own = uuid7()
    async with twin.begin() as session:
        await queue.enqueue(session, key="old")
        specs = [
            TaskSpec("a"),
            TaskSpec("b", key="old"),
            TaskSpec("c", key="new"),
            TaskSpec("d", id=own.hex),
            TaskSpec("e", key="new"),
            TaskSpec("f", unique_key="u"),
            TaskSpec("g"),
        ]
        sent = await queue.enqueue_many(session, specs)
        again = await queue.enqueue_many(session, specs[1:6])
    assert [one.created for one in sent] == [True, False, True, True, False, True, True]
    assert sent[2].id == sent[4].id
    assert sent[3].id == str(own)
    assert [(one.id, one.created) for one in again] == [(one.id, False) for one in sent[1:6]]
    names = dict(twin.sql("SELECT name, id::text FROM rewritten"))
    for spec, one in zip(specs, sent, strict=True):
        assert one.id == names.get(spec.name, one.id)
    assert len(names) == 6
    assert twin.scalar("SELECT count(*) FROM rewritten_events") == 6
