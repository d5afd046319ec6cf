"""User data on its way to the database: what is refused, and what is cleaned (B15, B16)."""

from __future__ import annotations

import json
import math
from datetime import UTC, date, datetime
from decimal import Decimal
from uuid import UUID

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sqla_taskqueue import InvalidArgument, InvalidPayload
from sqla_taskqueue.payloads import (
    MAX_DEPTH,
    check_payload,
    clean_json,
    clean_text,
    encode,
    error_text,
    json_size,
    safe_str,
)
from tests.strange import Colour, Fruit, Level

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


class Apart(str):
    """Text that is equal to nothing but itself."""

    __slots__ = ()

    def __eq__(self, other):
        return self is other

    __hash__ = object.__hash__


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
    return "\\u0000" not in encoded and like(json.loads(encoded), value)


def as_jsonb(value):
    """Return what comes back of *value* from a jsonb, whose numbers are exact decimals."""

    def number(text):
        plain = f"{Decimal(text):f}"
        return float(plain) if "." in plain else int(plain)

    return json.loads(encode(value), parse_float=number)


def like(read, sent):
    """Tell whether *read* is *sent*, for which a tuple is a list and True is not 1."""
    if isinstance(sent, bool | None) or isinstance(read, bool | None):
        return read is sent
    if isinstance(sent, dict):
        return read.keys() == sent.keys() and all(like(read[key], sent[key]) for key in sent)
    if isinstance(sent, list | tuple):
        return len(read) == len(sent) and all(map(like, read, sent))
    return read == sent


# --- Payloads are checked ----------------------------------------------------------------------


@given(good_json)
def test_what_is_accepted_reads_back_equal(value):
    """Every plain JSON value passes, and an equal one comes out of what PostgreSQL keeps."""
    assert like(as_jsonb(check_payload("payload", value, MIB)[0]), value)


@given(anything)
def test_what_is_accepted_is_storable(value):
    """Whatever is given: a typed error, or a value that encodes as strict JSON."""
    try:
        kept, size = check_payload("payload", value, MIB)
    except InvalidPayload as error:
        message = str(error)
    else:
        assert storable(kept)
        assert like(kept, value)
        assert size == json_size(kept)
        return
    assert message.startswith("payload")
    assert len(message) < 2_000


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
        pytest.param(10**640, "digits", id="641 digits"),
        pytest.param(10**5_000, "digits", id="5,001 digits"),
        pytest.param(-(10**5_000), "digits", id="5,001 digits, negative"),
        pytest.param({10**5_000: 1}, "key", id="5,001 digits as key"),
        pytest.param({Apart("a"): 1, "a": 2}, "two keys of the same text", id="equal keys"),
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
    with pytest.raises(InvalidPayload) as caught:
        check_payload("payload", {"users": [{}, {"born": date(2000, 1, 1)}]}, MIB)
    assert str(caught.value) == (
        "payload['users'][1]['born']=datetime.date(2000, 1, 1) is of type date, "
        "which JSON cannot express"
    )
    assert caught.value.argument == "payload"
    assert caught.value.place == "['users'][1]['born']"
    assert caught.value.value == date(2000, 1, 1)


def test_the_message_is_short_however_long_the_path():
    """Of a hundred long keys the message shows the first and the last."""
    value = object()
    for number in range(MAX_DEPTH):
        value = {f"{number} " + "x" * 10_000: value}
    with pytest.raises(InvalidPayload) as caught:
        check_payload("payload", value, 1 << 30)
    message = str(caught.value)
    assert len(message) < 2_000
    assert message.index("'99 ") < message.index("…]…['") < message.index("['0 ")


@pytest.mark.parametrize(
    "value",
    [
        pytest.param(10**400, id="401 digits"),
        pytest.param(-(10**639), id="640 digits, negative"),
        pytest.param(10**640 - 1, id="640 digits"),
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
    assert like(as_jsonb(check_payload("payload", value, MIB)[0]), value)


@given(st.floats(allow_nan=False, allow_infinity=False))
@example(1e15).via("the last power of ten that Python writes without an exponent")
@example(1e16).via("the first with one")
@example(1e23).via("a float that its shortest decimal is not equal to")
@example(-6.02214076e23)
@example(1.7976931348623157e308)
@example(999999999999999.9)
@example(9007199254740993.0)
@example(9999999999999998.0)
@example(5e-324)
@example(-0.0)
def test_every_finite_float_reads_back_equal(value):
    """Large ones as whole numbers: PostgreSQL gives the digits of the decimal that it was sent."""
    for payload in (value, [value], {"a": (1, {"b": value})}):
        assert like(as_jsonb(check_payload("payload", payload, MIB)[0]), payload)


def test_only_what_must_change_is_copied():
    """Without large floats, the very payload is sent."""
    payload = {"a": [1e15, {"b": 10**30}]}
    assert check_payload("payload", payload, MIB)[0] is payload
    kept, size = check_payload("payload", {"a": [1e16, {"b": payload}]}, MIB)
    assert size == json_size(kept)
    assert kept == {"a": [10**16, {"b": payload}]}
    assert type(kept["a"][0]) is int


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
    with pytest.raises(InvalidPayload, match=r"payload\['a'\]\[0\]=.* contains itself"):
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
        ({1: "a", "1": "b"}, {"1": "b"}),
        ({"a\x00": 1, "a\ufffd": 2}, {"a\ufffd": 2}),
        (Colour.RED, "red"),
        ({Fruit.APPLE: Fruit.APPLE}, {"apple": "apple"}),
        (Level.HIGH, 3),
        ([1e23, -1e16], [99999999999999991611392, -(10**16)]),
        ([-0.0, 1e15, 5e-324], [0.0, 1e15, 5e-324]),
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
        (
            ExceptionGroup("a\x00", [ValueError("\ud800")]),
            "ExceptionGroup: a\ufffd (1 sub-exception)",
        ),
        (Fruit.APPLE, "apple"),
        (5, "5"),
        (None, ""),
        (b"x", "b'x'"),
        (Raising(), "<Raising whose text raises ZeroDivisionError>"),
    ],
)
def test_error_texts(error, text):
    """An exception is stored as its class and message, a text as itself, all else as its text."""
    assert error_text(error) == text
    assert type(error_text(error)) is str


@pytest.mark.parametrize("text", ["\x00" * 50_000_000, ValueError("\ud800é" * 5_000_000)])
def test_long_error_texts_are_cut_before_they_are_cleaned(text):
    """Megabytes of what must be replaced cost no more than what is kept of them."""
    cut = error_text(text, 1_000)
    assert len(cut) == 1_000
    assert cut[-2:] in {"\ufffd…", "é…"}


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


def test_long_numbers_pass_whatever_python_is_set_to():
    """A process may forbid to read more than 640 digits, but not fewer."""
    import sys

    before = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(sys.int_info.str_digits_check_threshold)
    try:
        for number in (10**640 - 1, -(10**640) + 1):
            assert json.loads(encode(check_payload("payload", [number], MIB)[0])) == [number]
            assert clean_json(number) == number
        with pytest.raises(InvalidPayload, match="has more than 640 digits"):
            check_payload("payload", 10**640, MIB)
        assert clean_json(10**640) == "a number too long to store"
    finally:
        sys.set_int_max_str_digits(before)
