"""Skip LSNs are accepted and refused as in PostgreSQL, in its words."""

from __future__ import annotations

import pytest

from bridge.runtime.errors import BridgeError
from bridge.track.skip_lsn import parse
from protocol.lsn import Lsn


@pytest.mark.parametrize("remote", [None, 0, 0x14C0377, 0x14C0378])
def test_an_lsn_not_behind_the_origin(remote):
    """A commit record may begin where the one before it ends, which is the origin's LSN."""
    assert parse(" 0/14C0378 ", None if remote is None else Lsn(remote)) == Lsn.parse("0/14C0378")


@pytest.mark.parametrize("text", ["none", "NONE"])
def test_none_takes_it_back(text):
    assert parse(text, Lsn(5)) is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0/14C0376", r"skip WAL location \(LSN 0/14C0376\) must be greater than origin LSN 0/14C0378"),
        ("0/0", r"invalid WAL location \(LSN\): 0/0"),
        ("14C0378", r"invalid WAL location \(LSN\): 14C0378"),
        ("", r"invalid WAL location \(LSN\): "),
    ],
)
def test_refused(text, message):
    with pytest.raises(BridgeError, match=message):
        parse(text, Lsn.parse("0/14C0378"))
