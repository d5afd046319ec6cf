"""The host's own `__table_args__`, and classes that inherit: nothing of ours is lost (B36)."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import CheckConstraint, ForeignKey, Index, UniqueConstraint
from sqlalchemy.orm import DeclarativeBase, Mapped, declared_attr, mapped_column

from sqla_taskqueue import AsyncQueue, Queue, TaskMixin, UnsupportedModel, UuidId
from tests.hosts.catalogue import assert_furnished, constraints, indexes
from tests.hosts.life import lead_a_life

two_drivers = pytest.mark.parametrize("driver", ["psycopg", "asyncpg"], indirect=True)


def _own() -> tuple[Any, ...]:
    return (
        Index("own_index", "queue", "label"),
        UniqueConstraint("label", name="own_unique"),
        CheckConstraint("label <> ''", name="own_check"),
    )


def a_dict(base: Any) -> Any:
    """Options only."""

    class Task(UuidId, TaskMixin, base):
        __tablename__ = "tasks"
        __table_args__ = {"comment": "the host's"}  # noqa: RUF012

        label: Mapped[str]

    return Task


def a_dict_with_schema(base: Any) -> Any:
    """Options with a schema."""

    class Task(UuidId, TaskMixin, base):
        __tablename__ = "tasks"
        __table_args__ = {"schema": "jobs", "comment": "the host's"}  # noqa: RUF012

        label: Mapped[str]

    return Task


def a_tuple(base: Any) -> Any:
    """An index and constraints only."""

    class Task(UuidId, TaskMixin, base):
        __tablename__ = "tasks"
        __table_args__ = _own()

        label: Mapped[str]

    return Task


def a_tuple_with_a_dict(base: Any) -> Any:
    """An index, constraints and options."""

    class Task(base, TaskMixin, UuidId):
        __tablename__ = "tasks"
        __table_args__ = (*_own(), {"schema": "jobs", "comment": "the host's"})

        label: Mapped[str]

    return Task


def an_abstract_class(base: Any) -> Any:
    """Options on an abstract class."""

    class Labelled(base):
        __abstract__ = True
        __table_args__ = {"comment": "the host's"}  # noqa: RUF012

        label: Mapped[str]

    class Task(UuidId, TaskMixin, Labelled):
        __tablename__ = "tasks"

    return Task


def a_declared_attr(base: Any) -> Any:
    """A method of the host's mixin."""

    class Labelled(TaskMixin):
        label: Mapped[str]

        @declared_attr.directive
        def __table_args__(cls) -> Any:  # noqa: N805 - a class method, says declared_attr
            return (*_own(), {"comment": "the host's"})

    class Task(UuidId, Labelled, base):
        __tablename__ = "tasks"

    return Task


def a_declared_attr_of_the_base(base: Any) -> Any:
    """A method of an abstract class."""

    class Everything(base):
        __abstract__ = True

        @declared_attr.directive
        def __table_args__(cls) -> Any:  # noqa: N805 - a class method, says declared_attr
            return (*_own(), {"comment": "the host's", "schema": "jobs"})

    class Task(Everything, UuidId, TaskMixin):
        __tablename__ = "tasks"

        label: Mapped[str]

    return Task


FORMS = [
    a_dict,
    a_dict_with_schema,
    a_tuple,
    a_tuple_with_a_dict,
    an_abstract_class,
    a_declared_attr,
    a_declared_attr_of_the_base,
]


@pytest.mark.parametrize("form", FORMS)
@two_drivers
async def test_our_indexes_stand_beside_the_hosts(twin, form):
    """Whatever form the host's arguments have, its own are kept and ours are all there, once."""

    class Base(DeclarativeBase):
        pass

    task = form(Base)
    twin.create(Base.metadata)
    schema = task.__table__.schema or "public"
    has_own = "own_index" in {index.name for index in task.__table__.indexes}
    assert_furnished(
        twin.database,
        task,
        schema,
        besides=("own_index", "own_unique") if has_own else (),
    )
    checks = constraints(twin.database, "tasks", schema)
    assert len(checks) == 2 + has_own
    assert ("own_check" in checks) == has_own
    [comment] = twin.sql("SELECT obj_description(to_regclass(%(t)s))", t=f"{schema}.tasks")
    assert comment == ("the host's",) or "comment" not in str(task.__table_args__)


# --- Inheritance -------------------------------------------------------------------------------


def test_a_mixin_on_a_joined_child_is_refused():
    """Task columns on a joined-table child fail when the class is made, and the base stays usable."""

    class Base(DeclarativeBase):
        pass

    class Document(Base):
        __tablename__ = "documents"

        id: Mapped[int] = mapped_column(primary_key=True)
        kind: Mapped[str]
        __mapper_args__ = {"polymorphic_on": "kind", "polymorphic_identity": "document"}  # noqa: RUF012

    with pytest.raises(UnsupportedModel, match=r"Report .*joined-table.*Document has none"):

        class Report(TaskMixin, Document):
            __tablename__ = "reports"
            __mapper_args__ = {"polymorphic_identity": "report"}  # noqa: RUF012

            id: Mapped[int] = mapped_column(ForeignKey(Document.id), primary_key=True)

    class Task(UuidId, TaskMixin, Base):
        __tablename__ = "tasks"

    assert Queue(Task).model is Task
    assert Document(kind="document").kind == "document"


def test_a_mixin_on_a_single_table_child_is_refused():
    """Task columns on a single-table child fail when the class is made."""

    class Base(DeclarativeBase):
        pass

    class Document(Base):
        __tablename__ = "documents"

        id: Mapped[int] = mapped_column(primary_key=True)

    with pytest.raises(UnsupportedModel, match=r"Report .*single-table"):

        class Report(TaskMixin, Document):
            pass


def _family(base: Any) -> tuple[Any, Any, Any]:
    class Task(UuidId, TaskMixin, base):
        __tablename__ = "tasks"

        kind: Mapped[str] = mapped_column(server_default="task")
        __mapper_args__ = {"polymorphic_on": "kind", "polymorphic_identity": "task"}  # noqa: RUF012

    class Single(Task):
        __mapper_args__ = {"polymorphic_identity": "single"}  # noqa: RUF012

        pages: Mapped[int | None]

    class Joined(Task):
        __tablename__ = "joined_tasks"
        __mapper_args__ = {"polymorphic_identity": "joined"}  # noqa: RUF012

        id: Mapped[Any] = mapped_column(ForeignKey(Task.id), primary_key=True)
        copies: Mapped[int | None]

    return Task, Single, Joined


@pytest.mark.smoke
def test_children_of_a_task_class_map_but_carry_no_queue():
    """A child maps; a queue of it is refused with a message that names the class to use."""

    class Base(DeclarativeBase):
        pass

    task, *children = _family(Base)
    for child in children:
        for facade in (Queue, AsyncQueue):
            with pytest.raises(UnsupportedModel, match=f"{child.__name__} .*mapping of Task"):
                facade(child)
    assert Queue(task).model is task


@two_drivers
async def test_the_base_of_a_family_stays_usable(twin):
    """The queue of the base class claims rows of its children, as the children they are."""

    class Base(DeclarativeBase):
        pass

    task, single, joined = _family(Base)
    twin.create(Base.metadata)
    assert_furnished(twin.database, task)
    assert set(indexes(twin.database, "joined_tasks")) == set()
    await lead_a_life(twin, task)
    queue = twin.queue(task, "family")
    async with twin.begin() as session:
        session.raw.add(single(queue="family", name="1", priority=1, pages=3))
        await queue.enqueue(session, "2", priority=2, values={"kind": "task"})
        session.raw.add(joined(queue="family", name="3", priority=3, copies=4))
    async with twin.begin() as session:
        claims = await queue.claim(session, holder="w1", limit=5)
        assert [type(claim.task) for claim in claims] == [single, task, joined]
        assert [claim.name for claim in claims] == ["1", "2", "3"]
        for claim in claims:
            assert await queue.complete(session, claim)
