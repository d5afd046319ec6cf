"""User data on its way to the database: what is refused, and what is cleaned (B15, B16)."""

from __future__ import annotations

import json
import math
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import IntEnum, StrEnum
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sqla_taskqueue import InvalidArgument, InvalidPayload
from sqla_taskqueue.payloads import (
    MAX_DEPTH,
    check_payload,
    clean_json,
    clean_text,
    error_text,
    json_size,
    safe_str,
)

MIB = 1 << 20

good_text = st.text(st.characters(blacklist_categories=("Cs",), blacklist_characters="\x00"))
any_text = st.text(st.characters())  # NUL and lone surrogates included
good_json = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | good_text,
    lambda inner: st.lists(inner) | st.dictionaries(good_text, inner),
    max_leaves=30,
)


class Colour(StrEnum):
    RED = "red"


class Level(IntEnum):
    HIGH = 3


class Raising:
    """An object that has no text."""

    def __str__(self):
        raise ZeroDivisionError

    __repr__ = __str__


class Speechless:
    """An object whose text raises, and whose `repr` does not, for the reports of a failure."""

    def __str__(self):
        raise ZeroDivisionError


class Odd:
    def __str__(self):
        return "odd \x00 \ud800"


anything = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | any_text
    | st.binary()
    | st.decimals()
    | st.datetimes()
    | st.uuids()
    | st.sampled_from([Speechless(), Odd(), {1, 2}, object(), Odd, 10**4_000, -(10**400)]),
    lambda inner: (
        st.lists(inner)
        | st.tuples(inner, inner)
        | st.dictionaries(
            any_text
            | st.integers()
            | st.floats()
            | st.sampled_from([Colour.RED, Odd(), 10**4_000]),
            inner,
        )
    ),
    max_leaves=20,
)


def nested(depth, inner=None):
    """Return *inner* within *depth* lists."""
    for _ in range(depth):
        inner = [inner]
    return inner


def storable(value):
    """Tell whether PostgreSQL takes *value* as jsonb, as far as its text shows."""
    encoded = json.dumps(value, allow_nan=False, ensure_ascii=False)
    encoded.encode()
    return "\\u0000" not in encoded and json.loads(encoded) == value


# --- Payloads are checked ----------------------------------------------------------------------


@given(good_json)
def test_what_is_accepted_reads_back_equal(value):
    """Every plain JSON value passes, and the same value comes out of its encoded form."""
    check_payload("payload", value, MIB)
    assert json.loads(json.dumps(value)) == value


@given(anything)
def test_what_is_accepted_is_storable(value):
    """Whatever is given: a typed error, or a value that encodes as strict JSON."""
    try:
        check_payload("payload", value, MIB)
    except InvalidPayload:
        pass
    else:
        encoded = json.dumps(value, allow_nan=False, ensure_ascii=False)
        encoded.encode()
        assert "\\u0000" not in encoded


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        pytest.param("a\x00b", "NUL", id="NUL"),
        pytest.param({"a\x00b": 1}, "NUL", id="NUL in a key"),
        pytest.param("\ud800", "surrogate", id="surrogate"),
        pytest.param({"\udfff": 1}, "surrogate", id="surrogate in a key"),
        pytest.param(math.nan, "finite", id="NaN"),
        pytest.param(math.inf, "finite", id="inf"),
        pytest.param(-math.inf, "finite", id="-inf"),
        pytest.param(Decimal("1.5"), "Decimal", id="Decimal"),
        pytest.param(datetime(2026, 1, 1, tzinfo=UTC), "datetime", id="datetime"),
        pytest.param(date(2026, 1, 1), "date", id="date"),
        pytest.param(UUID(int=7), "UUID", id="UUID"),
        pytest.param(b"bytes", "bytes", id="bytes"),
        pytest.param({1, 2}, "set", id="set"),
        pytest.param(frozenset(), "frozenset", id="frozenset"),
        pytest.param(iter([1]), "iterator", id="iterator"),
        pytest.param(Raising(), "Raising", id="repr raises"),
        pytest.param({1: "a"}, "key 1", id="whole number as key"),
        pytest.param({None: "a"}, "key None", id="None as key"),
        pytest.param({("a", "b"): 1}, "key", id="tuple as key"),
        pytest.param({Raising(): 1}, "key", id="key whose repr raises"),
        pytest.param(10**1_000, "digits", id="1,001 digits"),
        pytest.param(10**5_000, "digits", id="5,001 digits"),
        pytest.param(-(10**5_000), "digits", id="5,001 digits, negative"),
        pytest.param({10**5_000: 1}, "key", id="5,001 digits as key"),
    ],
)
@pytest.mark.parametrize("wrap", [lambda v: v, lambda v: {"a": [0, {"b": v}]}], ids=["", "nested"])
def test_what_json_cannot_hold_is_refused(value, problem, wrap):
    """Each is one typed error that names the argument and the problem, wherever it sits."""
    with pytest.raises(InvalidPayload, match=problem) as caught:
        check_payload("payload", wrap(value), MIB)
    assert caught.value.argument == "payload"
    assert isinstance(caught.value, InvalidArgument)
    assert isinstance(caught.value, ValueError)


def test_the_message_names_the_place():
    """A person finds the flaw in a large payload by the path in the message."""
    with pytest.raises(InvalidPayload, match=r"payload\['users'\]\[1\]\['born'\] is a date"):
        check_payload("payload", {"users": [{}, {"born": date(2000, 1, 1)}]}, MIB)


@pytest.mark.parametrize(
    "value",
    [
        pytest.param(10**400, id="401 digits"),
        pytest.param(-(10**999), id="1,000 digits, negative"),
        pytest.param(10**1_000 - 1, id="1,000 digits"),
        (1, (2, "x")),
        {"": {"": []}},
        "\U0001f600 \u2028 \uffff",
        Colour.RED,
        Level.HIGH,
        5e-324,
        1.7976931348623157e308,
        "\\u0000",
        "\x01\x1f\x7f",
    ],
)
def test_unusual_values_are_accepted(value):
    """Long numbers, tuples, empty keys, enums, control characters: JSON knows them all."""
    check_payload("payload", value, MIB)
    json.dumps(value, allow_nan=False)


def test_depth_is_limited():
    """A hundred levels pass, one more does not, of lists, tuples or objects."""
    check_payload("payload", nested(MAX_DEPTH), MIB)
    with pytest.raises(InvalidPayload, match="deeper than 100"):
        check_payload("payload", nested(MAX_DEPTH + 1), MIB)
    deep = 1
    for _ in range(MAX_DEPTH + 1):
        deep = {"a": deep}
    with pytest.raises(InvalidPayload, match="deeper than 100"):
        check_payload("payload", deep, MIB)


def test_very_deep_values_are_refused_without_exhausting_the_stack():
    """Ten thousand levels are the same typed error, not a RecursionError."""
    with pytest.raises(InvalidPayload, match="deeper than 100"):
        check_payload("payload", nested(10_000), MIB)


def test_a_value_within_itself_is_refused():
    """What contains itself has no end."""
    value = {"a": []}
    value["a"].append(value)
    with pytest.raises(InvalidPayload, match=r"payload\['a'\]\[0\] contains itself"):
        check_payload("payload", value, MIB)


@pytest.mark.parametrize("character", ["x", "é", "語", "😀"])
def test_the_size_is_counted_in_bytes(character):
    """The limit is one of encoded bytes: at it passes, one byte above does not."""
    value = {"k": character * 50}
    size = json_size(value)
    assert size == len('{"k":""}') + 50 * len(character.encode())
    check_payload("payload", value, size)
    check_payload("payload", value, size + 1)
    with pytest.raises(InvalidPayload, match=f"{size:,} bytes of JSON; the limit is {size - 1:,}"):
        check_payload("payload", value, size - 1)


@pytest.mark.parametrize("value", [None, True, 0, "", [], {}])
def test_the_smallest_values_are_accepted(value):
    """Nothing is a payload, too."""
    check_payload("payload", value, 5)


# --- Results and errors are cleaned ------------------------------------------------------------


@given(anything)
def test_cleaning_always_gives_something_storable(value):
    """`clean_json` raises for nothing and returns what strict JSON holds without NUL."""
    assert storable(clean_json(value))


@given(good_json)
def test_cleaning_leaves_good_values_alone(value):
    """What is storable already comes back equal."""
    assert clean_json(value) == value


@given(anything)
def test_cleaning_twice_changes_nothing_more(value):
    """A cleaned value is clean."""
    once = clean_json(value)
    assert clean_json(once) == once
    check_payload("result", once, 1 << 30)


@pytest.mark.parametrize(
    ("value", "cleaned"),
    [
        ({"x": "a\x00b"}, {"x": "a\ufffdb"}),
        ({"a\x00b": 1}, {"a\ufffdb": 1}),
        (["\ud800"], ["\ufffd"]),
        (math.nan, "nan"),
        ([math.inf, -math.inf], ["inf", "-inf"]),
        (Decimal("1.50"), "1.50"),
        (datetime(2026, 1, 2, 3, 4, tzinfo=UTC), "2026-01-02 03:04:00+00:00"),
        (UUID(int=7), "00000000-0000-0000-0000-000000000007"),
        (b"ab", "b'ab'"),
        ((1, 2), [1, 2]),
        ({1: "a", None: "b"}, {"1": "a", "None": "b"}),
        pytest.param(10**400, 10**400, id="401 digits"),
        pytest.param(10**5_000, "a number too long to store", id="5,001 digits"),
        pytest.param(
            {10**5_000: 1}, {"<int whose text raises ValueError>": 1}, id="5,001 digits as key"
        ),
        (Raising(), "<Raising whose text raises ZeroDivisionError>"),
        ({"a": Odd()}, {"a": "odd \ufffd \ufffd"}),
    ],
)
def test_results_are_changed_no_more_than_needed(value, cleaned):
    """Numbers that JSON does not know, and other objects, become text; the rest stays."""
    assert clean_json(value) == cleaned


def test_what_nests_too_deep_becomes_text():
    """The upper levels stay as they are, the rest is left out; at the limit nothing changes."""
    assert clean_json(nested(MAX_DEPTH, 7)) == nested(MAX_DEPTH, 7)
    cleaned = clean_json(nested(MAX_DEPTH + 5, 7))
    assert cleaned == nested(MAX_DEPTH, "…")
    assert storable(cleaned)
    assert storable(clean_json(nested(20_000)))


def test_a_result_within_itself_is_cleaned():
    """A value that contains itself comes to an end."""
    value = {"a": 1}
    value["self"] = value
    assert storable(clean_json(value))


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda v: v.extend([v, v]), id="itself twice"),
        pytest.param(lambda v: v.extend([[v], {"a": v}, (v, v)]), id="in several ways"),
    ],
)
def test_a_result_that_branches_into_itself_is_cleaned_quickly(make):
    """Two references to itself double at every level: the work must be bounded all the same."""
    value = []
    make(value)
    budget = Budget(200_000)
    with budget:
        assert storable(clean_json(value))


class Budget:
    """Raise once the block has made too many calls: a bound on work that no clock is asked for."""

    def __init__(self, calls):
        self.left = calls

    def _count(self, frame, event, argument):
        self.left -= event == "call"
        if self.left < 0:
            raise AssertionError("too many calls")

    def __enter__(self):
        import sys

        self.before = sys.getprofile()
        sys.setprofile(self._count)

    def __exit__(self, *error):
        import sys

        sys.setprofile(self.before)


@given(any_text, st.none() | st.integers(1, 50))
def test_cleaned_text_is_storable_and_short_enough(text, limit):
    """NUL and lone surrogates are replaced one for one, and a limit is kept."""
    cleaned = clean_text(text, limit)
    cleaned.encode()
    assert "\x00" not in cleaned
    assert len(cleaned) == (len(text) if limit is None else min(len(text), limit))


@given(good_text)
def test_good_text_stays(text):
    """Text without a flaw is returned as it is."""
    assert clean_text(text) == text


def test_cut_text_says_so():
    """What was cut ends with an ellipsis, counted within the limit; what just fits is whole."""
    assert clean_text("abcdef", 6) == "abcdef"
    assert clean_text("abcdefg", 6) == "abcde…"
    assert clean_text("語" * 2_000, 1_000) == "語" * 999 + "…"


@pytest.mark.parametrize(
    ("error", "text"),
    [
        ("plain", "plain"),
        ("a\x00b", "a\ufffdb"),
        (ValueError("a\x00b"), "ValueError: a\ufffdb"),
        (ValueError("\ud800"), "ValueError: \ufffd"),
        (ValueError(), "ValueError"),
        (KeyError("x"), "KeyError: 'x'"),
        (ExceptionGroup("two", [ValueError(1)]), "ExceptionGroup: two (1 sub-exception)"),
        (KeyboardInterrupt(), "KeyboardInterrupt"),
    ],
)
def test_error_texts(error, text):
    """An exception is stored as its class and message, a text as itself."""
    assert error_text(error) == text


def test_the_text_of_an_error_whose_str_raises():
    """An exception that cannot say what is wrong is recorded all the same."""

    class Broken(Exception):
        def __str__(self):
            raise RuntimeError

    assert error_text(Broken()) == "Broken: <Broken whose text raises RuntimeError>"
    assert safe_str(Broken()) == "<Broken whose text raises RuntimeError>"


def test_a_str_that_does_not_return_text():
    """A `__str__` that returns something else raises TypeError, which is caught as well."""

    class Wrong:
        def __str__(self):
            return 7  # noqa: PLE0307 - it is the point

    assert clean_json([Wrong()]) == ["<Wrong whose text raises TypeError>"]
