"""Everything a queue does, as calls that between them send every statement of the library."""

from __future__ import annotations

from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import uuid4

from sqla_taskqueue import Cancel, Holder, Queue, Snooze, TaskSpec
from sqla_taskqueue._operations import claiming
from sqla_taskqueue._sessions import caller
from sqla_taskqueue.statements import turn as turns
from sqla_taskqueue.worker import _upkeep as upkeep
from sqla_taskqueue.worker._jobs import Job
from sqla_taskqueue.worker._outcomes import directed, failed, outcome_of, released
from sqla_taskqueue.worker._sources import Source, Sources
from sqla_taskqueue.worker._turn import Turn
from tests.plans.filling import AUDITED, CELL, LOGGED, Host

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from sqlalchemy.orm import Session

    from sqla_taskqueue import Claim

WORKER = "w"
DAY = timedelta(days=1)


class Scene(NamedTuple):
    """What an act has at hand: a queue with its scope bound, and ten claims of it."""

    session: Session
    host: Host
    queue: Queue[Any]
    claims: list[Claim[Any]]

    @property
    def claim(self) -> Claim[Any]:
        return self.claims[0]

    def named(self, fence: str) -> dict[str, Any]:
        """Return the arguments that name the first claim's task, and who holds it."""
        return {
            "token": {"claim": self.claim},
            "id": {"id": self.claim.id, "holder": WORKER},
            "key": {"key": self.claim.key, "holder": WORKER},
        }[fence]

    def end(self, operation: str, fence: str, **arguments: Any) -> Any:
        """Heartbeat or end the first claim, which must succeed."""
        named = self.named(fence)
        claim = [named.pop("claim")] if "claim" in named else []
        done = getattr(self.queue, operation)(self.session, *claim, **named, **arguments)
        assert done
        return done

    @contextmanager
    def undone(self) -> Iterator[None]:
        """Undo what the block does."""
        savepoint = self.session.begin_nested()
        yield
        savepoint.rollback()

    def partial(self) -> Iterator[Queue[Any]]:
        """Yield the queue with each part of the scope bound, from nothing to all of it."""
        for number in range(2 ** len(self.host.scope)):
            yield Queue(self.host.model, self.queue.name).scope(
                **{
                    name: value
                    for place, (name, value) in enumerate(self.host.scope.items())
                    if number & 1 << place
                }
            )


class Act(NamedTuple):
    """One call, or several that belong together."""

    name: str
    play: Callable[[Scene], Any]
    indexes: frozenset[str]
    rows: int = 1
    last: bool = False
    extra: str | None = None

    def __str__(self) -> str:
        return self.name


ACTS: list[Act] = []


def act(
    *indexes: str,
    rows: int = 1,
    last: bool = False,
    extra: str | None = None,
    **variants: tuple[Any, ...],
) -> Any:
    """Add an act: its indexes, how many rows its statements are about, and its variants.

    Args:
        indexes: By which of the library's indexes it may read the task table.
        rows: How many rows it is about.
        last: Whether the claims are on their last attempt.
        extra: The index that a class must ask for, lest it reads the table in sequence.
        variants: One argument of the function, and what it is in turn.
    """

    def add(play: Callable[..., Any]) -> Callable[..., Any]:
        [(argument, values)] = variants.items() or [("", ("",))]
        for value in values:
            given = {argument: value} if argument else {}
            ACTS.append(
                Act(
                    f"{play.__name__}-{value}" if argument else play.__name__,
                    lambda scene, given=given: play(scene, **given),
                    frozenset(indexes),
                    value if argument == "limit" else rows,
                    last,
                    extra,
                )
            )
        return play

    return add


FENCES = ("token", "id", "key")

# --- Enqueue -----------------------------------------------------------------------------------


@act("pkey", "key", by=("now", "delay", "run_at", "raise"))
def enqueue(scene: Scene, by: str) -> None:
    """A new task, due at once, later, or not to be there yet."""
    given = {
        "now": {},
        "delay": {"delay": DAY},
        "run_at": {"run_at": scene.claim.lease.expires_at},
        "raise": {"if_exists": "raise"},
    }[by]
    assert scene.queue.enqueue(scene.session, "n", id=scene.host.new_id(), **given).created


@act("pkey", "key", "unique", by=("id", "key", "unique_key"))
def enqueue_existing(scene: Scene, by: str) -> None:
    """A task that is there already."""
    id_ = scene.claim.id if by == "id" else scene.host.new_id()
    given = {"key": {"key": scene.claim.key}, "unique_key": {"unique_key": "u-7"}}.get(by, {})
    assert not scene.queue.enqueue(scene.session, id=id_, **given).created


@act(rows=100, by=("now", "run_at"))
def enqueue_many(scene: Scene, by: str) -> None:
    """A hundred new tasks."""
    given = {"run_at": scene.claim.lease.expires_at} if by == "run_at" else {}
    specs = [TaskSpec("n", {"n": n}, id=scene.host.new_id(), **given) for n in range(100)]
    assert all(one.created for one in scene.queue.enqueue_many(scene.session, specs))


@act("pkey", "key", "unique", rows=100, by=("id", "key", "unique_key"))
def enqueue_many_existing(scene: Scene, by: str) -> None:
    """Many tasks that are there already."""
    new = scene.host.new_id
    specs = {
        "id": [TaskSpec(id=claim.id) for claim in scene.claims],
        "key": [TaskSpec(key=f"done-{n}", id=new()) for n in range(1, 101)],
        "unique_key": [TaskSpec(unique_key=f"u-{n}", id=new()) for n in range(1, 101)],
    }[by]
    assert not any(one.created for one in scene.queue.enqueue_many(scene.session, specs))


# --- Claim -------------------------------------------------------------------------------------


@act("claim", "pkey", limit=(1, 10, 100, 500))
def claim(scene: Scene, limit: int) -> None:
    """The next tasks."""
    assert len(scene.queue.claim(scene.session, holder="v", limit=limit)) == limit


@act("pkey", "key", by=("id", "key"))
def claim_task(scene: Scene, by: str) -> None:
    """Held by another, then due, then held by the same holder."""
    named = {by: getattr(scene.claim, by)}
    assert not scene.queue.claim_task(scene.session, **named, holder="v")
    assert scene.queue.release(scene.session, scene.claim)
    assert scene.queue.claim_task(scene.session, **named, holder="v")
    assert scene.queue.claim_task(scene.session, **named, holder="v")


@act("pkey", "key")
def claim_task_expired(scene: Scene) -> None:
    """Held under a lease that ran out."""
    assert scene.queue.claim_task(scene.session, key="held-2", holder="v")


@act("pkey", "key")
def claim_task_exhausted(scene: Scene) -> None:
    """The same, on its last attempt."""
    assert not scene.queue.claim_task(scene.session, key="held-1", holder="v")


# --- Heartbeat, and the ends of a claim --------------------------------------------------------


@act("pkey", "key", fence=FENCES)
def heartbeat(scene: Scene, fence: str) -> None:
    """One lease renewed."""
    scene.end("heartbeat", fence)


@act("pkey", "key", fence=FENCES)
def complete(scene: Scene, fence: str) -> None:
    """One task done."""
    scene.end("complete", fence, result={"n": 1})


@act("pkey", "key", by=("id", "key"))
def complete_forced(scene: Scene, by: str) -> None:
    """One task done by an operator."""
    named = {by: getattr(scene.claim, by)}
    assert scene.queue.complete(scene.session, **named, force=True, actor="operator")


@act("pkey", "key", fence=FENCES)
def fail(scene: Scene, fence: str) -> None:
    """One attempt failed."""
    scene.end("fail", fence, error="no")


@act("pkey", "key", fence=FENCES)
def fail_finally(scene: Scene, fence: str) -> None:
    """One task failed."""
    scene.end("fail", fence, error="no", final=True)


@act("pkey", "key", fence=FENCES, last=True)
def fail_last(scene: Scene, fence: str) -> None:
    """The last attempt failed."""
    scene.end("fail", fence, error="no")


@act("pkey", "key", fence=FENCES)
def release(scene: Scene, fence: str) -> None:
    """One task given back."""
    scene.end("release", fence)


@act("pkey", "key", fence=FENCES)
def snooze(scene: Scene, fence: str) -> None:
    """One task put off."""
    scene.end("snooze", fence, delay=DAY)


@act("pkey", "key", by=("id", "key"))
def cancel_and_retry(scene: Scene, by: str) -> None:
    """One task cancelled, then queued again."""
    named = {by: getattr(scene.claim, by)}
    assert scene.queue.cancel(scene.session, **named)
    assert scene.queue.retry(scene.session, **named)


@act("pkey")
def lost(scene: Scene) -> None:
    """A refusal reads the task to say why."""
    assert scene.queue.cancel(scene.session, id=scene.claim.id)
    assert not scene.queue.heartbeat(scene.session, scene.claim)
    refused = scene.queue.complete(scene.session, scene.claim, on_lost="return")
    assert refused.reason == "finished"


# --- Batches of claims -------------------------------------------------------------------------


@act("pkey", rows=10)
def heartbeat_many(scene: Scene) -> None:
    """Ten leases renewed."""
    assert all(scene.queue.heartbeat_many(scene.session, scene.claims))


@act("pkey", rows=10)
def complete_many(scene: Scene) -> None:
    """Ten tasks done."""
    results = [{"n": 1} for _ in scene.claims]
    assert all(scene.queue.complete_many(scene.session, scene.claims, results=results))


@act("pkey", rows=10, final=(False, True))
def fail_many(scene: Scene, final: bool) -> None:
    """Ten attempts failed."""
    errors = ["no" for _ in scene.claims]
    assert all(scene.queue.fail_many(scene.session, scene.claims, errors=errors, final=final))


@act("pkey", rows=10)
def heartbeat_many_lost(scene: Scene) -> None:
    """Ten leases that were lost."""
    scene.queue.complete_many(scene.session, scene.claims)
    assert not any(scene.queue.heartbeat_many(scene.session, scene.claims))


# --- The worker --------------------------------------------------------------------------------


class SessionLine:
    """A worker's connection that is the scene's."""

    def __init__(self, session: Session, *, direct: bool) -> None:
        self.connection = session.connection()
        self.direct = direct

    async def run(self, work: Any, patience: float | None = None) -> Any:
        """Run work."""
        return work(self.connection)


def worker_of(scene: Scene, *, direct: bool = True) -> tuple[Turn, Source, list[Job]]:
    """Return a worker's turn, the scene's queue as its source, and the claims as its jobs."""
    core = scene.queue._core
    sources = Sources([core], None, {core.name: DAY})
    taking = Turn(
        SessionLine(scene.session, direct=direct),
        [sources],
        slots=1_000,
        holder=Holder(WORKER),
        poll=1.0,
        start=lambda jobs: None,
        settled=lambda job: None,
        lost=lambda job: None,
    )
    [source] = sources
    return taking, source, [job_of(source, claim) for claim in scene.claims]


def job_of(source: Source, claim: Claim[Any]) -> Job:
    """Return a claim as a worker has it."""
    task, model = claim.task, source.model
    read = [model.mapper.get_property_by_column(column).key for column in model.primary_key]
    row = [*(getattr(task, name) for name in read), claim.name, claim.payload, claim.attempt]
    row += [claim.max_attempts, claim.key, claim.lease.expires_at, task.priority, task.run_at]
    return Job(source, row, claim.lease.token)


FORMS = [
    f"{ends}-{look}"
    for ends in ("none", "direct", "careful")
    for look in ("none", "full", "back", "floor")
    if (ends, look) != ("none", "none")
]


@act("claim", "pkey", rows=20, form=tuple(FORMS))
def turn(scene: Scene, form: str) -> None:
    """Ten tasks ended in every way, ten others claimed, in one statement."""
    ends, look = form.split("-")
    taking, source, jobs = worker_of(scene, direct=ends != "careful")
    makers = [
        lambda job: outcome_of(job, {"n": 1}),
        lambda job: failed(job, ValueError("no")),
        lambda job: directed(job, Snooze(DAY)),
        lambda job: directed(job, Cancel("no")),
        released,
    ]
    outcomes = [makers[n % 5](job) for n, job in enumerate(jobs) if ends != "none"]
    for priority in range(5):
        source.floor.lanes[priority] = jobs[0].position
    claiming = None if look == "none" else (source, look, 10, uuid4(), 0.0)
    where, what, *rest = claiming or (None, None, 0, uuid4(), 0.0)
    work = taking._work(source.model, outcomes, where, what, *rest)
    ended, claimed, _ = work(scene.session.connection())
    assert sorted(ended) == [*range(1, len(outcomes) + 1)]
    assert len(claimed) == (0 if look == "none" else 10)


@act("claim", "pkey", "lease", rows=10)
def claimed_under(scene: Scene) -> None:
    """What was claimed under one token."""
    core = scene.queue._core
    params = {**core.inside, "tq_token": scene.claim.lease.token}
    rows = scene.session.connection().execute(core.statements(turns.claimed_under), params).all()
    assert len(rows) == len({claim.lease.token for claim in scene.claims}) or len(rows) == 10


@act("claim", "pkey", rows=5)  # one for each priority
def next_due(scene: Scene) -> None:
    """When the next task is due, beside all that is due already and all that is not."""
    core = scene.queue._core
    seconds = scene.session.connection().scalar(core.statements(turns.next_due), core.inside)
    assert seconds is None or seconds > 0


@act("claim", "pkey")
def scopes(scene: Scene) -> None:
    """Which scopes and queues have tasks."""
    core = scene.queue._core
    rows = scene.session.connection().execute(core.statements(turns.scopes)).all()
    assert (*scene.host.scope.values(), scene.queue.name) in {tuple(row) for row in rows}


# --- Upkeep ------------------------------------------------------------------------------------


@act("lease", "pkey", limit=(1, 10, 90))
def reclaim(scene: Scene, limit: int) -> None:
    """Some, by the end of their leases and by the age of their heartbeats."""
    for queue in scene.partial():
        for age in (None, DAY / 2):
            with scene.undone():
                done = queue.reclaim(scene.session, limit=limit, stale_after=age)
                assert done.total == limit


@act("lease", "pkey", rows=100)
def reclaim_all(scene: Scene) -> None:
    """All, half of them on their last attempt."""
    for queue in scene.partial():
        for age in (None, DAY / 2):
            with scene.undone():
                done = queue.reclaim(scene.session, stale_after=age)
                assert (done.requeued, done.failed) == (100, 100)


@act("lease", "pkey", limit=(1, 90))
def sweep(scene: Scene, limit: int) -> None:
    """A worker's: since the oldest live claim, which it then looks for."""
    for queue in scene.partial():
        core = queue._core
        with scene.undone():
            connection = scene.session.connection()  # in the savepoint
            first = upkeep._oldest(core, None, connection)
            assert first < datetime.now(UTC) - DAY
            of_scene = caller(connection, core.model)
            done = claiming.reclaim(of_scene, core, stale_after=None, limit=limit, since=first)
            assert done.total == limit, (done, first, queue.scope_values)
            assert upkeep._oldest(core, first, connection) >= first
            # Nothing is as young as that but the scene's own claims.
            lately = datetime.now(UTC) - timedelta(hours=1)
            done = claiming.reclaim(of_scene, core, stale_after=None, limit=limit, since=lately)
            assert done.total == 0


@act("pkey", "finished", extra="finished", limit=(1, 100))
def prune(scene: Scene, limit: int) -> None:
    """Some of many."""
    for queue in scene.partial():
        assert queue.prune(scene.session, older_than=DAY / 2, limit=limit) == limit


# --- Reading -----------------------------------------------------------------------------------


@act("pkey", "key")
def get(scene: Scene) -> None:
    """One task."""
    assert scene.queue.get(scene.session, key=scene.claim.key)
    for queue in scene.partial():
        assert queue.get(scene.session, id=scene.claim.id)


@act("pkey", "list", extra="list", rows=50)
def find(scene: Scene) -> None:
    """A page, the next one, and pages of some states."""
    for content in (False, True):
        page = scene.queue.find(scene.session, content=content)
        assert len(page.tasks) == 50
        assert scene.queue.find(scene.session, content=content, after=page.next).tasks


@act("pkey", "list", extra="list", rows=50)
def find_by_state(scene: Scene) -> None:
    """Pages of one state and of several, rare ones among them."""
    for state in ("done", "claimed", ("done", "failed"), ("failed", "cancelled")):
        scene.queue.find(scene.session, state=state)


@act("claim", "lease", "list")
def stats(scene: Scene) -> None:
    """Counts of a queue and scope."""
    scene.queue.stats(scene.session)


@act("pkey", "key")
def history(scene: Scene) -> None:
    """The events of one task, where they are recorded."""
    if scene.host in (CELL, AUDITED, LOGGED):
        assert scene.queue.history(scene.session, id=scene.claim.id)
        assert scene.queue.history(scene.session, key=scene.claim.key)
