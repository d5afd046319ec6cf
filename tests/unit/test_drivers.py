"""What is read off the errors and connections of four drivers."""

from __future__ import annotations

import pytest
from sqlalchemy import Column, Integer, MetaData, Table, UniqueConstraint, event, exc, text

from sqla_taskqueue import _drivers

metadata = MetaData()
things = Table(
    "driver_things",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("code", Integer),
    UniqueConstraint("code", name="uq_driver_things_code"),
)

DUPLICATE = "INSERT INTO driver_things (id, code) VALUES (1, 1), (2, 1)"


async def failure(connection, statement):
    """Return what *statement* raises."""
    with pytest.raises(Exception) as caught:
        await connection.execute(text(statement))
    return caught.value


async def test_a_unique_violation_is_recognised(twin):
    """SQLSTATE and constraint are the same for every driver, in SQLAlchemy's own wrapping."""
    twin.create(metadata)
    async with twin.connect() as connection:
        error = await failure(connection, DUPLICATE)
        assert isinstance(error, exc.IntegrityError)
        assert _drivers.sqlstate(error) == _drivers.UNIQUE_VIOLATION == "23505"
        assert _drivers.constraint_name(error) == "uq_driver_things_code"
        await connection.rollback()


async def test_other_errors_have_their_own_state_and_no_constraint(twin):
    """An error that is no constraint's has a SQLSTATE and no constraint name."""
    async with twin.connect() as connection:
        error = await failure(connection, "SELECT 1 / 0")
        assert _drivers.sqlstate(error) == "22012"
        assert _drivers.constraint_name(error) is None
        await connection.rollback()


class HostError(Exception):
    """What a host makes of every database error."""


@pytest.mark.parametrize("how", ["the driver's own", "its own, chained", "returned"])
async def test_errors_are_recognised_when_the_host_rewraps_them(twin, how):
    """`handle_error` may raise the driver's exception, or another one from it."""
    twin.create(metadata)

    def rewrap(context):
        if how == "the driver's own":
            raise context.original_exception
        if how == "its own, chained":
            raise HostError from context.original_exception
        return HostError()

    engine = twin.new_engine()
    event.listen(engine.sync_engine if twin.is_async else engine, "handle_error", rewrap)
    async with twin.connect(engine) as connection:
        error = await failure(connection, DUPLICATE)
        assert not isinstance(error, exc.IntegrityError)
        assert _drivers.sqlstate(error) == "23505"
        assert _drivers.constraint_name(error) == "uq_driver_things_code"
        await connection.rollback()


def test_errors_of_no_database_have_nothing():
    """Any other exception says None, and one that contains itself comes to an end."""
    error = ValueError("x")
    other = KeyError("y")
    error.__cause__, other.__cause__ = other, error
    assert _drivers.sqlstate(error) is None
    assert _drivers.constraint_name(error) is None


def test_a_state_deep_down_the_chain_is_found():
    """Several wrappings, by `orig` and by cause, are looked through."""

    class Inner(Exception):
        pgcode = "40001"

    outer = HostError()
    outer.orig = RuntimeError()
    outer.orig.__cause__ = Inner()
    assert _drivers.sqlstate(outer) == "40001"


async def test_autocommit_is_noticed(twin):
    """A connection in AUTOCOMMIT is told from one in a transaction, in the whole engine or alone."""

    def ask(connection):
        return _drivers.in_autocommit(connection)

    async with twin.connect() as connection:
        assert await connection.run_sync(ask) is False
        await connection.execute(text("SELECT 1"))
        assert await connection.run_sync(ask) is False
    async with twin.connect() as connection:
        await connection.execution_options(isolation_level="AUTOCOMMIT")
        assert await connection.run_sync(ask) is True
    async with twin.connect(twin.new_engine(isolation_level="AUTOCOMMIT")) as connection:
        assert await connection.run_sync(ask) is True
        await connection.execution_options(isolation_level="READ COMMITTED")
        assert await connection.run_sync(ask) is False
    for level in ("REPEATABLE READ", "SERIALIZABLE"):
        async with twin.connect(twin.new_engine(isolation_level=level)) as connection:
            assert await connection.run_sync(ask) is False


async def test_autocommit_is_forgotten_when_the_connection_goes_back(twin):
    """The next user of a pooled connection is in a transaction again."""

    def ask(connection):
        return _drivers.in_autocommit(connection)

    engine = twin.new_engine(pool_size=1, max_overflow=0)
    async with twin.connect(engine) as connection:
        await connection.execution_options(isolation_level="AUTOCOMMIT")
        assert await connection.run_sync(ask) is True
    async with twin.connect(engine) as connection:
        assert await connection.run_sync(ask) is False


@pytest.mark.parametrize(
    ("words", "state"),
    [
        ('connection failed: FATAL:  database "shop" does not exist', "3D000"),
        ('connection to server at "db" failed: FATAL:  role "me" does not exist', "28000"),
        ("connection to server failed: FATAL:  no pg_hba.conf entry for host", "28000"),
        ('connection failed: FATAL:  password authentication failed for user "me"', "28P01"),
        ("connection failed: fe_sendauth: no password supplied", "28P01"),
        ('connection failed: FATAL:  permission denied for database "shop"', "42501"),
        ("connection failed: Connection refused", None),
        ("connection failed: FATAL:  the database system is starting up", None),
        ('INSERT failed: database "shop" does not exist', None),
    ],
)
def test_connections_that_were_refused_are_told_by_their_words(words, state):
    """Libpq keeps their SQLSTATE to itself; what passes by itself has none."""
    assert _drivers.sqlstate(HostError(words)) == state


async def test_a_database_that_does_not_exist_has_its_sqlstate(twin):
    """With every driver, whether it says so or not."""
    url = twin.database.url.set(database="no_such_database")
    with pytest.raises(Exception, match="no_such_database") as caught:
        async with twin.connect(twin.new_engine(url=url)) as connection:
            await connection.execute(text("SELECT 1"))
    assert _drivers.sqlstate(caught.value) == "3D000"
