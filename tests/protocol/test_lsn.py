"""`Lsn` reads and prints what `pg_lsn` does, and is an integer."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given

from pgbridge.protocol.lsn import INVALID, Lsn
from tests import strategies


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("0/0", 0),
        ("0/1", 1),
        ("1/0", 1 << 32),
        ("16/B374D848", 0x16_B374D848),
        ("FFFFFFFF/FFFFFFFF", 2**64 - 1),
    ],
)
def test_text_and_number(text, number):
    assert Lsn.parse(text) == number
    assert str(Lsn(number)) == text
    assert f"{Lsn(number)}" == text
    assert f"{Lsn(number):>20}" == text.rjust(20)
    assert repr(Lsn(number)) == f"Lsn({text})"


@pytest.mark.parametrize("text", ["16/b374d848", " 16/B374D848\n", "00000016/B374D848"])
def test_other_spellings_are_read(text):
    """Lower case and leading zeros, as pg_lsn_in takes them; space around it is the command line's."""
    assert Lsn.parse(text) == Lsn(0x16_B374D848)


@pytest.mark.parametrize("text", ["", "0", "/", "0/", "/0", "0/0/0", "G/0", "0x1/0", "-1/0", "123456789/0", "0 / 0"])
def test_what_pg_lsn_refuses_is_refused(text):
    with pytest.raises(ValueError, match="invalid LSN"):
        Lsn.parse(text)


@pytest.mark.parametrize("number", [-1, 2**64])
def test_out_of_range(number):
    with pytest.raises(ValueError, match="LSN out of range"):
        Lsn(number)


@given(strategies.lsns(), strategies.lsns())
def test_it_is_an_integer_that_survives_its_text(one, other):
    assert Lsn.parse(str(one)) == one
    assert pickle.loads(pickle.dumps(one)) == one
    assert (one < other) == (int(one) < int(other))
    assert one - other == int(one) - int(other)
    assert hash(one) == hash(int(one))


def test_invalid_is_zero():
    assert INVALID == 0
    assert not INVALID
