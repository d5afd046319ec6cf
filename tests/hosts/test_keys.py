"""Primary keys of every kind: what the queue calls `id` is what `Session.get` takes."""

from __future__ import annotations

from contextlib import contextmanager
from datetime import timedelta

import pytest
from sqlalchemy import event, text

from sqla_taskqueue import InvalidArgument, RefusalReason, TaskSpec, uuid7
from tests.hosts import keys
from tests.hosts.catalogue import assert_furnished
from tests.hosts.life import lead_a_life

every_key = pytest.mark.parametrize("key", keys.KEYS, ids=str)
two_drivers = pytest.mark.parametrize("driver", ["psycopg", "asyncpg"], indirect=True)


@contextmanager
def no_statements(twin):
    """Assert that nothing is sent to the database meanwhile."""
    sent = []
    engine = twin.engine.sync_engine if twin.is_async else twin.engine

    def note(connection, cursor, statement, *_):
        sent.append(statement)

    event.listen(engine, "before_cursor_execute", note)
    try:
        yield
    finally:
        event.remove(engine, "before_cursor_execute", note)
    assert sent == []


@every_key
@two_drivers
async def test_tasks_lead_a_life(twin, key):
    """With keys that the host makes, tasks are enqueued, claimed, ended and lost."""
    twin.create(keys.Base.metadata)
    assert_furnished(twin.database, key.model, scope=_scope_columns(key.model))
    queue = await lead_a_life(twin, key.model, scope=key.scope, ids=key.ids)
    async with twin.begin() as session:
        history = await queue.history(session, id=key.ids[0])
        assert [one.type for one in history] == ["created", "claimed", "completed"]
        page = await queue.find(session, limit=1)
        assert page.next == key.ids[1]


def _scope_columns(model):
    return tuple(model.__mapper__.columns[name].name for name in model.__scope__)


@every_key
@two_drivers
async def test_an_id_is_idempotent(twin, key):
    """Enqueueing an id again returns the task that is there."""
    twin.create(keys.Base.metadata)
    queue = twin.queue(key.model).scope(**key.scope)
    async with twin.begin() as session:
        first = await queue.enqueue(session, "one", id=key.ids[0])
        again = await queue.enqueue(session, "two", id=key.ids[0])
        other = await queue.enqueue(session, "two", id=key.ids[1])
        assert (first.id, first.created) == (key.ids[0], True)
        assert (again.id, again.created) == (key.ids[0], False)
        assert (other.id, other.created) == (key.ids[1], True)
        entity = await session.get(key.model, first.id)
        assert entity.name == "one"


@every_key
@two_drivers
async def test_a_wrong_id_is_refused_before_any_sql(twin, key):
    """Ids of another type, number or size are a typed error, and the transaction goes on."""
    twin.create(keys.Base.metadata)
    queue = twin.queue(key.model).scope(**key.scope)
    async with twin.begin() as session:
        await queue.enqueue(session, id=key.ids[0])
        for wrong in (*key.wrong, *key.foreign):
            for call in (
                lambda id_: queue.enqueue(session, id=id_),
                lambda id_: queue.claim_task(session, id=id_, holder="w1"),
                lambda id_: queue.heartbeat(session, id=id_, holder="w1"),
                lambda id_: queue.complete(session, id=id_, holder="w1"),
                lambda id_: queue.complete(session, id=id_, force=True),
                lambda id_: queue.fail(session, id=id_, holder="w1"),
                lambda id_: queue.release(session, id=id_, holder="w1"),
                lambda id_: queue.snooze(session, id=id_, holder="w1", delay=timedelta(1)),
                lambda id_: queue.cancel(session, id=id_),
                lambda id_: queue.retry(session, id=id_),
                lambda id_: queue.get(session, id=id_),
                lambda id_: queue.history(session, id=id_),
            ):
                with no_statements(twin), pytest.raises(InvalidArgument, match="id"):
                    await call(wrong)
        for wrong in key.wrong:
            with no_statements(twin), pytest.raises(InvalidArgument):
                await queue.find(session, after=wrong)
        assert (await session.execute(text("SELECT 1"))).scalar() == 1
        assert (await queue.claim_task(session, id=key.ids[0], holder="w1")).id == key.ids[0]


@every_key
@two_drivers
async def test_an_id_that_nobody_has(twin, key):
    """An id that is right but unknown is `None`, or a refusal that says so."""
    twin.create(keys.Base.metadata)
    queue = twin.queue(key.model).scope(**key.scope)
    async with twin.begin() as session:
        assert await queue.get(session, id=key.ids[0]) is None
        refused = await queue.claim_task(session, id=key.ids[0], holder="w1")
        assert refused.reason is RefusalReason.GONE
        assert (await queue.cancel(session, id=key.ids[0])).reason is RefusalReason.GONE
        assert await queue.history(session, id=key.ids[0]) == []


@every_key
@two_drivers
async def test_ids_break_ties(twin, key):
    """Tasks of one priority and time are claimed in the order of their keys."""
    twin.create(keys.Base.metadata)
    queue = twin.queue(key.model).scope(**key.scope)
    async with twin.begin() as session:
        for id_ in reversed(key.ids):
            await queue.enqueue(session, id=id_)
    twin.sql(f"UPDATE {key.model.__tablename__} SET run_at = '2020-01-01 00:00+00'")
    async with twin.begin() as session:
        claims = await queue.claim(session, holder="w1", limit=2)
        assert tuple(claim.id for claim in claims) == key.ids


# --- Composite keys ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "short"),
    [(keys.KEYS[7], lambda id_: id_[1]), (keys.KEYS[8], lambda id_: id_[0])],
    ids=["Scoped", "ScopedLast"],
)
@two_drivers
async def test_the_scope_completes_an_id(twin, key, short):
    """Where the scope says the rest of the key, its own part is enough; answers are complete."""
    twin.create(keys.Base.metadata)
    queue = twin.queue(key.model).scope(**key.scope)
    id_, part = key.ids[0], short(key.ids[0])
    async with twin.begin() as session:
        assert (await queue.enqueue(session, id=part)).id == id_
        assert (await queue.claim_task(session, id=part, holder="w1")).id == id_
        assert await queue.heartbeat(session, id=part, holder="w1")
        assert (await queue.complete(session, id=id_, holder="w1")).id == id_
        assert (await session.get(key.model, id_)).state == "done"
        unbound = twin.queue(key.model)
        assert (await unbound.get(session, id=id_)).state == "done"
        with pytest.raises(InvalidArgument, match="tuple of"):
            await unbound.get(session, id=part)


@two_drivers
async def test_tenants_with_equal_ids_stay_apart(twin):
    """Only the whole key names a task: the other tenant's task of the same id is never touched."""
    twin.create(keys.Base.metadata)
    mine, theirs = (twin.queue(keys.ScopedLast).scope(tenant=tenant) for tenant in ("m", "t"))
    async with twin.begin() as session:
        for queue in (mine, theirs):
            for id_ in (1, 2, 3):
                await queue.enqueue(session, id=id_)
        claims = await mine.claim(session, holder="w1", limit=2)
        assert [claim.id for claim in claims] == [(1, "m"), (2, "m")]
        assert await mine.complete(session, claims[0])
        assert not await theirs.cancel(session, id=4)
        assert await theirs.cancel(session, id=2)
    rows = twin.sql('SELECT "tenant id", id, state FROM scoped_last ORDER BY 1, 2')
    assert [(tenant, id_) for tenant, id_, state in rows if state == "queued"] == [
        ("m", 3),
        ("t", 1),
        ("t", 3),
    ]


@two_drivers
async def test_a_key_of_nothing_but_the_scope(twin):
    """A table with one task for each tenant works, and names the task by the tenant."""
    twin.create(keys.Base.metadata)
    assert_furnished(twin.database, keys.OnlyScope, scope=("tenant_id",))
    queue = twin.queue(keys.OnlyScope)
    async with twin.begin() as session:
        for tenant in (1, 2):
            assert (await queue.scope(tenant_id=tenant).enqueue(session)).id == tenant
        assert not (await queue.scope(tenant_id=2).enqueue(session, id=2)).created
        [claim] = await queue.scope(tenant_id=2).claim(session, holder="w1", limit=5)
        assert claim.id == 2
        assert await queue.scope(tenant_id=2).complete(session, claim)
    assert twin.sql("SELECT tenant_id, state FROM only_scope ORDER BY 1") == [
        (1, "queued"),
        (2, "done"),
    ]


@pytest.mark.smoke
@two_drivers
async def test_keys_that_nobody_gives(twin):
    """UUIDs come from Python in order, numbers from the database; both are in the answer."""
    twin.create(keys.Base.metadata)
    async with twin.begin() as session:
        before = uuid7()
        uuids = [(await twin.queue(keys.WithUuid).enqueue(session)).id for _ in range(3)]
        assert [before, *uuids] == sorted([before, *uuids])
        for model in (keys.WithBigInt, keys.WithInteger):
            queue = twin.queue(model)
            assert [(await queue.enqueue(session)).id for _ in range(3)] == [1, 2, 3]


@pytest.mark.parametrize("key", [key for key in keys.KEYS if not key.has_default], ids=str)
@two_drivers
async def test_a_key_without_a_default_must_be_given(twin, key):
    """Enqueueing without the id that only the host can make is a typed error before any SQL."""
    twin.create(keys.Base.metadata)
    queue = twin.queue(key.model).scope(**key.scope)
    async with twin.begin() as session:
        with no_statements(twin), pytest.raises(InvalidArgument, match="id"):
            await queue.enqueue(session, "work")
        assert (await queue.enqueue(session, "work", id=key.ids[0])).created


@pytest.mark.parametrize("written", [str.upper, lambda text: text.replace("-", "")])
@two_drivers
async def test_a_uuid_as_text_may_be_written_in_any_form(twin, written):
    """The answer says it as the column does, also that of a batch, and every form names the task."""
    twin.create(keys.Base.metadata)
    queue = twin.queue(keys.WithHexUuid)
    one, two = str(uuid7()), str(uuid7())
    async with twin.begin() as session:
        first = await queue.enqueue(session, id=written(one))
        [second] = await queue.enqueue_many(session, [TaskSpec(id=written(two))])
        [again] = await queue.enqueue_many(session, [TaskSpec(id=written(one))])
        assert [(of.id, of.created) for of in (first, second, again)] == [
            (one, True),
            (two, True),
            (one, False),
        ]
        assert (await queue.get(session, id=written(two))).id == two
