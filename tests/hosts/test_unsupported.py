"""What is not supported fails when the class or its queue is made, and names the feature."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import Column, Integer, Table, Uuid, select
from sqlalchemy.exc import ArgumentError
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, registry

from sqla_taskqueue import (
    AsyncQueue,
    InvalidArgument,
    Queue,
    TaskEventMixin,
    TaskMixin,
    TaskQueueError,
    UnsupportedModel,
    UuidId,
    uuid7,
)
from tests.hosts.kinds import library_columns
from tests.hosts.test_keys import no_statements


@pytest.fixture
def base():
    """A declarative base of the test's own."""

    class Base(DeclarativeBase):
        pass

    return Base


def make(base, **attributes):
    """Map a task class with a column `tenant` and one `maybe` that may be NULL."""
    namespace = {
        "__tablename__": "tasks",
        "__annotations__": {"tenant": Mapped[int], "maybe": Mapped[int | None]},
        "tenant": mapped_column(),
        "maybe": mapped_column(),
        **attributes,
    }
    return type("HostTask", (UuidId, TaskMixin, base), namespace)


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({"__scope__": ("region",)}, "__scope__ names 'region', which is no column"),
        ({"__scope__": ("tenant", "metadata")}, "__scope__ names 'metadata'"),
        ({"__scope__": ("maybe",)}, "__scope__ names 'maybe', which may be NULL"),
        ({"__scope__": ("queue",)}, "__scope__ names the queue's own columns queue"),
        ({"__scope__": ("tenant", "state")}, "__scope__ names the queue's own columns state"),
        ({"__scope__": "tenant"}, "__scope__ must be a tuple of names"),
        ({"__scope__": "tenant_id"}, "__scope__ must be a tuple"),
        ({"__key_scope__": ("tenant",)}, "__key_scope__ names tenant; only scope columns"),
        ({"__scope__": ("tenant",), "__key_scope__": ("name",)}, "__key_scope__ names name"),
        ({"__key_scope__": ("nothing",)}, "__key_scope__ names 'nothing', which is no column"),
        ({"__key_scope__": "queue"}, "__key_scope__ must be a tuple"),
        ({"__scope__": None}, "__scope__ must be a tuple"),
        ({"__scope__": ("tenant", 7)}, "__scope__ names 7"),
    ],
)
def test_scopes_that_cannot_be(base, attributes, message):
    """A scope that cannot lead the claim index fails with the class, naming class and reason."""
    with pytest.raises(UnsupportedModel, match=r"^HostTask cannot carry a task queue: ") as caught:
        make(base, **attributes)
    assert message in str(caught.value)
    assert isinstance(caught.value, TypeError)
    assert isinstance(caught.value, TaskQueueError)


@pytest.mark.parametrize(
    "attributes",
    [
        {},
        {"__scope__": ["tenant"]},
        {"__scope__": ("tenant",), "__key_scope__": ()},
        {"__scope__": ("tenant",), "__key_scope__": ("queue", "tenant")},
        {"__key_scope__": ("queue",)},
        {"__scope__": ("id",)},
    ],
    ids=str,
)
def test_scopes_that_can_be(base, attributes):
    """Lists do as well as tuples, and a key's scope may be empty or contain the queue."""
    assert Queue(make(base, **attributes)).scope_values == {}


def test_a_refused_class_harms_no_other(base):
    """After a refusal the registry maps and configures other classes as if nothing happened."""
    with pytest.raises(UnsupportedModel):
        make(base, __scope__=("region",))
    namespace = {"__tablename__": "others"}
    other = type("Other", (UuidId, TaskMixin, base), namespace)
    assert Queue(other).model is other
    select(other).compile()


def own_table(base, *missing):
    """Return a table with all of our columns but those."""
    key = Column("id", Uuid, primary_key=True)
    return Table("tasks", base.metadata, key, *library_columns(*missing))


@pytest.mark.parametrize("missing", ["state", "lease_token", "has_dependants", "updated_at"])
def test_a_table_that_lacks_columns(base, missing):
    """An imperative `__table__` needs all of our columns; the message names the one it lacks."""
    table = own_table(base, missing)
    # SQLAlchemy refuses some of it by itself.
    with pytest.raises((UnsupportedModel, ArgumentError), match=f"column.* '?{missing}'?"):
        type("HostTask", (TaskMixin, base), {"__table__": table})


def test_an_imperative_mapping_that_lacks_columns(base):
    """`map_imperatively` is refused with the names of all the columns that the table lacks."""
    table = own_table(base, "state", "priority")
    with pytest.raises(UnsupportedModel, match="its __table__ lacks the columns state, priority"):
        base.registry.map_imperatively(type("HostTask", (TaskMixin,), {}), table)


def test_a_class_without_a_table_of_its_own(base):
    """A class mapped to a subquery is refused."""
    make(base)
    rows = select(base.metadata.tables["tasks"]).subquery()
    with pytest.raises(UnsupportedModel, match="mapped to a Subquery, not to a table"):
        type(
            "Selected",
            (TaskMixin, base),
            {"__table__": rows, "__mapper_args__": {"primary_key": [rows.c.id]}},
        )


class _Plain:
    pass


@pytest.mark.parametrize("facade", [Queue, AsyncQueue])
@pytest.mark.parametrize(
    ("model", "message"),
    [
        (_Plain, "takes a mapped class"),
        (TaskMixin, "takes a mapped class"),
        (None, "takes a mapped class"),
        ("Task", "takes a mapped class"),
        (_Plain(), "takes a mapped class"),
    ],
)
def test_queues_of_what_is_not_mapped(facade, model, message):
    """A queue takes a mapped class and nothing else."""
    with pytest.raises(UnsupportedModel, match=message):
        facade(model)


def test_queues_of_what_has_no_task_columns(base):
    """A mapped class without the mixin, an entity and a table are refused."""
    other: Any = type(
        "Other", (base,), {"__tablename__": "others", "id": Column(Integer, primary_key=True)}
    )
    with pytest.raises(UnsupportedModel, match="Other has no TaskMixin"):
        Queue(other)
    task = make(base)
    with pytest.raises(UnsupportedModel, match="takes a mapped class"):
        Queue(task())
    with pytest.raises(UnsupportedModel, match="takes a mapped class"):
        Queue(task.__table__)


@pytest.mark.parametrize("name", ["", " ", "x" * 101, "ä" * 51, "a\x00", 7, None])
def test_names_of_queues(base, name):
    """A queue's name is text of 1 to 100 bytes."""
    task = make(base)
    assert Queue(task, " emails ").name == "emails"
    assert Queue(task, "x" * 100).name == "x" * 100
    with pytest.raises(InvalidArgument):
        Queue(task, name)


# --- Event classes -----------------------------------------------------------------------------


@pytest.mark.parametrize("model", [None, _Plain, "Task", 7, TaskMixin])
def test_an_event_class_must_name_its_task_class(base, model):
    """Without `__task_model__`, or with one that is not mapped, the event class is refused."""
    named = {} if model is None else {"__task_model__": model}
    with pytest.raises(UnsupportedModel, match="HostEvent must name a mapped task class"):
        type("HostEvent", (TaskEventMixin, base), {"__tablename__": "events"} | named)


def test_an_event_class_of_something_else(base):
    """A mapped class without task columns is no task class."""
    other = type(
        "Other", (base,), {"__tablename__": "others", "id": Column(Integer, primary_key=True)}
    )
    with pytest.raises(UnsupportedModel, match="HostEvent must name a mapped task class"):
        type(
            "HostEvent",
            (TaskEventMixin, base),
            {"__tablename__": "events", "__task_model__": other},
        )


def test_an_event_class_of_a_child(base):
    """A child of a task class carries no queue, so its events would never be written."""
    child = type("Child", (make(base),), {"__tablename__": None})
    with pytest.raises(UnsupportedModel, match="HostEvent must name a mapped task class"):
        type(
            "HostEvent",
            (TaskEventMixin, base),
            {"__tablename__": "events", "__task_model__": child},
        )


@pytest.mark.parametrize("missing", [("task_id",), ("detail", "created_at"), ("task_id", "type")])
def test_an_event_class_whose_table_lacks_columns(base, missing):
    """A table of the host's without the task's key or our columns is refused, naming them."""
    columns = library_columns(*missing, mixin=TaskEventMixin)
    if "task_id" not in missing:
        columns.insert(0, Column("task_id", Uuid, primary_key=True))
    event_class = type("HostEvent", (TaskEventMixin,), {"__task_model__": make(base)})
    table = Table("events", base.metadata, *columns)
    with pytest.raises(UnsupportedModel, match=f"HostEvent lacks {', '.join(missing)}:"):
        base.registry.map_imperatively(event_class, table)


def test_an_imperative_event_class_must_name_its_task_class(base):
    """However it is mapped, an event class says whose events it takes."""
    table = Table("events", base.metadata, *library_columns(mixin=TaskEventMixin))
    with pytest.raises(UnsupportedModel, match="HostEvent must name a mapped task class"):
        base.registry.map_imperatively(type("HostEvent", (TaskEventMixin,), {}), table)


@pytest.mark.smoke
@pytest.mark.parametrize("driver", ["psycopg"], indirect=True)
async def test_two_event_classes_of_one_task_class(twin, base):
    """Which one to write to is unclear: refused at first use, when all classes are known."""
    task = make(base)
    kept = [
        type(
            name,
            (TaskEventMixin, base),
            {"__tablename__": name.lower(), "__task_model__": task},
        )
        for name in ("EventB", "EventA")
    ]
    twin.create(base.metadata)
    queue = twin.queue(task)
    message = "HostTask has two event classes: EventA, EventB"
    async with twin.begin() as session:
        for call in (
            lambda: queue.enqueue(session, values={"tenant": 1}),
            lambda: queue.claim(session, holder="w1"),
            lambda: queue.history(session, id=uuid7()),
        ):
            with no_statements(twin), pytest.raises(UnsupportedModel, match=message):
                await call()
    assert len(kept) == 2


def test_no_event_class():
    """Asking for a history that nobody writes says what to map."""

    @registry().mapped
    class Task(UuidId, TaskMixin):
        __tablename__ = "tasks"

    with Session() as session, pytest.raises(UnsupportedModel, match="__task_model__ = Task"):
        Queue(Task).history(session, id=None, key="k")
