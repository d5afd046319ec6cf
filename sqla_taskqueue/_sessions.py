"""How a statement reaches the database through whatever the caller gave.

In a ``Session`` every write is ORM-enabled DML through ``session.execute``: transaction managers
roll back what they did not see, and a session with several engines, or one for reading and one
for writing, must be able to route it. Reads that belong to a write are Core, and routed by it. On a ``Connection`` the same statements are plain Core.
Nothing here commits, rolls back, closes or expires.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, Protocol

from sqlalchemy import Connection
from sqlalchemy.orm import Session, scoped_session

from ._drivers import in_autocommit

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from sqlalchemy import Row

    from .models import TaskModel

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

    def entities(
        self, statement: Any, params: Any, *, route: Any = None, repeats: bool = True
    ) -> Sequence[Row[Any]]:
        """Run a statement whose rows begin with an entity, refreshing those already loaded.

        Args:
            statement: An ORM SELECT, or an UPDATE … RETURNING.
            params: Its parameters.
            route: The write that it belongs to.
            repeats: Whether rows may repeat, as those of an entity with joined collections do.
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

    def __init__(self, session: Session, model: TaskModel[Any]) -> None:
        self._session = session
        self._model = model

    def _bind(self, clause: Any) -> dict[str, Any]:
        return {"mapper": self._model.mapper, "clause": clause}

    @contextmanager
    def _routed(self, route: Any) -> Generator[None]:
        """Let an ORM SELECT of tasks or events go where *route* goes.

        SQLAlchemy names the SELECT itself to ``get_bind()``, whatever ``bind_arguments`` say; a
        session with a replica would then read there what was just written to the primary.
        """
        session, ours = self._session, self._model.tables
        chosen, choose = session.get_bind(**self._bind(route)), session.get_bind

        def get_bind(mapper: Any = None, **options: Any) -> Any:
            known = mapper is not None and mapper.local_table in ours
            return chosen if known else choose(mapper, **options)

        session.get_bind = get_bind  # type: ignore[method-assign]
        try:
            yield
        finally:
            del session.get_bind

    def flush(self) -> None:
        self._session.flush()

    def rows(self, statement: Any, params: Any, *, route: Any = None) -> Sequence[Row[Any]]:
        return self._session.execute(
            statement, params, bind_arguments=self._bind(statement if route is None else route)
        ).all()

    def entities(
        self, statement: Any, params: Any, *, route: Any = None, repeats: bool = True
    ) -> Sequence[Row[Any]]:
        with nullcontext() if route is None else self._routed(route):
            result = self._session.execute(
                statement,
                params,
                execution_options=_FRESH,
                bind_arguments=self._bind(statement),
            )
            return result.unique().all() if repeats else result.all()

    @property
    def two_phase(self) -> bool:
        return self._session.twophase

    def savepoint(self, route: Any) -> AbstractContextManager[Any]:
        return _savepoint(self._session.connection(bind_arguments=self._bind(route)))


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
        route: Any = None,  # noqa: ARG002 - a connection has nothing to route
        repeats: bool = True,
    ) -> Sequence[Row[Any]]:
        # Its end has no effect on the connection's transaction, which is not its own.
        with Session(
            self._connection, autoflush=False, join_transaction_mode="rollback_only"
        ) as session:
            result = session.execute(statement, params)
            rows = result.unique().all() if repeats else result.all()
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


def caller(session: object, model: TaskModel[Any]) -> Caller:
    """Return how to reach the database through a session or connection.

    Raises:
        TypeError: It is neither a ``Session``, ``scoped_session`` nor ``Connection``.
    """
    model.check_events()
    if isinstance(session, scoped_session):
        session = session()
    if isinstance(session, Session):
        return SessionCaller(session, model)
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
