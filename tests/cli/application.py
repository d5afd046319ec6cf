"""An application with workers, for the command to find: its engine comes from the environment."""

from __future__ import annotations

import asyncio
import os
import threading
from datetime import timedelta
from typing import Any

from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import create_async_engine

from sqla_taskqueue import Handlers, Queue, Worker
from tests.workers.hosts import Task, Tenanted

URL = os.environ.get("APPLICATION_URL", "postgresql+psycopg2:///nowhere")
engine: Any = create_async_engine(URL) if "asyncpg" in URL else create_engine(URL)

tasks = Handlers(Queue(Task, "work"))
others = Handlers(Queue(Task, "others"))
tenants = Handlers(Queue(Tenanted, "tenants"))


def pid() -> int:
    """Return which process this is."""
    return os.getpid()


async def short() -> None:
    """Take a moment."""
    await asyncio.sleep(0.3)


async def endless() -> None:
    """Wait for ever."""
    await asyncio.Event().wait()


def thread() -> None:
    """Wait for ever, in a thread."""
    threading.Event().wait()


def blocking() -> None:
    """Nothing else happens in the event loop meanwhile."""


async def blocking_loop() -> None:
    """Block the event loop for ever."""
    threading.Event().wait()


for registry in (tasks, others, tenants):
    registry.handler(pid)
for function in (short, endless, thread, blocking_loop):
    tasks.handler(function)

options: dict[str, Any] = {
    "poll": timedelta(seconds=0.2),
    "lease": timedelta(seconds=2),
    "sweep": timedelta(seconds=0.5),
}
worker = Worker(engine, tasks, others, **options)
of_tenants = Worker(engine, tenants, **options)
number = 7


def make() -> Worker:
    """Return a worker."""
    return worker


def make_nothing() -> None:
    """Return none."""


def fail() -> Worker:
    """Raise."""
    raise RuntimeError("this application's own error")
