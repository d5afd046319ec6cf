"""Checks of arguments: at, below and above every limit."""

from __future__ import annotations

import pickle
from datetime import UTC, datetime, timedelta, timezone, tzinfo

import pytest

from sqla_taskqueue import (
    Fixed,
    Holder,
    InvalidArgument,
    InvalidPayload,
    LeaseLost,
    Refused,
    TaskSpec,
    checks,
)
from sqla_taskqueue.errors import (
    EnqueueConflict,
    ScopeMissing,
    TaskExists,
    TaskQueueError,
    UnsupportedDialect,
    shorten,
)
from sqla_taskqueue.retry import policy_or
from sqla_taskqueue.values import RefusalReason
from tests.strange import Array, Colour, Fruit, Level

CENTURY = timedelta(days=36_500)
MOMENT = timedelta(microseconds=1)


class Word(str):
    __slots__ = ()


class Number:
    """Like a number of numpy, which is no `int`."""

    def __index__(self):
        return 3


# --- Text --------------------------------------------------------------------------------------


@pytest.mark.parametrize("character", ["x", "é", "語", "😀"])
def test_text_is_limited_in_characters_or_bytes(character):
    """The two limits count different things, and each takes exactly its number."""
    size = len(character.encode())
    assert checks.text("a", character * 5, characters=5) == character * 5
    assert checks.text("a", character * 5, size=5 * size) == character * 5
    with pytest.raises(InvalidArgument, match="has 6 characters; the limit is 5"):
        checks.text("a", character * 6, characters=5)
    with pytest.raises(InvalidArgument, match=f"has {6 * size} bytes .* the limit is {5 * size}"):
        checks.text("a", character * 6, size=5 * size)


@pytest.mark.parametrize("value", [None, 5, b"x", ["x"], object()])
def test_text_must_be_text(value):
    """Anything else is refused, naming its type."""
    with pytest.raises(InvalidArgument, match=f"must be text, not {type(value).__name__}"):
        checks.text("a", value)


@pytest.mark.parametrize(
    ("value", "problem"),
    [("a\x00b", r"NUL \(U\+0000\)"), ("\ud800", "surrogate"), ("\udc00x", "surrogate")],
)
def test_text_must_be_storable(value, problem):
    """NUL and lone surrogates are refused, not cleaned: names must mean what they say."""
    with pytest.raises(InvalidArgument, match=f"a=.* contains .*{problem}"):
        checks.text("a", value)


def test_empty_text_is_refused_unless_allowed():
    """'' is a value only where the argument says so."""
    with pytest.raises(InvalidArgument, match="must not be empty"):
        checks.text("a", "")
    assert checks.text("a", "", empty=True) == ""


def test_text_is_trimmed_before_it_is_judged():
    """Blanks around it do not count, and nothing but blanks is empty."""
    assert checks.text("a", "  x y\n", characters=3, trim=True) == "x y"
    with pytest.raises(InvalidArgument, match="must not be empty"):
        checks.text("a", " \t\n", trim=True)
    assert checks.text("a", " x ") == " x "


@pytest.mark.parametrize("trim", [False, True])
@pytest.mark.parametrize(
    ("value", "plain"), [(Word("x"), "x"), (Colour.RED, "red"), (Fruit.APPLE, "apple")]
)
def test_text_subclasses_become_plain_text(value, plain, trim):
    """Drivers may not know a host's own text class, and `str()` of a member may be its name."""
    text = checks.text("a", value, trim=trim)
    assert (type(text), text) == (str, plain)


@pytest.mark.parametrize("value", ["yes", "no", Word("yes")])
def test_a_choice_is_one_of_the_options(value):
    """Any text that is equal to one of them will do."""
    checks.choice("a", value, "yes", "no")


@pytest.mark.parametrize("value", ["maybe", "", None, True, ["yes"], Array()])
def test_other_choices_are_refused(value):
    """Whatever else, also what compares in ways of its own: the message names the options."""
    with pytest.raises(InvalidArgument, match=r"^a=.* must be 'yes' or 'no'$"):
        checks.choice("a", value, "yes", "no")


def test_a_flag_is_true_or_false():
    """Nothing is taken for one of them because of what `bool()` says of it: not even "false"."""
    assert checks.flag("a", True) is True
    assert checks.flag("a", False) is False
    for value in (None, 0, 1, "", "false", [], Array()):
        with pytest.raises(InvalidArgument, match="must be True or False"):
            checks.flag("a", value)


@pytest.mark.parametrize("value", [[1, 2], (1, 2), range(1, 3), iter([1, 2])])
def test_items_have_an_order(value):
    """Lists, tuples, generators: whatever can be iterated in an order of its own."""
    assert checks.items("a", value, "numbers") == [1, 2]


@pytest.mark.parametrize(
    "value", [None, 5, "12", b"12", bytearray(b"12"), {1: 2}, {1, 2}, frozenset(), TaskSpec()]
)
def test_other_items_are_refused(value):
    """Text is no list of characters, a set has no order, and one item is no list."""
    match = f"a list, or another iterable, of numbers, not {type(value).__name__}"
    with pytest.raises(InvalidArgument, match=match):
        checks.items("a", value, "numbers")


# --- Numbers -----------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [True, False, 1.0, "1", None, Number(), Array()])
def test_whole_numbers_must_be_whole_numbers(value):
    """Booleans, floats and text are no numbers of something."""
    with pytest.raises(
        InvalidArgument, match=f"must be a whole number, not {type(value).__name__}"
    ):
        checks.whole("n", value, least=0, most=10)


def test_whole_numbers_have_bounds():
    """Both bounds are allowed, and nothing beyond them."""
    assert [checks.whole("n", n, least=1, most=1_000) for n in (1, 1_000)] == [1, 1_000]
    for value in (0, 1_001, -1, 10**5_000):
        with pytest.raises(InvalidArgument, match="must lie between 1 and 1,000"):
            checks.whole("n", value, least=1, most=1_000)


def test_number_subclasses_become_plain_numbers():
    """A member of an enum of numbers is the number."""
    number = checks.whole("n", Level.HIGH, least=0, most=5)
    assert (type(number), number) == (int, 3)


@pytest.mark.parametrize("value", [-32_768, 0, 32_767])
def test_a_priority_is_a_smallint(value):
    """All of PostgreSQL's smallint, and no more."""
    assert checks.priority(value) == value


@pytest.mark.parametrize("value", [-32_769, 32_768, 1.5, True, None])
def test_other_priorities_are_refused(value):
    """One beyond the ends, and what is no number."""
    with pytest.raises(InvalidArgument, match="priority="):
        checks.priority(value)


@pytest.mark.parametrize("value", [None, 1, 2**31 - 1])
def test_attempts_may_be_endless(value):
    """None is no limit."""
    assert checks.max_attempts(value) == value


@pytest.mark.parametrize("value", [0, -1, 2**31, True, "3"])
def test_attempts_are_at_least_one(value):
    """Zero, negatives and more than an integer holds are refused (B13)."""
    with pytest.raises(InvalidArgument, match="max_attempts="):
        checks.max_attempts(value)


# --- Times -------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [timedelta(0), MOMENT, CENTURY])
def test_durations(value):
    """From nothing to a century."""
    assert checks.duration("d", value) == value


@pytest.mark.parametrize("value", [-MOMENT, CENTURY + MOMENT, timedelta.max, 5, None, "1h"])
def test_other_durations_are_refused(value):
    """Negative ones, longer ones, and numbers of seconds."""
    with pytest.raises(InvalidArgument, match="d="):
        checks.duration("d", value)


@pytest.mark.parametrize(
    "value",
    [
        datetime(1900, 1, 1, tzinfo=UTC),
        datetime(2026, 1, 1, tzinfo=timezone(timedelta(hours=14))),
        datetime(2026, 1, 1, tzinfo=timezone(timedelta(hours=23, minutes=59))),
        datetime(2026, 1, 1, tzinfo=timezone(timedelta(hours=1, seconds=7, microseconds=3))),
        datetime(9000, 1, 1, tzinfo=UTC),
    ],
)
def test_moments(value):
    """A time of any zone, in seven thousand years: the same time in UTC."""
    assert checks.moment("m", value) == value
    assert checks.moment("m", value).tzinfo is UTC


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (datetime(2026, 1, 1), "no time zone"),  # noqa: DTZ001 - it is the point
        (datetime(1899, 12, 31, tzinfo=UTC), "between the years"),
        (datetime.max.replace(tzinfo=UTC), "between the years"),
        (datetime.min.replace(tzinfo=UTC), "between the years"),
        (datetime.min.replace(tzinfo=timezone(timedelta(hours=14))), "between the years"),
        (datetime.max.replace(tzinfo=timezone(timedelta(hours=-14))), "between the years"),
        ("2026-01-01", "must be a datetime, not str"),
        (1_700_000_000, "must be a datetime, not int"),
    ],
)
def test_other_moments_are_refused(value, problem):
    """Times without a zone, beyond the drivers' reach, or of another type."""
    with pytest.raises(InvalidArgument, match=problem):
        checks.moment("m", value)


@pytest.mark.parametrize(
    ("error", "problem"), [(OverflowError, "between the years"), (OSError, "raises OSError")]
)
def test_zones_that_cannot_tell_the_time(error, problem):
    """Time zones of some libraries raise far from today: that is a typed error as well."""

    class Zone(tzinfo):
        def utcoffset(self, when):
            raise error

    with pytest.raises(InvalidArgument, match=problem):
        checks.moment("m", datetime(1, 1, 1, tzinfo=Zone()))


# --- Policies ----------------------------------------------------------------------------------


def test_a_policy_is_the_given_one_or_the_default():
    """Only None means the default; whatever has a `delay()` is a policy."""

    class Never:
        def delay(self, attempt):
            raise NotImplementedError

        def __bool__(self):
            return False

    given, default = Never(), Fixed()
    assert policy_or(default, given) is given
    assert policy_or(default, None) is default


@pytest.mark.parametrize("value", [0, "", [], 5, timedelta(0), Fixed, TaskSpec(), Holder("w")])
def test_other_policies_are_refused(value):
    """Not even a class with the method, nor what happens to count as False."""
    with pytest.raises(InvalidArgument, match=r"^retry=.* must have a method delay\(attempt\)"):
        policy_or(Fixed(), value)


# --- Errors ------------------------------------------------------------------------------------


def test_errors_say_what_was_given():
    """The argument, the value and the problem are attributes, and make the message."""
    error = InvalidArgument("limit", 0, "must be more")
    assert str(error) == "limit=0 must be more"
    assert (error.argument, error.place, error.value) == ("limit", "", 0)
    assert error.problem == "must be more"
    assert isinstance(error, ValueError)
    assert isinstance(error, TaskQueueError)


def test_long_values_are_shortened():
    """A megabyte of payload does not end up in a log line."""
    assert len(str(InvalidArgument("x", "y" * 10_000, "is long"))) < 110
    assert shorten("short") == "'short'"


def test_values_without_a_repr_are_shown():
    """A host's `__repr__` that raises does not hide the error."""

    class Raising:
        def __repr__(self):
            raise ZeroDivisionError

    assert shorten(Raising()) == "<Raising whose repr raises ZeroDivisionError>"
    assert "ValueError" in shorten(10**5_000)


class Items(list):
    __slots__ = ()


def nested(levels, kind=list):
    """Return lists within lists, each twice in the one around it: 2 ** levels of them."""
    value = kind()
    for _ in range(levels):
        value = kind([value, value])
    return value


@pytest.mark.parametrize(
    "value",
    [
        pytest.param("é" * 50_000_000, id="long text"),
        pytest.param(Word("é" * 1_000_000), id="long text of another class"),
        pytest.param(b"\xff" * 50_000_000, id="long bytes"),
        pytest.param(nested(100), id="twice in itself"),
        pytest.param(list(range(1_000_000)), id="long list"),
        pytest.param(nested(100, Items), id="another class of list twice in itself"),
        pytest.param(dict.fromkeys(range(1_000_000)), id="large dict"),
    ],
)
def test_large_values_are_not_written_out(value):
    """Only the beginning of a value is looked at: some have more to show than memory holds."""
    shown = shorten(value)
    assert 70 <= len(shown) <= 80
    assert shown.endswith(("…", "...]", "...}"))
    assert shown[:2] in {"'é", "b'", "[[", "[0", "{0"}


def test_an_error_within_an_argument_names_the_place():
    """In a batch, the same error names the part; its class and attributes stay."""
    error = InvalidPayload("payload", b"x", "is of type bytes", "['a'][1]").within("specs[3]")
    assert type(error) is InvalidPayload
    assert str(error) == "specs[3].payload['a'][1]=b'x' is of type bytes"
    assert (error.argument, error.place) == ("specs[3].payload", "['a'][1]")
    assert (error.value, error.problem) == (b"x", "is of type bytes")


@pytest.mark.parametrize(
    "error",
    [
        InvalidArgument("limit", 0, "must be more"),
        InvalidPayload("payload", b"x", "is of type bytes", "['a']"),
        ScopeMissing("builds", "claim", ["project"]),
        UnsupportedDialect("sqlite"),
        TaskExists("task 'k'", 5, "queued"),
        EnqueueConflict("uq_number", "tasks"),
        LeaseLost(Refused(RefusalReason.GONE, "task 'k'")),
    ],
    ids=lambda error: type(error).__name__,
)
def test_errors_travel_between_processes(error):
    """A pool of processes hands errors over by pickle: class, message and attributes arrive."""
    arrived = pickle.loads(pickle.dumps(error))
    assert type(arrived) is type(error)
    assert str(arrived) == str(error)
    assert arrived.__dict__.keys() == error.__dict__.keys()
    assert repr(arrived.__dict__) == repr(error.__dict__)


def test_a_missing_scope_says_how_to_bind_it():
    """The message names the columns and the call."""
    error = ScopeMissing("builds", "claim", ["project", "role"])
    assert error.missing == ("project", "role")
    assert "claim on queue 'builds'" in str(error)
    assert "queue.scope(project=…, role=…)" in str(error)


def test_another_database_is_named():
    """The error says what is needed and what was given."""
    error = UnsupportedDialect("sqlite")
    assert error.dialect == "sqlite"
    assert "PostgreSQL" in str(error)
    assert "'sqlite'" in str(error)
