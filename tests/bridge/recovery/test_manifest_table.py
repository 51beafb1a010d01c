"""The Delta table of manifests: the last document of each subscription counts."""

from __future__ import annotations

import pytest

from bridge.catalog.manifest import Due
from bridge.recovery.manifest_table import ManifestTable, _Entry
from bridge.runtime.errors import TargetError

SHOP, HR = "pgbridge/1/shop", "pgbridge/1/hr"


def document(number: int, generation: int = 0) -> Due:
    """A document that says a number."""
    return Due(number, generation, f'{{"tables": {{"number": [[{number}]]}}, "origins": [], "boot_id": "b"}}', "")


@pytest.fixture
def table(tmp_path):
    return ManifestTable(str(tmp_path / "pgbridge" / "subscriptions"))


def number_of(table, spark, origin, slot_name="slot"):
    """What the last document says."""
    latest = table.latest(spark, origin, slot_name)
    return None if latest is None else latest.tables["number"][0][0]


def test_the_last_document_counts(spark, table):
    assert number_of(table, spark, SHOP) is None
    table.append(spark, SHOP, "slot", document(1))
    table.append(spark, SHOP, "slot", document(2))
    table.append(spark, HR, "other", document(3))
    assert number_of(table, spark, SHOP) == 2
    assert number_of(table, spark, SHOP, "other") is None, "it is of another slot"
    again = ManifestTable(table.path)  # another process, whose state directory may be older
    again.append(spark, SHOP, "slot", document(1))
    assert number_of(again, spark, SHOP) == 1
    assert number_of(again, spark, HR, "other") == 3


def test_those_that_wait_share_a_commit(spark, table):
    table.append(spark, SHOP, "slot", document(1))
    before = spark.read.format("delta").load(table.path).inputFiles()
    table._append([_Entry(spark, SHOP, "slot", document(2)), _Entry(spark, HR, "slot", document(5))])
    assert (number_of(table, spark, SHOP), number_of(table, spark, HR)) == (2, 5)
    assert len(spark.read.format("delta").load(table.path).inputFiles()) == len(before) + 1


def test_earlier_ones_are_removed(spark, table, monkeypatch):
    monkeypatch.setattr("bridge.recovery.manifest_table._KEPT", 3)
    table.append(spark, HR, "slot", document(9))
    for number in range(1, 5):
        table.append(spark, SHOP, "slot", document(number))
    rows = spark.read.format("delta").load(table.path).filter(f"origin = '{SHOP}'").collect()
    assert sorted(row.number for row in rows) == [3, 4]
    assert number_of(table, spark, HR) == 9


def test_a_table_that_is_another_one(spark, table):
    spark.range(1).write.format("delta").save(table.path)
    with pytest.raises(TargetError, match="is not a table of subscriptions: its columns are ") as caught:
        table.append(spark, SHOP, "slot", document(1))
    assert "move it away" in caught.value.hint
