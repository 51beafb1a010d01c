"""`pgbridge origin` from the shell."""

from __future__ import annotations

import json

from pgbridge.protocol.lsn import Lsn
from tests.fix_cli import catalog_of


def test_origin(two, tmp_path):
    two("status")
    with catalog_of(tmp_path) as catalog:
        catalog.create_origin("shop", Lsn(0x100), "abc", [])
    code, out, err = two("origin", "shop", "--json")
    assert (code, err) == (0, "")
    only = {"subscription": "shop", "external_id": "pgbridge_shop", "remote_lsn": "0/100", "batch": None}
    assert json.loads(out) == {"origins": [only]}
    assert [line.split() for line in two("origin").out.splitlines()[1:]] == [
        ["shop", "pgbridge_shop", "0/100", "-"],
        ["hr", "pgbridge_hr", "-", "-"],
    ]
    assert two("origin", "shop", "--advance", "0/200").out.startswith('origin "pgbridge_shop": 0/100 -> 0/200; ')
    assert two("origin", "--advance", "0/200").err == "pgbridge: --advance needs the name of a subscription\n"
