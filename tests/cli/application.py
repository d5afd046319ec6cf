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


def began(name: str) -> None:
    """Tell the test, in one piece."""
    os.write(2, f"{name} began\n".encode())


async def short() -> None:
    """Take a moment."""
    began("short")
    await asyncio.sleep(0.3)


async def endless() -> None:
    """Wait for ever."""
    began("endless")
    await asyncio.Event().wait()


def thread() -> None:
    """Wait for ever, in a thread."""
    began("thread")
    threading.Event().wait()


async def blocking_loop() -> None:
    """Block the event loop for ever."""
    began("blocking_loop")
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
