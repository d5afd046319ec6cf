"""Wake-ups: hearing of new tasks at once. Whatever is missed, the poll finds."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from .._drivers import Hearing
from ..statements import connection as probes
from ..statements import wakeup
from ._jobs import log
from ._service import wait_for

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from ._lines import Line

_PROBE = 10.0
"""Seconds after which a connection that was silent is asked whether it is still there."""
_PROBE_PATIENCE = 5.0


class Listener:
    """Listens to the channels of some tables.

    Args:
        line: Its connection.
        channels: The channels.
        heard: Called with the name of a queue, or None for all, when there may be tasks.
        stopping: When to return.
    """

    def __init__(
        self,
        line: Line,
        channels: Sequence[str],
        heard: Callable[[str | None], object],
        stopping: asyncio.Event,
    ) -> None:
        self._line = line
        self._channels = channels
        self._heard = heard
        self._stopping = stopping

    async def serve(self) -> None:
        """Listen until the worker stops.

        Raises:
            ConnectionError: The connection was lost; serve again.
        """
        driver = await self._line.driver()
        if not self._line.direct:
            log.warning(
                "the database is behind a pooler, which passes no notifications on: polling only"
            )
            await self._line.close()
            await self._stopping.wait()
            return
        changed = asyncio.Event()
        gone = False

        def lost() -> None:
            nonlocal gone
            gone = True
            changed.set()

        for channel in self._channels:
            await self._line.run(partial(_listen, channel))
        hearing = Hearing(driver, self._heard, lost)
        ending = asyncio.ensure_future(self._stopping.wait())
        ending.add_done_callback(lambda _: changed.set())
        try:
            await hearing.start(self._channels)
            # What was announced while nobody listened.
            self._heard(None)
            while not self._stopping.is_set():
                if await wait_for(changed, _PROBE):
                    if gone:
                        raise ConnectionError("the listening connection was lost")
                    return
                hearing.pause()
                await self._line.run(_probe, _PROBE_PATIENCE)
                hearing.resume()
        finally:
            ending.cancel()
            hearing.pause()
            await self._line.close()


def _listen(channel: str, connection: Connection) -> None:
    connection.execute(wakeup.listen(channel))


def _probe(connection: Connection) -> None:
    connection.execute(probes.probe)
