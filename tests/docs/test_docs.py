"""The documentation: its examples run as printed, its tables are true, and it builds."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from pathlib import Path

import pytest
from sqlalchemy import event
from sqlalchemy.orm import DeclarativeBase, Session

import sqla_taskqueue
from sqla_taskqueue import (
    BoardMixin,
    Queue,
    Refused,
    TaskEventMixin,
    TaskMixin,
    TaskSpec,
    UuidId,
)
from tests.servers import DRIVERS

ROOT = Path(__file__).parent.parent.parent
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.glob("*.md"))]

# Both an engine and an async engine can be made from this driver's URL.
DRIVER = next(driver for driver in DRIVERS if driver.name == "psycopg")

_EXAMPLE = re.compile(r"<!-- example: (?P<name>[\w-]+) -->")
_FENCE = re.compile(r"^(?P<ticks>`{3,})(?P<language>\S*)$")


@dataclass
class Program:
    """The Python blocks of a page, or of a part that begins with ``<!-- example: name -->``."""

    page: Path
    name: str
    lines: dict[int, str] = field(default_factory=dict)
    output: str | None = None

    @property
    def source(self) -> str:
        """The blocks at the lines that they have on the page, so that tracebacks point there."""
        return "\n".join(self.lines.get(n, "") for n in range(1, max(self.lines) + 1)) + "\n"

    def __str__(self) -> str:
        return f"{self.page.stem}-{self.name}"


def _programs(page: Path) -> list[Program]:
    """Return the programs of a page; a text block after ``<!-- output -->`` is their output."""
    programs = [Program(page, "page")]
    language, is_output = None, False
    for number, line in enumerate(page.read_text().splitlines(), 1):
        fence = _FENCE.match(line)
        if language is None:
            if example := _EXAMPLE.fullmatch(line):
                programs.append(Program(page, example["name"]))
            elif line == "<!-- output -->":
                is_output = True
            elif fence:
                language = fence["language"]
        elif fence and not fence["language"]:
            language = None
            is_output = False
        elif language == "python":
            programs[-1].lines[number] = line
        elif language == "text" and is_output:
            programs[-1].output = f"{programs[-1].output or ''}{line}\n"
    return [program for program in programs if program.lines]


PROGRAMS = [program for page in PAGES for program in _programs(page)]


@pytest.mark.parametrize("program", PROGRAMS, ids=str)
def test_the_examples_run_as_printed(program, database, tmp_path):
    """Each program of a page runs on an empty database and prints what the page says."""
    database.reset()
    file = tmp_path / f"{program}.py"
    file.write_text(program.source)
    url = DRIVER.url(database.url).render_as_string(hide_password=False)
    done = subprocess.run(
        # A script that ends leaves its pool to the interpreter, as scripts do.
        [sys.executable, "-W", "error", "-W", "ignore::ResourceWarning", file],
        env={**os.environ, "DATABASE_URL": url, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    database.reset()
    assert (done.returncode, done.stderr) == (0, "")
    if program.output is not None:
        assert done.stdout == program.output


def test_every_python_block_is_run():
    """No block escapes: all that is marked as Python, in whatever form, belongs to a program."""
    for page in PAGES:
        written = re.findall(
            r"^[ \t]*`{3,}\s*\{?(?:code-block\}\s*)?python", page.read_text(), re.MULTILINE
        )
        plain = re.findall(r"^```python$", page.read_text(), re.MULTILINE)
        assert written == plain, page.name


def test_the_reference_names_every_public_name_once():
    """Exactly the names in ``__all__`` stand in the reference."""
    named = re.findall(
        r"^\.\. auto(?:class|exception|function|data):: (?:sqla_taskqueue\.)?(\w+)$",
        (DOCS / "reference.md").read_text(),
        re.MULTILINE,
    )
    assert sorted(named) == sorted(sqla_taskqueue.__all__)


def test_the_table_of_errors_names_every_error():
    """Each error class has a section on the page about errors."""
    errors = {
        name
        for name in sqla_taskqueue.__all__
        if isinstance(found := getattr(sqla_taskqueue, name), type)
        and issubclass(found, Exception)
    }
    sections = set(re.findall(r"^#+ `(\w+)`$", (DOCS / "errors.md").read_text(), re.MULTILINE))
    assert sections == errors


# --- The table of statements -------------------------------------------------------------------


def _statement_table():
    """Return the rows of the table: operation, statements, with events, wakes, savepoint."""
    text = (DOCS / "transactions.md").read_text().partition("<!-- table: statements -->\n")[2]
    rows = text.partition("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]


def _task_class(name, *mixins, events):
    class Base(DeclarativeBase):
        pass

    task = type(name, (UuidId, TaskMixin, *mixins, Base), {"__tablename__": "tasks"})
    if events:
        columns = {"__tablename__": "task_events", "__task_model__": task}
        type(f"{name}Event", (TaskEventMixin, Base), columns)
    return task


def _claims(queue, session, number=1, **spec):
    queue.enqueue_many(session, [TaskSpec(**spec)] * number)
    return queue.claim(session, holder="w1", limit=number, take_expired=False)


def _existing(queue, session):
    queue.enqueue(session, key="k")
    return lambda: queue.enqueue(session, key="k")


def _cancelled(queue, session):
    sent = queue.enqueue(session)
    queue.cancel(session, id=sent.id)
    return lambda: queue.retry(session, id=sent.id)


def _on_new(call):
    return lambda queue, session: partial(call, queue, session, queue.enqueue(session).id)


def _on_claim(call, **spec):
    return lambda queue, session: partial(call, queue, session, *_claims(queue, session, **spec))


def _on_claims(call):
    return lambda queue, session: partial(call, queue, session, _claims(queue, session, 3))


# Each prepares, and returns the call that is counted.
CALLS = {
    "`enqueue`, a new task": lambda q, s: lambda: q.enqueue(s),
    "`enqueue`, an existing key": _existing,
    "`enqueue_many`, up to 2,000 new tasks": lambda q, s: (
        lambda: q.enqueue_many(s, [TaskSpec()] * 3)
    ),
    "`claim`": _on_new(lambda q, s, _: q.claim(s, holder="w1")),
    "`claim`, of a board class": _on_new(lambda q, s, _: q.claim(s, holder="w1")),
    "`claim_task`": _on_new(lambda q, s, i: q.claim_task(s, id=i, holder="w1")),
    "`heartbeat`": _on_claim(lambda q, s, c: q.heartbeat(s, c)),
    "`complete`": _on_claim(lambda q, s, c: q.complete(s, c)),
    "`fail`": _on_claim(lambda q, s, c: q.fail(s, c)),
    "`fail`, the last attempt": _on_claim(lambda q, s, c: q.fail(s, c), max_attempts=1),
    "`fail`, by a holder": _on_claim(lambda q, s, c: q.fail(s, id=c.id, holder="w1")),
    "`release`": _on_claim(lambda q, s, c: q.release(s, c)),
    "`snooze`": _on_claim(lambda q, s, c: q.snooze(s, c, delay=timedelta(0))),
    "`cancel`": _on_new(lambda q, s, i: q.cancel(s, id=i)),
    "`retry`": _cancelled,
    "`reclaim`, fewer than 100 tasks": _on_claim(
        lambda q, s, _: q.reclaim(s, stale_after=timedelta(0))
    ),
    "`heartbeat_many`, up to 1,000 claims": _on_claims(lambda q, s, cs: q.heartbeat_many(s, cs)),
    "`complete_many`, up to 1,000 claims": _on_claims(lambda q, s, cs: q.complete_many(s, cs)),
    "`fail_many`, up to 1,000 claims": _on_claims(
        lambda q, s, cs: q.fail_many(s, cs, errors=["no"] * len(cs))
    ),
    "`prune`": lambda q, s: lambda: q.prune(s, older_than=timedelta(0)),
    "`get`": _on_new(lambda q, s, i: q.get(s, id=i)),
    "`find`": _on_new(lambda q, s, _: q.find(s)),
    "`history`": _on_new(lambda q, s, i: q.history(s, id=i)),
    "`stats`": lambda q, s: lambda: q.stats(s),
}


def _sent(queue, engine, session, prepare):
    """Return the statements of one call, and whether a savepoint was among them."""
    call = prepare(queue, session)
    statements = []

    def note(_, __, statement, *___):
        statements.append(statement)

    event.listen(engine, "before_cursor_execute", note)
    try:
        answer = call()
    finally:
        event.remove(engine, "before_cursor_execute", note)
    assert not isinstance(answer, Refused)
    savepoints = [s for s in statements if s.startswith(("SAVEPOINT", "RELEASE"))]
    return [s for s in statements if s not in savepoints], bool(savepoints)


@pytest.mark.parametrize("with_events", [False, True], ids=["plain", "events"])
def test_the_table_of_statements_is_true(with_events, database):
    """Each operation sends as many statements as its row says, wakes and saves as it says."""
    table = _statement_table()
    assert [row[0] for row in table] == list(CALLS)
    # A view: an engine that was ever listened to does more for each statement from then on.
    engine = database.engine(DRIVER).execution_options()
    for board in (False, True):
        cls = _task_class("Task", *[BoardMixin] * board, events=with_events)
        database.create(cls.metadata)
        queue = Queue(cls, "q")
        for operation, plain, more, wakes, savepoint in table:
            if ("board" in operation) != board or (not plain and not with_events):
                continue
            with Session(engine) as session:
                statements, saved = _sent(queue, engine, session, CALLS[operation])
            wanted = int(plain or 0) + (int(more or 0) if with_events else 0)
            woken = any("pg_notify" in statement for statement in statements)
            assert len(statements) - woken == wanted, (operation, statements)
            assert (woken, saved) == (wakes == "yes", savepoint == "yes"), operation
    engine.dispose()


# --- The build -----------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_documentation_builds_without_a_warning(tmp_path):
    """Sphinx finds no broken reference and no malformed docstring, and needs no network."""
    pytest.importorskip("sphinx", reason="the extra `docs` is not installed")
    done = subprocess.run(
        [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", DOCS, tmp_path / "html"],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert (done.returncode, done.stderr) == (0, "")
