"""Offsets go through a checkpoint and come back; what is none is refused."""

from __future__ import annotations

import json

import pytest

from bridge.runtime.errors import StateError
from bridge.source.offset import Offset, Server
from protocol.lsn import Lsn


@pytest.mark.parametrize(("timeline", "timeline_lsn"), [(None, None), (3, None), (3, Lsn.parse("16/B0000000"))])
def test_round_trip(timeline, timeline_lsn):
    offset = Offset(Lsn.parse("16/B374D848"), "7300000000000000001", timeline, timeline_lsn)
    assert Offset.of(json.loads(json.dumps(offset.to_json()))) == offset


@pytest.mark.parametrize(
    ("found", "timeline"),
    [({}, None), ({"timeline": None}, None), ({"timeline": 2}, 2)],
)
def test_offsets_of_earlier_versions(found, timeline):
    """They had the timeline of a primary for the offset itself, and none of a standby."""
    offset = Offset(Lsn.parse("0/3000110"), "1", timeline)
    assert Offset.of({"lsn": "0/3000110", "system_identifier": "1", **found}) == offset


@pytest.mark.parametrize(
    ("replayed", "certain"),
    [(None, None), ("0/2FFFFFF", "0/2FFFFFF"), ("0/3000110", None), ("0/4000000", None)],
)
def test_the_timeline_is_certain_up_to_what_a_standby_had_replayed(replayed, certain):
    """A primary keeps its timeline; a standby may follow another one from where it is."""
    server = Server("1", 2, None if replayed is None else Lsn.parse(replayed))
    expected = Offset(Lsn.parse("0/3000110"), "1", 2, None if certain is None else Lsn.parse(certain))
    assert server.offset(Lsn.parse("0/3000110")) == expected


@pytest.mark.parametrize("found", [{}, {"lsn": "x", "system_identifier": "1"}, {"lsn": 5, "system_identifier": "1"}])
def test_what_is_no_offset(found):
    with pytest.raises(StateError, match="did not write") as caught:
        Offset.of(found)
    assert "checkpointLocation" in caught.value.hint
