"""Offsets go through a checkpoint and come back; what is none is refused."""

from __future__ import annotations

import json

import pytest

from bridge.errors import StateError
from bridge.source.offset import Offset
from protocol.lsn import Lsn


@pytest.mark.parametrize("timeline", [None, 3])
def test_round_trip(timeline):
    offset = Offset(Lsn.parse("16/B374D848"), "7300000000000000001", timeline)
    assert Offset.of(json.loads(json.dumps(offset.to_json()))) == offset


@pytest.mark.parametrize("found", [{}, {"lsn": "x", "system_identifier": "1"}, {"lsn": 5, "system_identifier": "1"}])
def test_what_is_no_offset(found):
    with pytest.raises(StateError, match="did not write") as caught:
        Offset.of(found)
    assert "checkpointLocation" in caught.value.hint
