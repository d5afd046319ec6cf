"""The least that a worker can be with each driver: one statement in a loop.

It ends the tasks of the turn before and claims the next ones, in one statement on a connection in
autocommit, from the very table that the library works on, with the same columns written. It calls
the function for each task and does nothing else: no lease is renewed, nothing fails, nothing is
looked for below.
"""

from __future__ import annotations

import json
import select
from uuid import uuid4

TABLE = "benchmark_worker_tasks"

TURN = """
WITH fin AS (
  UPDATE {table} AS t SET state = 'done', lease_token = NULL, lease_expires_at = NULL,
         ended_token = t.lease_token, finished_at = now(), updated_at = now()
    FROM (SELECT * FROM unnest({ids}::uuid[]) AS f(id) ORDER BY 1) AS f
   WHERE t.id = f.id AND CASE WHEN t.state = 'claimed' THEN t.lease_token END = {token}::uuid
), pick AS MATERIALIZED (
  SELECT id FROM {table} WHERE queue = 'work' AND state = 'queued' AND run_at <= now()
   ORDER BY priority, run_at, id LIMIT {limit} FOR UPDATE SKIP LOCKED
)
UPDATE {table} SET state = 'claimed', attempt = attempt + 1, lease_token = {next}::uuid,
       lease_expires_at = now() + interval '1 minute', heartbeat_at = now(), claimed_at = now(),
       claimed_by = 'raw', claimed_session = '', updated_at = now()
 WHERE id = ANY (ARRAY(SELECT id FROM pick))
RETURNING id, name, payload, attempt, max_attempts
"""


def turn_with(**places: str) -> str:
    return TURN.format(table=TABLE, **places)


class Psycopg2:
    """The turn, and waiting for a notification, as blocking calls."""

    statement = turn_with(ids="%(ids)s", token="%(token)s", limit="%(limit)s", next="%(next)s")

    def __init__(self, url) -> None:
        import psycopg2

        self.connection = psycopg2.connect(url)
        self.connection.autocommit = True
        self.cursor = self.connection.cursor()

    def turn(self, ids, token, limit, following):
        values = {"ids": ids, "token": token, "limit": limit, "next": following}
        self.cursor.execute(self.statement, values)
        return self.cursor.fetchall()

    def listen(self, channel) -> None:
        self.cursor.execute(f'LISTEN "{channel}"')

    def wait(self, seconds) -> None:
        if select.select([self.connection], [], [], seconds)[0]:
            self.connection.poll()
            self.connection.notifies.clear()

    def close(self) -> None:
        self.connection.close()


class Psycopg(Psycopg2):
    def __init__(self, url) -> None:
        import psycopg

        self.connection = psycopg.connect(url, autocommit=True)
        self.cursor = self.connection.cursor()

    def wait(self, seconds) -> None:
        for _ in self.connection.notifies(timeout=seconds, stop_after=1):
            pass


class PsycopgAsync:
    """The same as coroutines."""

    statement = Psycopg2.statement

    @classmethod
    async def connect(cls, url):
        import psycopg

        self = cls()
        self.connection = await psycopg.AsyncConnection.connect(url, autocommit=True)
        self.cursor = self.connection.cursor()
        return self

    async def turn(self, ids, token, limit, following):
        values = {"ids": ids, "token": token, "limit": limit, "next": following}
        await self.cursor.execute(self.statement, values)
        return await self.cursor.fetchall()

    async def listen(self, channel) -> None:
        await self.cursor.execute(f'LISTEN "{channel}"')

    async def wait(self, seconds) -> None:
        async for _ in self.connection.notifies(timeout=seconds, stop_after=1):
            pass

    async def close(self) -> None:
        await self.connection.close()


class Asyncpg:
    statement = turn_with(ids="$1", token="$2", limit="$3", next="$4")

    @classmethod
    async def connect(cls, url):
        import asyncio

        import asyncpg

        self = cls()
        self.connection = await asyncpg.connect(url)
        self.prepared = await self.connection.prepare(self.statement)
        self.heard = asyncio.Event()
        return self

    async def turn(self, ids, token, limit, following):
        rows = await self.prepared.fetch(ids, token, limit, following)
        for row in rows:
            json.loads(row[2])  # the other drivers decode it by themselves
        return rows

    async def listen(self, channel) -> None:
        await self.connection.add_listener(channel, lambda *_: self.heard.set())

    async def wait(self, seconds) -> None:
        import asyncio

        try:
            async with asyncio.timeout(seconds):
                await self.heard.wait()
        except TimeoutError:
            return
        self.heard.clear()

    async def close(self) -> None:
        await self.connection.close()


RAW = {
    "psycopg": Psycopg,
    "psycopg2": Psycopg2,
    "psycopg async": PsycopgAsync,
    "asyncpg": Asyncpg,
}


class Turns:
    """What a loop keeps between two turns."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.ids: list = []
        self.token = str(uuid4())

    def arguments(self) -> tuple:
        self.following = str(uuid4())
        return self.ids, self.token, self.limit, self.following

    def take(self, rows) -> None:
        self.ids, self.token = [row[0] for row in rows], self.following


def drain(raw, limit: int, work) -> None:
    """Work until nothing is left, and end that, too."""
    turns = Turns(limit)
    while True:
        rows = raw.turn(*turns.arguments())
        turns.take(rows)
        if not rows:
            return
        for row in rows:
            work(row[2])


async def drain_async(raw, limit: int, work) -> None:
    turns = Turns(limit)
    while True:
        rows = await raw.turn(*turns.arguments())
        turns.take(rows)
        if not rows:
            return
        for row in rows:
            work(row[2])


def follow(raw, limit: int, channel: str, work, stopped) -> None:
    """Work on what is announced until told to stop."""
    turns = Turns(limit)
    raw.listen(channel)
    while not stopped.is_set():
        rows = raw.turn(*turns.arguments())
        turns.take(rows)
        for row in rows:
            work(row[2])
        if not rows:
            raw.wait(0.5)


async def follow_async(raw, limit: int, channel: str, work, stopped) -> None:
    turns = Turns(limit)
    await raw.listen(channel)
    while not stopped.is_set():
        rows = await raw.turn(*turns.arguments())
        turns.take(rows)
        for row in rows:
            work(row[2])
        if not rows:
            await raw.wait(0.5)
