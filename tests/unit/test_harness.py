"""The tests' own machinery: servers, drivers, twins."""

from __future__ import annotations

import asyncio
import threading

import pytest
from sqlalchemy import Column, ForeignKey, Integer, MetaData, Table, event, select, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession
from sqlalchemy.orm import Session

from tests.servers import DRIVERS, conninfo, plain
from tests.twin import Listener, QueueAdapter, Twin

metadata = MetaData()
parents = Table("harness_parents", metadata, Column("id", Integer, primary_key=True))
children = Table(
    "harness_children",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("parent", ForeignKey(parents.c.id), nullable=False),
)


# --- URLs --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("postgresql://u:p@localhost:5433/db", "postgresql://u:p@localhost:5433/db"),
        ("postgresql+asyncpg://u@localhost/db", "postgresql://u@localhost/db"),
        ("postgresql://u@/db?host=/sockets", "postgresql://u@/db?host=%2Fsockets"),
        ("postgresql://u@%2Fsockets/db", "postgresql://u@/db?host=%2Fsockets"),
        ("postgresql://u@%2Fsockets:77/db", "postgresql://u@/db?host=%2Fsockets&port=77"),
    ],
)
def test_plain_urls_have_one_form(given, expected):
    """Every way to write a server's address becomes the one that all drivers understand."""
    assert conninfo(plain(given)) == expected


# --- Every driver ------------------------------------------------------------------------------


@pytest.mark.smoke
async def test_every_driver_connects(twin, server_version):
    """A session and a connection of each driver reach the database of this process."""
    question = text(
        "SELECT current_setting('server_version_num')::int / 10000, current_database()"
    )
    async with twin.session() as session:
        row = (await session.execute(question)).one()
    async with twin.connect() as connection:
        again = (await connection.execute(question)).one()
    assert tuple(row) == tuple(again) == (server_version, twin.database.url.database)


async def test_the_driver_is_the_one_asked_for(twin):
    """The engine speaks through the driver whose name the test carries."""
    assert twin.engine.url.drivername == twin.driver.dialect
    assert isinstance(twin.engine, AsyncEngine) == twin.is_async


@pytest.mark.parametrize("driver", ["asyncpg"], indirect=True)
async def test_a_test_can_name_its_drivers(twin):
    """Indirect parametrisation picks single drivers out of the matrix."""
    assert twin.driver is DRIVERS[-1]


async def test_async_twins_are_the_real_things(twin):
    """An adapter stands only before sync objects, and `raw` is always the real one."""
    async with twin.session() as session, twin.connect() as connection:
        assert isinstance(session, AsyncSession) == twin.is_async
        assert isinstance(session.raw, AsyncSession if twin.is_async else Session)
        assert isinstance(session.sync_session, Session)
        assert isinstance(connection, AsyncConnection) == twin.is_async
        assert twin.raw(session) is session.raw


# --- Transactions ------------------------------------------------------------------------------


async def test_begin_commits_and_session_does_not(twin):
    """`begin` commits at its end, `session` throws away what was not committed."""
    twin.create(metadata)
    async with twin.begin() as session:
        await session.execute(parents.insert().values(id=1))
    async with twin.session() as session:
        await session.execute(parents.insert().values(id=2))
    async with twin.begin_connection() as connection:
        await connection.execute(parents.insert().values(id=3))
    async with twin.connect() as connection:
        await connection.execute(parents.insert().values(id=4))
    assert twin.sql("SELECT id FROM harness_parents ORDER BY id") == [(1,), (3,)]


async def test_an_error_rolls_back(twin):
    """An exception inside `begin` undoes its writes and comes out unchanged."""
    twin.create(metadata)
    with pytest.raises(ZeroDivisionError):
        async with twin.begin() as session:
            await session.execute(parents.insert().values(id=1))
            raise ZeroDivisionError
    assert twin.scalar("SELECT count(*) FROM harness_parents") == 0


async def test_savepoints_are_entered_or_awaited(twin):
    """`begin_nested` works as a block and as an awaited transaction, in session and connection."""
    twin.create(metadata)
    async with twin.begin() as session:
        with pytest.raises(ZeroDivisionError):
            async with session.begin_nested():
                await session.execute(parents.insert().values(id=1))
                raise ZeroDivisionError
        savepoint = await session.begin_nested()
        await session.execute(parents.insert().values(id=2))
        await savepoint.rollback()
        connection = await session.connection()
        savepoint = await connection.begin_nested()
        await connection.execute(parents.insert().values(id=3))
        await savepoint.commit()
    assert twin.sql("SELECT id FROM harness_parents") == [(3,)]


async def test_sessions_have_the_usual_methods(twin):
    """Reading methods of sessions, scoped sessions and `run_sync` give the same in both worlds."""
    async with twin.session() as session, twin.scoped() as scoped:
        for each in (session, scoped):
            assert await each.scalar(select(1)) == 1
            assert (await each.scalars(select(2))).all() == [2]
            await each.commit()
        assert await session.run_sync(type) is Session
        assert not session.in_transaction()
        await session.rollback()


# --- Tables ------------------------------------------------------------------------------------


async def test_create_empties_what_is_there(twin):
    """Tables of the same metadata stay in place and lose their rows, whatever refers to what."""
    twin.create(metadata)
    before = twin.scalar("SELECT 'harness_parents'::regclass::oid::bigint")
    twin.sql("INSERT INTO harness_parents VALUES (1)")
    twin.sql("INSERT INTO harness_children VALUES (1, 1)")
    assert twin.scalar("SELECT nextval('harness_parents_id_seq')") == 1
    twin.create(metadata)
    assert twin.scalar("SELECT count(*) FROM harness_parents") == 0
    assert twin.scalar("SELECT count(*) FROM harness_children") == 0
    assert twin.scalar("SELECT nextval('harness_parents_id_seq')") == 1
    assert twin.scalar("SELECT 'harness_parents'::regclass::oid::bigint") == before


@pytest.mark.parametrize(
    "change",
    [
        "ALTER TABLE harness_parents ADD COLUMN more int",
        "ALTER TABLE harness_parents ALTER COLUMN id SET DEFAULT 7",
        "CREATE INDEX ON harness_children (parent)",
        "DROP TABLE harness_children",
        "CREATE TABLE strange (id int)",
        "CREATE SCHEMA strange CREATE TABLE strange (id int)",
        "ANALYZE harness_parents",
        "INSERT INTO harness_parents SELECT generate_series(1, 50000)",
    ],
)
def test_create_notices_changes(database, change):
    """Tables that a test changed, analysed or filled are made anew for the next."""
    database.create(metadata)
    before = database.scalar("SELECT 'harness_parents'::regclass::oid::bigint")
    database.sql(change)
    database.create(metadata)
    assert database.scalar("SELECT 'harness_parents'::regclass::oid::bigint") != before
    assert database.scalar("SELECT count(*) FROM pg_class WHERE relname = 'strange'") == 0
    assert (
        database.scalar("SELECT reltuples FROM pg_class WHERE relname = 'harness_parents'") == -1
    )


def test_create_replaces_other_tables(database):
    """Another metadata's tables go, those in schemas of their own too."""
    other = MetaData()
    Table("harness_parents", other, Column("name", Integer, primary_key=True), schema="elsewhere")
    database.create(metadata)
    database.create(other)
    assert database.sql(
        "SELECT relnamespace::regnamespace::text FROM pg_class WHERE relname = 'harness_parents'"
    ) == [("elsewhere",)]
    database.create(metadata, fresh=True)
    assert database.scalar("SELECT to_regclass('elsewhere.harness_parents')") is None


# --- At the same time --------------------------------------------------------------------------


async def test_spawned_functions_block_only_themselves(twin):
    """A function that waits for a row's lock leaves the test free to release it."""
    twin.create(metadata)
    twin.sql("INSERT INTO harness_parents VALUES (1)")

    async def lock_it(name):
        async with twin.begin() as session:
            await session.execute(select(parents).with_for_update())
            return name, threading.current_thread() is threading.main_thread()

    async with twin.begin() as session:
        await session.execute(select(parents).with_for_update())
        task = twin.spawn(lock_it, name="spawned")
        await twin.until_waiting()
        assert not task.done()
    assert await task == ("spawned", twin.is_async)


async def test_spawned_functions_meet(twin):
    """Barriers and events hold in both worlds, also for more functions than there are cores."""
    start, go, seen = twin.barrier(20), twin.event(), []

    async def run(number):
        await start.wait()
        await go.wait()
        seen.append(number)

    tasks = [twin.spawn(run, number) for number in range(19)]
    await twin.spawn(start.wait)
    assert seen == []
    assert not go.is_set()
    go.set()
    await asyncio.gather(*tasks)
    assert sorted(seen) == list(range(19))


async def test_errors_of_spawned_functions_come_out(twin):
    """Awaiting a spawned function raises what it raised."""

    async def fail():
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await twin.spawn(fail)


async def test_waiting_for_nothing_ends(twin):
    """`until` and events give up with a TimeoutError."""
    with pytest.raises(TimeoutError):
        await twin.until(lambda: False, timeout=0.01)
    with pytest.raises(TimeoutError):
        await twin.event().wait(timeout=0.01)


# --- Notifications -----------------------------------------------------------------------------


async def test_notifications_are_heard_after_commit(twin):
    """A listener hears what was committed, in order, and nothing of what was rolled back."""
    notify = text("SELECT pg_notify('harness', :word)")
    async with twin.listening("harness") as heard:
        async with twin.session() as session:
            await session.execute(notify, {"word": "never"})
            await session.rollback()
            await session.execute(notify, {"word": "first"})
            assert await heard.so_far() == []
            await session.commit()
        assert [n.payload for n in await heard.notifies()] == ["first"]
        async with twin.begin() as session:
            await session.execute(notify, {"word": "second"})
        assert [n.payload for n in await heard.so_far()] == ["second"]
        assert await heard.notifies(timeout=0) == []


async def test_notifications_wake_a_listener(twin):
    """Waiting for notifications leaves a spawned sender free to send them."""

    async def send():
        async with twin.begin() as session:
            await session.execute(text("NOTIFY harness, 'one'"))
            await session.execute(text("NOTIFY harness, 'two'"))

    async with twin.listening("harness") as heard:
        task = twin.spawn(send)
        assert [n.payload for n in await heard.notifies(count=2)] == ["one", "two"]
        await task


# --- What tests leave behind -------------------------------------------------------------------


async def test_event_listeners_end_with_the_test(database, driver):
    """Statements counted in one test are not counted in the next."""
    counted = []
    first = Twin(database, driver)
    engine = first.engine.sync_engine if first.is_async else first.engine
    event.listen(engine, "before_cursor_execute", lambda *args: counted.append(args[2]))
    async with first.connect() as connection:
        await connection.execute(select(1))
    await first.close()
    assert len(counted) == 1
    second = Twin(database, driver)
    async with second.connect() as connection:
        await connection.execute(select(1))
    await second.close()
    assert len(counted) == 1


async def test_open_transactions_are_found(database, driver, monkeypatch):
    """A test that leaves a transaction open fails, and the next one finds the tables free."""
    twin = Twin(database, driver)
    twin.create(metadata)
    connection = twin.engine.connect()
    if twin.is_async:
        await connection.start()
    connection = twin.adapt(connection)
    await connection.execute(parents.insert().values(id=1))
    monkeypatch.setattr(database, "patience", 0.05)
    with pytest.raises(AssertionError, match="INSERT INTO harness_parents"):
        await twin.close()
    database.create(metadata)
    await connection.invalidate()
    await connection.close()


async def test_running_functions_are_found(database, driver, monkeypatch):
    """A test that does not wait for what it spawned fails, and nothing keeps running."""
    twin = Twin(database, driver)
    twin.create(metadata)
    twin.sql("INSERT INTO harness_parents VALUES (1)")

    async def lock_it():
        async with twin.begin() as session:
            await session.execute(select(parents).with_for_update())

    async with twin.connect() as connection:
        await connection.execute(select(parents).with_for_update())
        task = twin.spawn(lock_it)
        await twin.until_waiting()
        monkeypatch.setattr(database, "patience", 0.05)
        with pytest.raises(AssertionError, match="never awaited"):
            await twin.close()
        with pytest.raises((DBAPIError, asyncio.CancelledError)):
            await task
        await connection.invalidate()


def test_prepared_transactions_are_found(database, monkeypatch):
    """A prepared transaction that a test left behind is found and rolled back."""
    database.create(metadata)
    monkeypatch.setattr(database, "patience", 0.05)
    database.sql(
        "BEGIN; INSERT INTO harness_parents VALUES (1); PREPARE TRANSACTION 'left behind'"
    )
    assert database.strays() == [("left behind",)]
    assert database.strays() == []


# --- The queue's adapter -----------------------------------------------------------------------


async def test_queues_are_adapted(database):
    """A sync queue's methods are awaited, with real sessions; `scope` and attributes are plain."""

    class Fake:
        name = "emails"
        model = dict

        def __init__(self, **scope):
            self.bound = scope

        def scope(self, **scope):
            return Fake(**scope)

        def claim(self, session, *, limit=1):
            return type(session), limit, self.bound

    twin = Twin(database, DRIVERS[0])
    queue = QueueAdapter(Fake())
    scoped = queue.scope(team=7)
    assert isinstance(scoped, QueueAdapter)
    assert (scoped.name, scoped.model) == ("emails", dict)
    async with twin.session() as session:
        assert await scoped.claim(session, limit=3) == (Session, 3, {"team": 7})
    await twin.close()


def test_listeners_close(database):
    """A listener's connection ends when it is closed."""
    listener = Listener(database, "harness")
    assert [o.query for o in database.others() if "LISTEN" in o.query] == ['LISTEN "harness"']
    listener.close()
    assert database.strays() == []
