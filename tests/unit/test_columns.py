"""Values of keys and scopes: what each type of column takes, and what is refused."""

from __future__ import annotations

import enum
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from uuid import UUID

import pytest
from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Date,
    DateTime,
    Enum,
    Integer,
    LargeBinary,
    Numeric,
    SmallInteger,
    String,
    Text,
    TypeDecorator,
    Uuid,
)
from sqlalchemy.dialects.postgresql import CIDR, CITEXT, ENUM, INET

from sqla_taskqueue import InvalidArgument
from sqla_taskqueue._columns import flaw, usable
from tests.strange import Level

ONE = UUID(int=1)


class Role(enum.StrEnum):
    CODER = "coder"


class Kind(enum.Enum):
    HUMAN = 1


class Trusting(TypeDecorator):
    impl = String
    cache_ok = True


def column(type_):
    """Return a column `c` of this type."""
    return Column("c", type_)


@pytest.mark.parametrize(
    ("type_", "value", "plain"),
    [
        (SmallInteger(), 2**15 - 1, 2**15 - 1),
        (Integer(), -(2**31), -(2**31)),
        (BigInteger(), 2**63 - 1, 2**63 - 1),
        (Integer(), Level.HIGH, 3),
        (Text(), "", ""),
        (Text(), Role.CODER, "coder"),
        (Text(), "x" * 500, "x" * 500),
        (String(3), "äöü", "äöü"),
        (CITEXT(), "x", "x"),
        (Boolean(), True, True),
        (Uuid(), ONE, ONE),
        (Uuid(as_uuid=False), str(ONE), str(ONE)),
        (Uuid(as_uuid=False), ONE.hex, str(ONE)),
        (Date(), date(2030, 2, 28), date(2030, 2, 28)),
        (DateTime(), datetime(2030, 2, 28), datetime(2030, 2, 28)),  # noqa: DTZ001
        (
            DateTime(timezone=True),
            datetime.max.replace(tzinfo=UTC, microsecond=0),
            datetime.max.replace(tzinfo=UTC, microsecond=0),
        ),
        (
            DateTime(timezone=True),
            datetime(2030, 2, 28, 0, 0, 7, tzinfo=timezone(timedelta(seconds=7))),
            datetime(2030, 2, 28, tzinfo=UTC),
        ),
        (Numeric(5, 2), Decimal("1.5"), Decimal("1.5")),
        (LargeBinary(), b"\x00", b"\x00"),
        (Enum("coder", "tester"), "coder", "coder"),
        (Enum(Role), Role.CODER, Role.CODER),
        (Enum(Kind), Kind.HUMAN, Kind.HUMAN),
        (ENUM(Role, name="role"), Role.CODER, Role.CODER),
        # The host's own types, and PostgreSQL's that have none in Python: as they are.
        (Trusting(), "\x00", "\x00"),
        (INET(), "::1", "::1"),
        (CIDR(), 5, 5),
    ],
)
def test_values_that_a_column_takes(type_, value, plain):
    """They come back as plain values of the type; members only where the column is of an enum."""
    taken = usable("id", column(type_), value)
    assert (type(taken), taken) == (type(plain), plain)


@pytest.mark.parametrize(
    ("type_", "value", "problem"),
    [
        (SmallInteger(), 2**15, "must lie between -32,768 and 32,767"),
        (Integer(), 2**31, "must lie between -2,147,483,648 and 2,147,483,647"),
        (Integer(), -(2**31) - 1, "must lie between"),
        (BigInteger(), 2**63, "must lie between"),
        pytest.param(BigInteger(), 10**5_000, "must lie between", id="5,001 digits"),
        (Integer(), True, "c takes int, not bool"),
        (Integer(), 5.0, "c takes int, not float"),
        (Integer(), "5", "c takes int, not str"),
        (Integer(), Decimal(5), "c takes int, not Decimal"),
        (Integer(), None, "c takes int, not NoneType"),
        (Text(), b"x", "c takes str, not bytes"),
        (Text(), "a\x00", "contains NUL"),
        (Text(), "\ud800", "contains a lone surrogate"),
        (Text(), "é" * 251, "has 502 bytes of UTF-8; the limit is 500"),
        (String(3), "abcd", "has 4 characters; the limit is 3"),
        (Uuid(), str(ONE), "c takes UUID, not str"),
        (Uuid(as_uuid=False), ONE, "c takes str, not UUID"),
        (Uuid(as_uuid=False), "x", "must be the text of a UUID"),
        (Uuid(as_uuid=False), "\ud800", "must be the text of a UUID"),
        (Date(), datetime(2030, 2, 28, tzinfo=UTC), "c takes date, not datetime"),
        (DateTime(), datetime(2030, 2, 28, tzinfo=UTC), "must not have a time zone"),
        (DateTime(timezone=True), datetime(2030, 2, 28), "has no time zone"),  # noqa: DTZ001
        (DateTime(timezone=True), date(2030, 2, 28), "c takes datetime, not date"),
        (
            DateTime(timezone=True),
            datetime.min.replace(tzinfo=timezone(timedelta(hours=14))),
            "must lie between the years 1 and 9999",
        ),
        (DateTime(timezone=True), datetime.max.replace(tzinfo=UTC), "as an infinity"),
        (DateTime(timezone=True), datetime.min.replace(tzinfo=UTC), "as an infinity"),
        (DateTime(), datetime.max, "as an infinity"),  # noqa: DTZ901
        (DateTime(), datetime.min, "as an infinity"),  # noqa: DTZ901
        (Date(), date.max, "as an infinity"),
        (Date(), date.min, "as an infinity"),
        (Numeric(5, 2), 1.5, "c takes Decimal, not float"),
        (Enum("coder", "tester"), "poet", "must be one of coder, tester"),
        (Enum(Kind), 1, "c takes Kind, not int"),
        (Enum(Kind), "HUMAN", "c takes Kind, not str"),
    ],
)
def test_values_that_a_column_does_not_take(type_, value, problem):
    """Each is a typed error, before the driver or the database can refuse it in words of theirs."""
    with pytest.raises(InvalidArgument) as caught:
        usable("id", column(type_), value)
    assert problem in caught.value.problem
    assert caught.value.argument == "id"


@pytest.mark.parametrize(
    ("type_", "value", "is_flawed"),
    [
        (Text(), "a\x00", True),
        (String(3), "\ud800", True),
        (Enum("a", "b"), "a\x00", True),
        (Text(), "much longer than any key", False),
        # The driver says what it thinks of these.
        (String(3), "abcd", False),
        (Text(), 5, False),
        (Integer(), "a\x00", False),
        (LargeBinary(), b"\x00", False),
        (Trusting(), "\x00", False),
    ],
)
def test_columns_of_the_hosts_own_are_its_affair(type_, value, is_flawed):
    """Only what no text column can store is found here."""
    assert (flaw(column(type_), value) is not None) is is_flawed
