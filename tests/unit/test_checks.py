"""Checks of arguments: at, below and above every limit."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest

from sqla_taskqueue import InvalidArgument, checks
from sqla_taskqueue.errors import ScopeMissing, TaskQueueError, UnsupportedDialect, shorten

CENTURY = timedelta(days=36_500)
MOMENT = timedelta(microseconds=1)


class Word(str):
    __slots__ = ()


# --- Text --------------------------------------------------------------------------------------


@pytest.mark.parametrize("character", ["x", "é", "語", "😀"])
def test_text_is_limited_in_characters_or_bytes(character):
    """The two limits count different things, and each takes exactly its number."""
    size = len(character.encode())
    assert checks.text("a", character * 5, characters=5) == character * 5
    assert checks.text("a", character * 5, size=5 * size) == character * 5
    with pytest.raises(InvalidArgument, match="has 6 characters; the limit is 5"):
        checks.text("a", character * 6, characters=5)
    with pytest.raises(InvalidArgument, match=f"is {6 * size} bytes .* the limit is {5 * size}"):
        checks.text("a", character * 6, size=5 * size)


@pytest.mark.parametrize("value", [None, 5, b"x", ["x"], object()])
def test_text_must_be_text(value):
    """Anything else is refused, naming its type."""
    with pytest.raises(InvalidArgument, match=f"must be text, not {type(value).__name__}"):
        checks.text("a", value)


@pytest.mark.parametrize("value", ["a\x00b", "\ud800", "\udc00x"])
def test_text_must_be_storable(value):
    """NUL and lone surrogates are refused, not cleaned: names must mean what they say."""
    with pytest.raises(InvalidArgument, match="NUL or a lone surrogate"):
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


def test_text_subclasses_become_plain_text():
    """Drivers may not know a host's own text class."""
    assert type(checks.text("a", Word("x"))) is str


# --- Numbers -----------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [True, False, 1.0, "1", None])
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
        datetime(9000, 1, 1, tzinfo=UTC),
    ],
)
def test_moments(value):
    """A time of any zone, in seven thousand years."""
    assert checks.moment("m", value) is value


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


# --- Errors ------------------------------------------------------------------------------------


def test_errors_say_what_was_given():
    """The argument and the value are attributes, and stand in the message."""
    error = InvalidArgument("limit", 0, "must be more")
    assert str(error) == "limit=0: must be more"
    assert (error.argument, error.value) == ("limit", 0)
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
