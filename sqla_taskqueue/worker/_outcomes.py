"""What is to be written about a job: always storable, whatever its handler returned or raised."""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from .. import checks
from .._operations.settling import checked_result, error_texts
from ..directives import Cancel, Retry, Snooze
from ..errors import InvalidPayload
from ..payloads import clean_json, encode
from ..retry import DEFAULT_RETRY
from ..states import EventType, TaskState
from ._jobs import Job, log, sent_keys

if TYPE_CHECKING:
    from ..models import TaskModel

_PACKAGE = str(Path(__file__).parent.parent)
_TRACEBACK = 4_000
"""Characters of a traceback that an event keeps: its end."""


class Outcome:
    """What is to be written about a job."""

    __slots__ = (
        "delay",
        "detail",
        "error",
        "job",
        "not_before",
        "result",
        "state",
        "type",
        "uncertain",
        "uncounted",
    )

    def __init__(
        self,
        job: Job,
        state: TaskState,
        type: EventType,  # noqa: A002 - the column's name
        *,
        delay: timedelta | None = None,
        error: str | None = None,
        result: str | None = None,
        detail: str | None = None,
        uncounted: bool = False,
    ) -> None:
        self.job = job
        self.state = state
        self.type = type
        self.delay = delay
        self.error = error
        self.result = result
        self.detail = detail
        self.uncounted = uncounted
        self.uncertain = False
        """Whether it may have been written already: an answer was lost."""
        self.not_before = 0.0
        """When to try again, after the row was locked by somebody else."""


# --- What handlers return and raise ------------------------------------------------------------


def outcome_of(job: Job, result: Any) -> Outcome:
    """Return the outcome of a handler that returned."""
    if result is None:
        return Outcome(job, TaskState.DONE, EventType.COMPLETED)
    if isinstance(result, Retry | Snooze | Cancel):
        return directed(job, result)
    return Outcome(job, TaskState.DONE, EventType.COMPLETED, result=_stored(job, result))


def directed(job: Job, directive: Retry | Snooze | Cancel) -> Outcome:
    """Return the outcome that a handler asked for."""
    match directive:
        case Retry():
            return failed(job, directive.recorded, delay=directive.after)
        case Snooze():
            return Outcome(
                job,
                TaskState.QUEUED,
                EventType.SNOOZED,
                delay=directive.delay,
                uncounted=True,
                detail=_detail(job, {"delay": str(directive.delay)}),
            )
        case Cancel():
            text, longer = _texts(job, directive.reason)
            return Outcome(
                job,
                TaskState.CANCELLED,
                EventType.CANCELLED,
                error=text or None,
                detail=_detail(job, {"reason": longer}),
            )


def failed(job: Job, error: object, *, delay: timedelta | None = None) -> Outcome:
    """Return the outcome of an attempt that failed.

    Args:
        job: The job.
        error: What the handler raised, or a text.
        delay: How long until the next attempt; by the handler's or queue's policy if None.
    """
    text, longer = _texts(job, error)
    detail = {"error": longer}
    if job.core.model.events is not None and isinstance(error, BaseException):
        detail["traceback"] = _traceback(error)
    last = job.max_attempts is not None and job.attempt >= job.max_attempts
    if not last and delay is None:
        delay = _wait(job, error)
        last = delay is None
    if last:
        return Outcome(
            job, TaskState.FAILED, EventType.FAILED, error=text, detail=_detail(job, detail)
        )
    return Outcome(
        job,
        TaskState.QUEUED,
        EventType.RETRIED,
        delay=delay,
        error=text,
        detail=_detail(job, {**detail, "retry_in": str(delay)}),
    )


def released(job: Job) -> Outcome:
    """Return the outcome of a job that is given back unworked."""
    return Outcome(job, TaskState.QUEUED, EventType.RELEASED, uncounted=True)


def _wait(job: Job, error: object) -> timedelta | None:
    if job.handler is not None:
        raised = error if isinstance(error, BaseException) else RuntimeError(str(error))
        return job.handler.delay_after(raised, job.attempt, job.core.retry)
    try:
        return checks.duration("retry", job.core.retry.delay(job.attempt))
    except Exception:  # noqa: BLE001 - the policy is the host's
        log.warning("the policy of %r gives no delay", job.source, exc_info=True)
        return DEFAULT_RETRY.delay(job.attempt)


def _stored(job: Job, result: Any) -> str | None:
    """Return a result as JSON text that can be stored, whatever it is: the work is done."""
    try:
        return checked_result(job.core, "result", result)
    except InvalidPayload as error:
        log.warning("%s is done, but its result %s", job, error.problem)
        return encode(f"not stored: the result {error.problem}")
    except Exception as error:  # noqa: BLE001 - an object of the host's may raise anything
        log.warning("%s is done, but its result cannot be read: %r", job, type(error))
        return encode(f"not stored: reading the result raised {type(error).__name__}")


def _texts(job: Job, error: object) -> tuple[str, str]:
    try:
        return error_texts(job.core, error)
    except BaseException as second:  # noqa: BLE001 - a __str__ of the host's may raise anything
        text = f"{type(error).__name__}, whose text raises {type(second).__name__}"
        return text, text


def hosts_part(frames: TracebackType | None) -> TracebackType | None:
    """Return a traceback from where the library called the host on; all of it if it did not."""
    part = frames
    while part is not None and part.tb_frame.f_code.co_filename.startswith(_PACKAGE):
        part = part.tb_next
    return frames if part is None else part


def _traceback(error: BaseException) -> str:
    """Return the end of a traceback."""
    try:
        frames = hosts_part(error.__traceback__)
        text = "".join(
            traceback.format_exception(type(error), error, frames, limit=-10, chain=False)
        )
    except BaseException:  # noqa: BLE001 - as above
        return ""
    return text if len(text) <= _TRACEBACK else "…" + text[1 - _TRACEBACK :]


def _detail(job: Job, detail: dict[str, Any]) -> str | None:
    if job.core.model.events is None:
        return None
    return encode(clean_json({name: value for name, value in detail.items() if value}))


# --- Parameters ---------------------------------------------------------------------------------


def ended_params(model: TaskModel[Any], outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Return the parameters of the statement's part that writes outcomes."""
    jobs = [outcome.job for outcome in outcomes]
    params: dict[str, Any] = {
        **sent_keys(jobs),
        "tq_sent_token": [job.token for job in jobs],
        "tq_sent_state": [outcome.state.value for outcome in outcomes],
        "tq_sent_delay": [outcome.delay for outcome in outcomes],
        "tq_sent_uncounted": [int(outcome.uncounted) for outcome in outcomes],
        "tq_sent_error": [outcome.error for outcome in outcomes],
        "tq_sent_json": _json([outcome.result for outcome in outcomes]),
    }
    if model.events is not None:
        params["tq_sent_type"] = [outcome.type.value for outcome in outcomes]
        params["tq_sent_detail"] = _json([outcome.detail for outcome in outcomes])
    return params


def _json(texts: list[str | None]) -> str:
    """Return JSON texts as the text of one JSON array."""
    if not any(texts):
        return "[]"
    return f"[{','.join(text or 'null' for text in texts)}]"
