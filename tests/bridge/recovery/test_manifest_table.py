"""The Delta table of manifests: the last document of each subscription counts."""

from __future__ import annotations

import socket

import pytest

from pgbridge.bridge.catalog.manifest import Due
from pgbridge.bridge.recovery.manifest_table import ManifestTable, _Entry
from pgbridge.bridge.runtime.errors import StateError, TargetError

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
    monkeypatch.setattr("pgbridge.bridge.recovery.manifest_table._KEPT", 3)
    table.append(spark, HR, "slot", document(9))
    for number in range(1, 5):
        table.append(spark, SHOP, "slot", document(number))
    rows = spark.read.format("delta").load(table.path).filter(f"origin = '{SHOP}'").collect()
    assert sorted(row.number for row in rows) == [3, 4]
    assert number_of(table, spark, HR) == 9


def test_a_claim_begins_a_generation(spark, table):
    """Documents of the one before do not count any more, and whoever writes one is told so."""
    table.append(spark, SHOP, "slot", document(1))
    other = ManifestTable(table.path)
    assert other.claim(spark, SHOP, "slot") == 1
    assert number_of(other, spark, SHOP) == 1, "the last document counts until there is another"
    last = table.append(spark, SHOP, "slot", document(2))
    assert last.generation == 1
    assert last.claimed_by.startswith(f"{socket.gethostname()}/")
    assert number_of(table, spark, SHOP) == 1
    assert other.append(spark, SHOP, "slot", document(3, generation=1)).generation == 1
    assert number_of(table, spark, SHOP) == 3
    assert table.claim(spark, SHOP, "slot") == 2
    assert other.claim(spark, HR, "slot") == 1, "each has its own"


def test_a_document_that_was_written_before_a_claim_is_seen(spark, table, monkeypatch):
    """Its owner relies on it; so whoever claims reads it afterwards."""
    other = ManifestTable(table.path)
    table.append(spark, SHOP, "slot", document(1))
    write = ManifestTable._write

    def between(self, *arguments):
        write(self, *arguments)
        monkeypatch.setattr(ManifestTable, "_write", write)
        assert other.claim(spark, SHOP, "slot") == 1

    monkeypatch.setattr(ManifestTable, "_write", between)
    assert table.append(spark, SHOP, "slot", document(2)).generation == 1, "it is told, too"
    assert number_of(other, spark, SHOP) == 2


def test_of_two_claims_at_once_one_counts(spark, table, monkeypatch):
    other = ManifestTable(table.path)
    table.append(spark, SHOP, "slot", document(1))
    write = ManifestTable._write

    def between(self, *arguments):
        monkeypatch.setattr(ManifestTable, "_write", write)
        assert other.claim(spark, SHOP, "slot") == 1
        write(self, *arguments)

    monkeypatch.setattr(ManifestTable, "_write", between)
    with pytest.raises(StateError, match="another machine recovers") as caught:
        table.claim(spark, SHOP, "slot")
    assert caught.value.retry


def test_a_table_that_is_another_one(spark, table):
    spark.range(1).write.format("delta").save(table.path)
    with pytest.raises(TargetError, match="is not a table of subscriptions: its columns are ") as caught:
        table.append(spark, SHOP, "slot", document(1))
    assert "move it away" in caught.value.hint
