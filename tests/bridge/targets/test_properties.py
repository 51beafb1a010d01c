"""Which properties of new Delta tables a configuration may have, and what is completed."""

from __future__ import annotations

import pytest

from pgbridge.bridge.targets.properties import VECTORS, as_properties, completed, is_short


def test_values_are_as_delta_writes_them():
    given = {"delta.enablechangedatafeed": True, "delta.checkpointInterval": 20, "team": "Sales", "x": "TRUE"}
    assert as_properties(given) == {
        "delta.enableChangeDataFeed": "true",
        "delta.checkpointInterval": "20",
        "team": "Sales",
        "x": "true",
    }
    assert as_properties("no table") == "no table", "pydantic says so"


@pytest.mark.parametrize(
    "given",
    [
        {"PGBRIDGE.created": True},
        {"delta.appendonly": "True"},
        {"delta.isolationlevel": "SnapshotIsolation"},
        {"delta.settransactionretentionduration": "interval 23 hours"},
        {"delta.deletedfileretentionduration": "6 days"},
        {"delta": {"appendOnly": False}},
        {"a": None},
        {"delta.appendOnly": False, "delta.appendonly": False},
    ],
)
def test_what_pgbridge_cannot_do_with(given):
    with pytest.raises(ValueError, match=r"."):
        as_properties(given)


@pytest.mark.parametrize(
    ("interval", "short"),
    [("interval 1 day", False), ("23 hours 59 minutes", True), ("90000000 milliseconds", False), ("forever", False)],
)
def test_intervals(interval, short):
    assert is_short(interval) == short


@pytest.mark.parametrize(
    ("given", "vectors"),
    [
        ({}, None),
        ({"delta.enableIcebergCompatV2": True}, "false"),
        ({"delta.enableicebergcompatv1": "True"}, "false"),
        ({"delta.enableIcebergCompatV2": False}, None),
        ({"delta.universalFormat.enabledFormats": "iceberg"}, "false"),
        ({"delta.enableIcebergCompatV2": True, "delta.enabledeletionvectors": True}, "true"),
    ],
)
def test_a_table_that_can_have_no_deletion_vectors_says_so(given, vectors):
    """What the user says of them stands: Delta refuses it."""
    assert completed(as_properties(given)).get(VECTORS) == vectors
