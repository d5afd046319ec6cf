"""A network between an application and its server that fails in every way when told to."""

from __future__ import annotations

import asyncio
import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, TypeVar

from tests.servers import plain

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from sqlalchemy.engine import URL

T = TypeVar("T")


class Proxy:
    """Passes connections on to a server, from a loopback port; lives in a thread of its own.

    Its methods return once they are in effect, and are called from other threads.
    """

    def __init__(self, database: URL) -> None:
        self._database = plain(database)
        self._links: set[_Link] = set()
        self._server: asyncio.Server | None = None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self.port = 0
        self.connections = 0
        """How many connections were ever accepted."""
        self.hangs_up = False
        """Whether it ends new connections as soon as it has accepted them."""

    @property
    def url(self) -> URL:
        """The way to the database through the proxy, without a driver."""
        return self._database._replace(host="127.0.0.1", port=self.port, query={})

    def _do(self, act: Callable[[], T]) -> T:
        async def run() -> T:
            answer: Any = act()
            return await answer if asyncio.iscoroutine(answer) else answer

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result(10)

    # --- What can be done to connections --------------------------------------------------------

    def cut(self) -> None:
        """Reset all connections."""
        self._do(lambda: [link.abort() for link in tuple(self._links)])

    def stall(self) -> None:
        """Deliver nothing more on the connections that are there; new ones work."""
        self._do(lambda: [link.open.clear() for link in self._links])

    def resume(self) -> None:
        """Deliver what was held up, and whatever follows."""
        self._do(lambda: [link.open.set() for link in self._links])

    def mute(self) -> None:
        """Lose all answers on the connections that are there, as behind a gateway that forgot them."""
        self._do(lambda: [setattr(link, "muted", True) for link in self._links])

    def refuse(self) -> None:
        """Accept no more connections."""

        async def close() -> None:
            if self._server is not None:
                self._server.close()
                self._server = None

        self._do(close)

    def accept(self) -> None:
        """Accept connections, on the same port as ever."""

        async def listen() -> None:
            self._server = await asyncio.start_server(self._connected, "127.0.0.1", self.port)
            self.port = self._server.sockets[0].getsockname()[1]

        self._do(listen)

    @property
    def open_connections(self) -> int:
        """How many connections there are."""
        return len(self._links)

    # --- Within ---------------------------------------------------------------------------------

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        if self.hangs_up:
            writer.transport.abort()
            return
        link = _Link(writer)
        self._links.add(link)
        try:
            link.server = await self._to_server()
            await link.carry(reader)
        except OSError:
            pass
        finally:
            self._links.discard(link)
            link.abort()

    async def _to_server(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        folder = self._database.query.get("host")
        port = self._database.port or int(str(self._database.query.get("port") or 5432))
        if folder:
            return await asyncio.open_unix_connection(f"{folder}/.s.PGSQL.{port}")
        return await asyncio.open_connection(self._database.host or "localhost", port)

    def start(self) -> None:
        """Begin to accept connections."""
        self._thread.start()
        self.accept()

    def close(self) -> None:
        """End everything."""
        self.refuse()
        self.cut()

        async def idle() -> None:
            others = asyncio.all_tasks() - {asyncio.current_task()}
            for task in others:
                task.cancel()
            await asyncio.gather(*others, return_exceptions=True)

        self._do(idle)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class _Link:
    """One connection: the client's end and the server's."""

    def __init__(self, client: asyncio.StreamWriter) -> None:
        self.client = client
        self.server: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self.open = asyncio.Event()
        self.open.set()
        self.muted = False

    async def carry(self, from_client: asyncio.StreamReader) -> None:
        """Carry bytes both ways until one side ends."""
        assert self.server is not None
        from_server, to_server = self.server
        ways = [
            asyncio.create_task(self._one_way(from_client, to_server, answers=False)),
            asyncio.create_task(self._one_way(from_server, self.client, answers=True)),
        ]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)

    async def _one_way(
        self, source: asyncio.StreamReader, target: asyncio.StreamWriter, *, answers: bool
    ) -> None:
        with suppress(OSError):
            while data := await source.read(65_536):
                await self.open.wait()
                if not (answers and self.muted):
                    target.write(data)
                    await target.drain()

    def abort(self) -> None:
        """End both ends without a word."""
        self.client.transport.abort()
        if self.server is not None:
            self.server[1].transport.abort()


@contextmanager
def proxy(database: URL) -> Iterator[Proxy]:
    """Run a proxy in front of a database's server."""
    running = Proxy(database)
    running.start()
    try:
        yield running
    finally:
        running.close()
