"""Workers as threads, with a synchronous driver."""

from __future__ import annotations

import threading
import time
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING

from sqlalchemy import create_engine
from sqlalchemy.engine import make_url
from sqlalchemy.orm import Session, sessionmaker

from .. import LeaseLost
from . import job
from .database import engine_options
from .evidence import ClaimLog, entries
from .host import welcomes
from .settings import LEASE, RETRY

if TYPE_CHECKING:
    from .. import Claim
    from .host import Task
    from .process import Line


class Worker:
    """Claims a few tasks, does them one by one, and begins again until told to stop."""

    def __init__(
        self, name: str, sessions: sessionmaker[Session], log: ClaimLog, stop: threading.Event
    ) -> None:
        self.name = name
        self.sessions = sessions
        self.log = log
        self.stop = stop

    def run(self) -> None:
        """Work."""
        pause, pace = job.Pause(), job.Pace()
        while not self.stop.is_set():
            pace.begin()
            claims = self.claim(pace.how_many())
            if not claims:
                self.stop.wait(pause.longer())
                continue
            pause.reset()
            for claim in claims:
                if pace.is_late() and not self.renew(claim):
                    continue  # it ran out and somebody else has the task
                self.work(claim)
            pace.end()

    def claim(self, limit: int) -> list[Claim[Task]]:
        """Take a few tasks, and write down which before doing anything about them."""
        with self.sessions.begin() as session:
            claims = welcomes.claim(session, holder=self.name, limit=limit, lease=LEASE)
            noted = entries(claims)
        if noted:
            self.log.write(noted)
        return claims

    def renew(self, claim: Claim[Task]) -> bool:
        """Extend the lease; tell whether the task is still this worker's."""
        with self.sessions.begin() as session:
            return bool(welcomes.heartbeat(session, claim))

    def work(self, claim: Claim[Task]) -> None:
        """Do one task: its effect and its completion are one transaction, or nothing is."""
        time.sleep(job.how_long())
        try:
            with self.sessions.begin() as session:
                session.add(job.deliver(claim, self.name))
                job.check_mail_server(claim)
                welcomes.complete(session, claim)
        except job.MailServerBusy as error:
            with self.sessions.begin() as session:
                welcomes.fail(session, claim, error=error, retry=RETRY, on_lost="return")
        except LeaseLost:
            pass  # the delivery was rolled back with it; whoever has the task now delivers


def work_in_threads(orders: job.Orders, line: Line) -> None:
    """Run the workers of one process until the parent says stop."""
    url = make_url(orders.url)
    options = engine_options(url, orders.schema, pool=orders.pool, name=orders.application)
    engine = create_engine(url, **options)
    # The claims are used after the session that made them.
    sessions = sessionmaker(engine, expire_on_commit=False)
    with engine.connect():
        pass  # ready means that the database can be reached
    if not line.ready():
        return
    stop = threading.Event()
    line.call_at_end(stop.set)
    with ClaimLog(orders.log) as log, ThreadPoolExecutor(len(orders.workers)) as threads:
        workers = [Worker(name, sessions, log, stop) for name in orders.workers]
        futures = [threads.submit(worker.run) for worker in workers]
        wait(futures, return_when=FIRST_EXCEPTION)
        stop.set()
        for future in futures:
            future.result()
    engine.dispose()
