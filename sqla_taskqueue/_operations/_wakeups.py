"""Waking idle workers: hints only, never before commit, none after a rollback."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..statements import wakeup

if TYPE_CHECKING:
    from .._core import QueueCore
    from .._sessions import Caller


def wake(caller: Caller, core: QueueCore[Any], route: Any) -> None:
    """Let the transaction notify the table's channel when it commits.

    PostgreSQL drops repeated notifications of one transaction, so that a queue's workers are
    woken once; and a transaction that will be prepared cannot notify at all.
    """
    if core.notify == "transaction" and not caller.two_phase:
        caller.rows(
            core.statements(wakeup.notify),
            {"tq_channel": core.channel, "tq_queue": core.name},
            route=route,
        )
