"""Guards over every statement of the library: rules that a review would miss one day.

Each guard is a function that returns what is wrong with one statement. The first half of the file
holds the guards against all statements of several kinds of host; the second half shows each guard
a bad statement, so that a guard that sees nothing fails, too.
"""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from functools import cache

import pytest
from sqlalchemy import (
    CTE,
    Alias,
    BindParameter,
    Case,
    Insert,
    Integer,
    Select,
    Table,
    TextClause,
    Update,
    and_,
    any_,
    bindparam,
    delete,
    func,
    insert,
    literal_column,
    select,
    text,
    update,
)
from sqlalchemy.dialects import postgresql
from sqlalchemy.sql import operators, visitors
from sqlalchemy.sql.elements import BinaryExpression, BooleanClauseList, ColumnClause, Grouping

from sqla_taskqueue import Queue, statements
from sqla_taskqueue.models import TaskModel
from sqla_taskqueue.statements import Statements
from tests.behaviour.hosts import Board, Logged, Pair, Task
from tests.plans.hosts import Audited, Cell, Grid, Listed, Word

HOSTS = (Task, Logged, Pair, Board, Grid, Word, Audited, Cell, Listed)
MODELS = {cls: TaskModel(cls) for cls in HOSTS}
BUILT = {cls: Statements(model) for cls, model in MODELS.items()}
DIALECTS = {name: getattr(postgresql, name).dialect() for name in ("psycopg", "asyncpg")}

# Which statements are about one task that the caller names, and what the name's conditions are.
NAMED = re.compile(
    r"""
    ^(?: enqueue\.existing | claim\.take | lease\.(?:heartbeat|give_up|look)
       | finish\.\w+ )\((?:'(?P<by>id|key|unique_key)')?""",
    re.VERBOSE,
)
ENDS = re.compile(r"^(?:finish\.(?:complete|fail|release|snooze)|lease\.heartbeat)\(")


# --- Looking at statements ---------------------------------------------------------------------


@cache
def compiled(statement, dialect="psycopg"):
    """Return a compiled statement; an INSERT with all columns, as if all were given."""
    columns = [column.key for column in statement.table.c] if is_insert(statement) else None
    return statement.compile(dialect=DIALECTS[dialect], column_keys=columns)


def is_insert(statement):
    """Tell whether a statement is an INSERT whose columns are its parameters."""
    return isinstance(statement, Insert) and statement.select is None


def sql_of(statement, dialect="psycopg"):
    """Return the text of a statement."""
    return str(compiled(statement, dialect))


def walk(element, above=(), seen=None):
    """Yield every element below *element* with what stands above it, CTEs and values included.

    An element is visited once for each set of CTEs that it stands in.
    """
    seen = set() if seen is None else seen
    place = (id(element), frozenset(id(one) for one in above if isinstance(one, CTE)))
    if place in seen:
        return
    seen.add(place)
    yield element, above
    inner = [*element.get_children()]
    if isinstance(element, ColumnClause) and not isinstance(element.table, Table | None):
        inner.append(element.table)  # a subselect that is only mentioned
    if isinstance(element, Insert | Update):
        inner += [
            value
            for value in dict(element._values or {}).values()
            if hasattr(value, "get_children")
        ]
        if element.is_dml and getattr(element, "select", None) is not None:
            inner.append(element.select)
        inner += element._independent_ctes
    for child in inner:
        if all(child is not one for one in above):
            yield from walk(child, (*above, element), seen)


def elements(statement, kind):
    """Return the elements of one kind, each once."""
    return list({id(e): e for e, _ in walk(statement) if isinstance(e, kind)}.values())


def has_binds(expression):
    """Tell whether an expression itself contains a bind; columns of subselects are only named."""
    return any(isinstance(one, BindParameter) for one in visitors.iterate(expression))


def is_task_table(source, model):
    """Tell whether a FROM element is the task table, or another name of it."""
    while isinstance(source, Alias):
        source = source.element
    return isinstance(source, Table) and source.key == model.table.key  # it may be annotated


def sources(element):
    """Return the tables that one SELECT or UPDATE itself reads or writes."""
    if isinstance(element, Select):
        found = [*element.columns_clause_froms, *element._from_obj]
        return [one for of in found for one in leaves(of)]
    return [element.table]


def leaves(source):
    """Return the single FROM elements of a join."""
    if hasattr(source, "onclause"):
        return [*leaves(source.left), *leaves(source.right)]
    return [source]


def conditions(element):
    """Return the conditions of one SELECT or UPDATE that all must hold.

    CASE WHEN a THEN b END is a condition that no index serves: a, and b.
    """
    pending, found = list(element._where_criteria), []
    while pending:
        condition = pending.pop()
        if isinstance(condition, BooleanClauseList) and condition.operator is operators.and_:
            pending += condition.clauses
        elif isinstance(condition, Grouping):
            pending.append(condition.element)
        elif isinstance(condition, Case) and condition.else_ is None:
            [both] = condition.whens
            pending += both
        else:
            found.append(condition)
    return found


def equalities(element):
    """Return (column name, bind name) of the conditions ``column = :bind``."""
    return {
        (one.left.key, one.right.key)
        for one in conditions(element)
        if isinstance(one, BinaryExpression)
        and one.operator is operators.eq
        and isinstance(one.left, ColumnClause)
        and isinstance(one.right, BindParameter)
    }


def is_of_array(condition):
    """Tell whether a condition is ``column = ANY(array)``, or ``column = unnested.column``."""
    if not isinstance(condition, BinaryExpression) or not isinstance(condition.left, ColumnClause):
        return False
    other = condition.right
    if getattr(other, "operator", None) is operators.any_op:
        return True
    source = getattr(other, "table", None)
    return source is not None and not isinstance(source, Table) and bool(elements(source, CTE))


def about_tasks(statement, model):
    """Return every SELECT and UPDATE within that reads or writes the task table itself."""
    return [
        one
        for one in elements(statement, Select | Update)
        if any(is_task_table(source, model) for source in sources(one)) and conditions(one)
    ]


# --- The guards --------------------------------------------------------------------------------


def wrong_clock(model, name, statement):
    """Any clock but `statement_timestamp()`."""
    pattern = (
        r"(?i)(?<![_\w])(now\(|clock_timestamp|transaction_timestamp|timeofday"
        r"|current_(timestamp|time|date)|local(time|timestamp)|'(now|today)')"
    )
    return [match[0] for match in re.finditer(pattern, sql_of(statement))]


def bound_states(model, name, statement):
    """A state that is compared with, or set to, something that is not a literal."""

    def is_state(column):
        return isinstance(column, ColumnClause) and column.key == "state"

    wrong = []
    for element, _ in walk(statement):
        if isinstance(element, BinaryExpression):
            for side, other in ((element.left, element.right), (element.right, element.left)):
                if is_state(side) and has_binds(other):
                    wrong.append(str(element))
        if isinstance(element, Insert | Update):
            for column, value in dict(element._values or {}).items():
                if getattr(column, "key", column) == "state" and (
                    not hasattr(value, "get_children") or has_binds(value)
                ):
                    wrong.append(f"state set to {value}")
    wrong += re.findall(r"state\s*(?:=|<>|!=|IN|IS)\s*\(?\s*[%:$][^,\s)]*", sql_of(statement))
    return wrong


def unaddressed(model, name, statement):
    """A claim or single-task statement that does not bind the scope and the whole name."""
    match = NAMED.match(name)
    if match is None and not name.startswith("claim."):
        return []
    by = match and (match["by"] or "id")
    parts = about_tasks(statement, model)
    scope = {column.key: f"tq_scope_{attribute}" for attribute, column in model.scope.items()}
    if name.startswith("enqueue.existing('key'"):
        scope = {
            column.key: "tq_queue" if attribute == "queue" else f"tq_scope_{attribute}"
            for attribute, column in model.key_scope.items()
        }
    names = {
        "id": {column.key: f"tq_pk_{i}" for i, column in enumerate(model.primary_key)},
        "key": {"key": "tq_key"},
        "unique_key": {"unique_key": "tq_unique_key"},
        None: {},
    }[by]
    wrong = [] if parts else ["reads no task"]
    for part in parts:
        missing = scope.items() - equalities(part)
        wrong += [f"{type(part).__name__} does not bind {column}" for column, _ in missing]
    if not any(names.items() <= equalities(part) for part in parts):
        wrong.append(f"nothing binds {', '.join(names)}")
    for part in parts:
        # What does not name the task itself takes it from the CTE that does, by its whole key.
        free = {column.key for column in model.free_key or model.primary_key[-1:]}
        by_array = {one.left.key for one in conditions(part) if is_of_array(one)}
        named = bool(names) and names.items() <= equalities(part)
        if isinstance(part, Update) and not named and not free <= by_array:
            wrong.append("the UPDATE is not restricted to the whole key")
    return wrong


def text_tables(model, name, statement):
    """Text that names a table: `schema_translate_map` does not reach it."""
    tables = [*model.table.metadata.tables.values()]
    names = "|".join(re.escape(one) for t in tables for one in {t.name, t.fullname})
    written = [(e, e.text) for e in elements(statement, TextClause)] + [
        (e, e.name) for e in elements(statement, ColumnClause) if getattr(e, "is_literal", False)
    ]
    return [
        what for _, what in written if re.search(rf"\b({names})\b", re.sub(r"'[^']*'", "", what))
    ]


def loose_locks(model, name, statement):
    """A locking subselect that is not in a CTE that is evaluated exactly once."""
    wrong = []
    for element, above in walk(statement):
        if not isinstance(element, Select) or element._for_update_arg is None:
            continue
        if name.startswith("batch.prune("):
            pass  # a task that an open insert refers to by a foreign key must stay
        elif not element._for_update_arg.key_share or element._for_update_arg.read:
            wrong.append("locks with another strength than FOR NO KEY UPDATE")
        if not above or element is statement:
            continue  # the statement itself: it has no outer rows to run for
        once = [one for one in above if isinstance(one, CTE)]
        if not any(str(prefix) == "MATERIALIZED" for one in once for prefix, _ in one._prefixes):
            wrong.append("a locking subselect outside a MATERIALIZED CTE")
    return wrong


def unfenced(model, name, statement):
    """An end of a claim that does not demand the token, the holder, or at least a live task."""
    if not ENDS.match(name):
        return []
    fence = re.search(r"'(token|holder|live)'", name)[1]
    for part in about_tasks(statement, model):
        if not {bind for _, bind in equalities(part)} & {"tq_pk_0", "tq_key"}:
            continue
        found = sql_of(and_(*conditions(part)))
        bound = equalities(part)
        if fence == "token":
            for one in conditions(part):
                case = getattr(one, "left", None)
                if (
                    isinstance(case, Case)
                    and one.right.key == "tq_token"
                    and [result.key for _, result in case.whens] == ["lease_token"]
                    and "'claimed'" in sql_of(case.whens[0][0])
                    and case.else_ is None
                ):
                    return []
        elif fence == "holder":
            holder = {"claimed_by": "tq_worker", "claimed_session": "tq_session"}
            if holder.items() <= bound and "state = 'claimed'" in found:
                return []
        elif "state IN ('blocked', 'queued', 'claimed')" in found:
            return []
    return [f"no fence {fence!r}"]


def stray_binds(model, name, statement):
    """A bind that a host's column may collide with, or that SQLAlchemy named by itself."""
    allowed = set()
    if isinstance(statement, Insert):
        allowed = {column.key for column in statement.table.c}
    elif isinstance(statement, Update):
        allowed = {column.key for column in statement.table.c if column.onupdate is not None}
    return [
        bind
        for bind in compiled(statement).binds
        if not bind.startswith("tq_") and bind not in allowed
    ]


def session_state(model, name, statement):
    """What stays with the connection: behind a transaction pooler, another client gets it (B21)."""
    written = re.sub(r"'[^']*'", "''", sql_of(statement))
    begins = re.match(r"\s*(\w+)", written)[1]
    wrong = [] if begins in {"SELECT", "INSERT", "UPDATE", "DELETE", "WITH"} else [begins]
    pattern = r"(?i)\b(pg_(?:try_)?advisory_(?!xact_)\w+|set_config|temp(?:orary)?)\b"
    return wrong + re.findall(pattern, written)


GUARDS = (
    wrong_clock,
    bound_states,
    unaddressed,
    text_tables,
    loose_locks,
    unfenced,
    stray_binds,
    session_state,
)


@pytest.mark.parametrize("guard", GUARDS, ids=lambda guard: guard.__name__)
@pytest.mark.parametrize("model", MODELS.values(), ids=[cls.__name__ for cls in MODELS])
def test_every_statement_passes_the_guard(model, guard):
    """No statement about any kind of host breaks the rule."""
    built = BUILT[model.cls].all()
    wrong = {name: found for name, s in built.items() if (found := guard(model, name, s))}
    assert wrong == {}


# --- The walk is complete ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "module",
    ["batch", "catalogue", "claim", "enqueue", "finish", "lease", "reading", "wakeup"],
)
def test_every_builder_is_walked(module):
    """`Statements.all` knows every function that builds a statement, with every fence."""
    source = getattr(statements, module)
    builders = {
        name
        for name, function in inspect.getmembers(source, inspect.isfunction)
        if function.__module__ == source.__name__
        and not name.startswith("_")
        and next(iter(inspect.signature(function).parameters), None) == "parts"
        and inspect.signature(function).return_annotation in {"Any", "Select[Any]"}
    }
    built = BUILT[Audited].all()
    assert {name.split("(")[0] for name in built if name.startswith(f"{module}.")} == {
        f"{module}.{builder}" for builder in builders
    }


@pytest.mark.parametrize("model", MODELS.values(), ids=[cls.__name__ for cls in MODELS])
def test_every_statement_compiles_and_is_cached(model):
    """Both paramstyles work, and SQLAlchemy's cache takes it: compiled once, then only run."""
    for name, statement in BUILT[model.cls].all().items():
        assert all(sql_of(statement, dialect) for dialect in DIALECTS), name
        assert statement._generate_cache_key() is not None, name


ANNOTATED = """
import sqla_taskqueue
from sqlalchemy import Delete, Insert, Update
from sqlalchemy.sql.annotation import annotated_classes

made_by_the_import = set(annotated_classes)
from tests.unit.test_statements import BUILT

kinds = {type(s) for built in BUILT.values() for s in built.all().values()}
writes = {kind for kind in kinds if issubclass(kind, (Delete, Insert, Update))}
assert {kind.__name__ for kind in writes} == {"Delete", "Insert", "Update"}, kinds
assert writes <= made_by_the_import, writes - made_by_the_import
"""


def test_the_import_makes_the_annotated_class_of_every_write():
    """Else two threads that write first may switch off SQLAlchemy's cache for the whole process."""
    done = subprocess.run(
        [sys.executable, "-c", ANNOTATED], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_the_walk_reaches_every_part():
    """The tree walk finds what the compiled text has: CTEs, values, locks, recorded events."""
    statement = BUILT[Audited].all()["finish.complete('id', 'token')"]
    binds = {bind.key for bind in elements(statement, BindParameter)}
    assert binds == set(compiled(statement).binds)
    assert len(elements(statement, CTE)) == 2
    claim = BUILT[Audited].all()["claim.claim()"]
    assert {bind.key for bind in elements(claim, BindParameter)} == set(compiled(claim).binds)


# --- Statements are built once -----------------------------------------------------------------


def test_statements_are_built_once():
    """The same variant is the same object at every call."""
    built = Statements(MODELS[Audited])
    first, second = built.all(), built.all()
    assert first.keys() == second.keys()
    assert all(first[name] is second[name] for name in first)
    variant = (statements.finish.complete, "id", "token")
    assert built(*variant) is built(*variant)
    assert built(*variant) is not built(statements.finish.complete, "id", "holder")


def test_scoped_queues_share_the_statements():
    """Binding a scope builds nothing."""
    queue = Queue(Task, "builds")
    bound = queue.scope(project_hash="9f2c").scope(role="coder")
    assert bound._core.statements is queue._core.statements


def test_variants_named_by_keyword_are_told_apart():
    """An argument given by keyword counts as part of the variant."""
    built = Statements(MODELS[Task])
    plain = built(statements.lease.look, "id", lock=False)
    locking = built(statements.lease.look, "id", lock=True)
    assert "FOR NO KEY UPDATE" in sql_of(locking)
    assert "FOR NO KEY UPDATE" not in sql_of(plain)


# --- Every guard can fail ----------------------------------------------------------------------

MODEL = MODELS[Task]
T = Task.__table__
SCOPE = [
    T.c.project_hash == bindparam("tq_scope_project_hash"),
    T.c.role == bindparam("tq_scope_role"),
]
BY_ID = [*SCOPE, T.c.id == bindparam("tq_pk_0")]
CLAIMED = T.c.state == literal_column("'claimed'")
LOCKING = select(T.c.id).where(*SCOPE).with_for_update(key_share=True, skip_locked=True)
END = "finish.complete('id', 'token')"
LITERAL = literal_column("'done'")


def ended(*where):
    """Return an end of a claim."""
    return update(Task).values(state=LITERAL).where(*where)


@pytest.mark.parametrize(
    "moment",
    [
        func.now(),
        func.clock_timestamp(),
        func.current_timestamp(),
        func.transaction_timestamp(),
        func.localtimestamp(),
        literal_column("'now'::timestamptz"),
        text("CURRENT_DATE"),
    ],
    ids=str,
)
def test_wrong_clock_fails(moment):
    """Every other clock is noticed; the right one is not."""
    assert wrong_clock(MODEL, "", select(T.c.id).where(T.c.run_at <= moment))
    assert not wrong_clock(MODEL, "", select(func.statement_timestamp()))


@pytest.mark.parametrize(
    "statement",
    [
        select(T.c.id).where(T.c.state == bindparam("tq_state")),
        select(T.c.id).where(T.c.state == "queued"),
        select(T.c.id).where(bindparam("tq_state", type_=T.c.state.type) == T.c.state),
        select(T.c.id).where(T.c.state.in_(["queued", "claimed"])),
        select(T.c.id).where(T.alias().c.state != "queued"),
        select(T.c.id).where(T.c.id.in_(select(T.c.id).where(T.c.state == "x"))),
        select(select(T.c.id).where(T.c.state == "x").cte().c.id),
        update(Task).values(state="done"),
        update(Task).values({T.c.state: func.lower(bindparam("tq_state"))}),
        insert(Task).values(state="queued"),
    ],
)
def test_bound_states_fail(statement):
    """A bind that meets a state is noticed in conditions, subqueries, CTEs and values."""
    assert bound_states(MODEL, "", statement)


def test_literal_states_pass():
    """States written into the text are what is wanted."""
    assert not bound_states(MODEL, "", ended(CLAIMED))


@pytest.mark.parametrize(
    ("name", "statement"),
    [
        (END, ended(T.c.id == bindparam("tq_pk_0"))),
        (END, ended(*SCOPE)),
        (END, ended(*SCOPE, T.c.id != bindparam("tq_pk_0"))),
        (END, ended(*SCOPE[:1], T.c.id == bindparam("tq_pk_0"))),
        (END, ended(*SCOPE[:1], T.c.role > bindparam("tq_scope_role"), BY_ID[-1])),
        (END, ended(*SCOPE, T.c.key == bindparam("tq_key"))),
        (END, ended(*SCOPE[:1], SCOPE[1] | CLAIMED, BY_ID[-1])),
        ("finish.cancel('key',)", ended(*BY_ID)),
        ("enqueue.existing('id',)", select(T.c.id).where(BY_ID[-1])),
        ("enqueue.existing('key',)", select(T.c.id).where(T.c.key == bindparam("tq_key"))),
        ("enqueue.existing('unique_key',)", select(T.c.id).where(*SCOPE)),
        ("claim.claim()", ended(T.c.id == any_(func.array(LOCKING.scalar_subquery())))),
        (
            "claim.claim()",
            ended(
                *SCOPE,
                T.c.id
                == any_(func.array(select(T.c.id).where(CLAIMED).limit(1).scalar_subquery())),
            ),
        ),
        ("claim.claim()", ended(*SCOPE)),
        (END, select(literal_column("1"))),
    ],
)
def test_unaddressed_statements_fail(name, statement):
    """A forgotten scope column or half a name is noticed, in the UPDATE and in subqueries."""
    assert unaddressed(MODEL, name, statement)


def test_half_a_composite_key_fails():
    """An UPDATE that takes only one column of a composite key from the CTE is noticed."""
    table, model = Grid.__table__, MODELS[Grid]
    picked = select(table.c.row, table.c.column).cte().prefix_with("MATERIALIZED")
    rows = table.c.row == any_(func.array(select(picked.c.row).scalar_subquery()))
    columns = table.c.column == any_(func.array(select(picked.c.column).scalar_subquery()))
    both = update(Grid).values(state=LITERAL).where(rows, columns)
    assert not unaddressed(model, "claim.claim()", both)
    assert unaddressed(model, "claim.claim()", update(Grid).values(state=LITERAL).where(rows))


def test_addressed_statements_pass():
    """The whole scope and the whole key, by equality."""
    assert not unaddressed(MODEL, END, ended(*BY_ID))


@pytest.mark.parametrize(
    "statement",
    [
        text("SELECT 1 FROM tasks"),
        select(literal_column("tasks.id")),
        select(T.c.id).where(text("tasks.id IS NOT NULL")),
        select(T.c.id).where(T.c.id.in_(select(literal_column("x")).select_from(text("logged")))),
    ],
)
def test_text_that_names_a_table_fails(statement):
    """Text and literal columns are both noticed, for every table of the metadata."""
    assert text_tables(MODEL, "", statement)


def test_text_without_a_table_passes():
    """A literal may spell a table's name within quotes, and others name none."""
    assert not text_tables(MODEL, "", select(literal_column("'tasks'"), literal_column("1")))


@pytest.mark.parametrize(
    "statement",
    [
        select(func.pg_advisory_lock(1)),
        select(T.c.id).where(func.pg_try_advisory_lock_shared(T.c.attempt)),
        select(func.set_config("work_mem", "1MB", literal_column("false"))),
        text("SET work_mem = '1MB'"),
        text("LISTEN tasks"),
        text("DECLARE c CURSOR WITH HOLD FOR SELECT 1"),
        text("PREPARE p AS SELECT 1"),
        text("CREATE TEMPORARY TABLE t ()"),
        text("SELECT 1 INTO TEMP t"),
    ],
)
def test_session_state_fails(statement):
    """Locks, settings, temporary tables and all else that outlives a transaction."""
    assert session_state(MODEL, "", statement)


def test_transaction_state_passes():
    """A lock of the transaction, a notification, and words that only look like state."""
    assert not session_state(MODEL, "", select(func.pg_advisory_xact_lock(1)))
    assert not session_state(MODEL, "", select(func.pg_notify("set_config", "temp")))
    assert not session_state(MODEL, "", select(literal_column("'LISTEN temp'")))


@pytest.mark.parametrize(
    "statement",
    [
        ended(T.c.id.in_(LOCKING)),
        ended(T.c.id == LOCKING.scalar_subquery()),
        ended(T.c.id.in_(select(LOCKING.cte().c.id))),
        ended(T.c.id.in_(select(LOCKING.cte().prefix_with("NOT MATERIALIZED").c.id))),
        ended(T.c.id == LOCKING.subquery().c.id),
        select(T.c.id).with_for_update(),
        select(T.c.id).with_for_update(read=True),
    ],
)
def test_loose_locks_fail(statement):
    """A locking subselect that may run again is noticed, and a lock of another strength."""
    assert loose_locks(MODEL, "", statement)


def test_locks_that_run_once_pass():
    """A locking statement, and a locking subselect in a materialised CTE."""
    assert not loose_locks(MODEL, "", LOCKING)
    picked = LOCKING.cte().prefix_with("MATERIALIZED")
    assert not loose_locks(MODEL, "", ended(T.c.id.in_(select(picked.c.id))))


@pytest.mark.parametrize(
    ("name", "fence"),
    [
        ("finish.complete('id', 'token')", []),
        ("finish.complete('id', 'token')", [CLAIMED]),
        (
            "finish.fail('id', 'token', 'retry')",
            [CLAIMED, T.c.lease_token == bindparam("tq_token")],
        ),
        ("lease.heartbeat('id', 'holder')", [CLAIMED]),
        ("lease.heartbeat('id', 'holder')", [T.c.claimed_by == bindparam("tq_worker")]),
        (
            "finish.release('id', 'holder')",
            [CLAIMED, T.c.claimed_by == bindparam("tq_worker")],
        ),
        (
            "finish.snooze('id', 'holder')",
            [
                T.c.claimed_by == bindparam("tq_worker"),
                T.c.claimed_session == bindparam("tq_session"),
            ],
        ),
        ("finish.complete('id', 'live')", []),
    ],
)
def test_unfenced_ends_fail(name, fence):
    """Half a fence is none; the token's comparison must be the one expression."""
    assert unfenced(MODEL, name, ended(*BY_ID, *fence))


def test_a_fence_on_the_wrong_part_fails():
    """A fence beside a subselect that names the task without it does not count."""
    picked = select(T.c.id).where(*BY_ID).cte().prefix_with("MATERIALIZED")
    holder = [
        T.c.claimed_by == bindparam("tq_worker"),
        T.c.claimed_session == bindparam("tq_session"),
    ]
    within = T.c.id == any_(func.array(select(picked.c.id).scalar_subquery()))
    name = "finish.complete('id', 'holder')"
    assert unfenced(MODEL, name, ended(within, CLAIMED, *holder))
    assert not unfenced(MODEL, name, ended(*BY_ID, CLAIMED, *holder))


@pytest.mark.parametrize(
    "statement",
    [
        select(T.c.id).where(T.c.name == "x"),
        select(T.c.id).limit(5),
        select(T.c.id).where(T.c.name == bindparam("name")),
        update(Task).values(name=bindparam("name")),
        delete(Task).where(T.c.attempt > 3),
        select(T.c.attempt + 1),
    ],
)
def test_stray_binds_fail(statement):
    """A literal that became a bind, and a bind without the prefix, are noticed."""
    assert stray_binds(MODEL, "", statement)


def test_columns_of_an_insert_are_no_stray_binds():
    """The parameters of an INSERT are named by column."""
    assert not stray_binds(MODEL, "", insert(Task).values(name=bindparam("name")))
    assert not stray_binds(MODEL, "", select(T.c.id).limit(bindparam("tq_limit", type_=Integer)))
