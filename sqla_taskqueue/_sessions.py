"""How a statement reaches the database through whatever the caller gave.

In a ``Session`` every write is ORM-enabled DML through ``session.execute``: transaction managers
roll back what they did not see, and a session with several engines, or one for reading and one
for writing, must be able to route it. Reads that belong to a write are Core, and routed by it. On a ``Connection`` the same statements are plain Core.
Nothing here commits, rolls back, closes or expires.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Protocol

from sqlalchemy import Connection
from sqlalchemy.orm import Session, scoped_session

from ._drivers import in_autocommit

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy import Row
    from sqlalchemy.orm import Mapper

_FRESH = {"populate_existing": True}


class Caller(Protocol):
    """The caller's session or connection, for statements about one task class."""

    def flush(self) -> None:
        """Write what the session has pending: a task may point at a pending row."""
        ...

    def rows(self, statement: Any, params: Any, *, route: Any = None) -> Sequence[Row[Any]]:
        """Run a statement that returns rows.

        Args:
            statement: A Core statement.
            params: Its parameters.
            route: The write that it belongs to; a session routes by it instead.
        """
        ...

    def entities(self, statement: Any, params: Any, *, joins: bool = True) -> Sequence[Row[Any]]:
        """Run a statement whose rows begin with an entity, refreshing those already loaded.

        Args:
            statement: An ORM SELECT, or an UPDATE … RETURNING.
            params: Its parameters.
            joins: Whether the entity may load collections by joins, which repeat its rows.
        """
        ...

    @property
    def two_phase(self) -> bool:
        """Whether the transaction will be prepared, which excludes NOTIFY."""
        ...

    def savepoint(self, route: Any) -> AbstractContextManager[Any]:
        """Return a savepoint of the connection that *route* would use.

        Never ``session.begin_nested()``, whose release fires the host's commit listeners.
        """
        ...


class SessionCaller:
    """Through an ORM session."""

    def __init__(self, session: Session, mapper: Mapper[Any]) -> None:
        self._session = session
        self._mapper = mapper

    def _bind(self, statement: Any, route: Any) -> dict[str, Any]:
        clause = statement if route is None else route
        return {"mapper": self._mapper, "clause": clause}

    def flush(self) -> None:
        self._session.flush()

    def rows(self, statement: Any, params: Any, *, route: Any = None) -> Sequence[Row[Any]]:
        return self._session.execute(
            statement, params, bind_arguments=self._bind(statement, route)
        ).all()

    def entities(self, statement: Any, params: Any, *, joins: bool = True) -> Sequence[Row[Any]]:
        result = self._session.execute(
            statement,
            params,
            execution_options=_FRESH,
            bind_arguments=self._bind(statement, None),
        )
        return result.unique().all() if joins else result.all()

    @property
    def two_phase(self) -> bool:
        return self._session.twophase

    def savepoint(self, route: Any) -> AbstractContextManager[Any]:
        return _savepoint(self._session.connection(bind_arguments=self._bind(route, None)))


class ConnectionCaller:
    """Through a Core connection; entities come detached."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        if not connection.in_transaction():
            # The caller commits, as after any statement of its own.
            connection.begin()

    def flush(self) -> None:
        """Do nothing: a connection has nothing pending."""

    def rows(self, statement: Any, params: Any, *, route: Any = None) -> Sequence[Row[Any]]:  # noqa: ARG002
        return self._connection.execute(statement, params).all()

    def entities(
        self,
        statement: Any,
        params: Any,
        *,
        joins: bool = True,
    ) -> Sequence[Row[Any]]:
        # Its end has no effect on the connection's transaction, which is not its own.
        with Session(
            self._connection, autoflush=False, join_transaction_mode="rollback_only"
        ) as session:
            result = session.execute(statement, params)
            rows = result.unique().all() if joins else result.all()
            session.expunge_all()
        return rows

    @property
    def two_phase(self) -> bool:
        return False

    def savepoint(self, route: Any) -> AbstractContextManager[Any]:  # noqa: ARG002
        return _savepoint(self._connection)


def _savepoint(connection: Connection) -> AbstractContextManager[Any]:
    # In autocommit a failed statement undoes itself, and there is no transaction to save.
    return nullcontext() if in_autocommit(connection) else connection.begin_nested()


def caller(session: object, mapper: Mapper[Any]) -> Caller:
    """Return how to reach the database through a session or connection.

    Raises:
        TypeError: It is neither a ``Session``, ``scoped_session`` nor ``Connection``.
    """
    if isinstance(session, scoped_session):
        session = session()
    if isinstance(session, Session):
        return SessionCaller(session, mapper)
    if isinstance(session, Connection):
        return ConnectionCaller(session)
    raise TypeError(
        "the first argument must be a Session, scoped_session or Connection, "
        f"not {_described(session)}"
    )


def runner(session: object) -> Any:
    """Return the ``run_sync`` of an asynchronous session or connection.

    Raises:
        TypeError: It is neither an ``AsyncSession``, ``async_scoped_session`` nor
            ``AsyncConnection``.
    """
    # Imported here: SQLAlchemy's asyncio extension needs greenlet, which a host that uses only
    # the synchronous queue may not have.
    from sqlalchemy.ext.asyncio import (  # noqa: PLC0415
        AsyncConnection,
        AsyncSession,
        async_scoped_session,
    )

    if isinstance(session, async_scoped_session):
        session = session()
    if isinstance(session, AsyncSession | AsyncConnection):
        return session.run_sync
    raise TypeError(
        "the first argument must be an AsyncSession, async_scoped_session or AsyncConnection, "
        f"not {_described(session)}"
    )


def _described(session: object) -> str:
    kind = type(session)
    name = f"{kind.__module__}.{kind.__qualname__}"
    match kind.__name__:
        case "sessionmaker" | "async_sessionmaker" | "Engine" | "AsyncEngine":
            return f"{name}: open one from it first"
        case "AsyncSession" | "AsyncConnection" | "async_scoped_session":
            return f"{name}: use AsyncQueue"
        case "Session" | "Connection" | "scoped_session":
            return f"{name}: use Queue"
        case _:
            return name
