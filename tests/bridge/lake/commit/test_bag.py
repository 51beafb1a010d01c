"""Rows without a key are equal where all their values are the same."""

from __future__ import annotations

import pyarrow as pa

from pgbridge.bridge.lake.commit.bag import Bag, identity, merge_statement
from pgbridge.bridge.targets.target import TargetColumn
from pgbridge.protocol.values.types import resolve


def test_identity_tells_zeros_apart_also_within_arrays():
    assert identity("t.`a`", pa.int32()) == "t.`a`"
    assert identity("t.`a`", pa.float32()) == "CAST(t.`a` AS STRING)"
    assert identity("t.`a`", pa.list_(pa.float64())) == "transform(t.`a`, x -> CAST(x AS STRING))"


def test_merge_statement_deletes_equal_rows_and_inserts_the_others():
    columns = (TargetColumn("a", resolve(23, -1)), TargetColumn("f", resolve(701, -1)))
    assert merge_statement("v", Bag("/l/p", columns), {2: "own", 3: "old"}, {3: "old"}) == (
        "MERGE INTO delta.`/l/p` AS t USING v AS s ON s.action = 'delete' "
        "AND t.`a` <=> s.v_0 AND CAST(t.`f` AS STRING) <=> CAST(s.v_1 AS STRING) "
        "WHEN MATCHED THEN DELETE "
        "WHEN NOT MATCHED AND s.action = 'keep' "
        "THEN INSERT (`a`, `f`, `own`, `old`) VALUES (s.v_0, s.v_1, s.c_2, s.c_3) "
        "WHEN NOT MATCHED AND s.action = 'put' THEN INSERT (`a`, `f`, `old`) VALUES (s.v_0, s.v_1, s.c_3)"
    )
