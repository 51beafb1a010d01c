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


def test_the_log_tells_what_a_query_does(spark, table, monkeypatch):
    """Whatever came between: a claim, what is removed, another writer's OPTIMIZE, commits of an earlier pgbridge."""
    monkeypatch.setattr("pgbridge.bridge.recovery.manifest_table._KEPT", 3)

    def seen():
        """The last rows by the log alone, and by a query."""
        by_log, by_query = ManifestTable(table.path), ManifestTable(table.path)
        with monkeypatch.context() as patch:
            patch.setattr(by_log, "_queried", lambda _: pytest.fail("the log tells it"))
            rows = [by_log.last(spark, origin) for origin in (SHOP, HR)]
        return rows, [by_query._queried(spark).get(origin) for origin in (SHOP, HR)]

    assert ManifestTable(table.path).last(spark, SHOP) is None
    table.append(spark, HR, "other", document(9))
    for number in range(1, 5):
        table.append(spark, SHOP, "slot", document(number))
    by_log, by_query = seen()
    assert by_log == by_query
    other = ManifestTable(table.path)
    other.claim(spark, SHOP, "slot")
    other.append(spark, SHOP, "slot", document(5, generation=1))
    spark.sql(f"OPTIMIZE delta.`{table.path}`").collect()
    by_log, by_query = seen()
    assert by_log[0].claimed_by.startswith(socket.gethostname()), "of the claim before"
    assert by_log == by_query
    spark.read.format("delta").load(table.path).limit(0).write.format("delta").mode("append").save(table.path)
    assert other.last(spark, SHOP) == by_log[0], "nobody knows what that has appended: a query tells"
    assert ManifestTable(table.path).last(spark, HR) == by_log[1]


def test_commits_that_are_far_back_are_found(spark, table, monkeypatch):
    table.append(spark, HR, "other", document(9))
    known = ManifestTable(table.path)
    first = known.last(spark, HR)
    assert first is not None
    assert first.number == 1
    for number in range(1, 5):
        table.append(spark, SHOP, "slot", document(number))
    for name in ("_LOOKED_BACK", "_SINCE"):
        monkeypatch.setattr(f"pgbridge.bridge.recovery.manifest_table.{name}", 2)
    for reader in (ManifestTable(table.path), known):
        rows = [reader.last(spark, origin) for origin in (SHOP, HR, "pgbridge/1/none")]
        assert [row and (row.number, row.slot_name) for row in rows] == [(4, "slot"), (1, "other"), None]


@pytest.mark.parametrize("between", ["nothing", "more than is looked through", "a commit that does not tell"])
def test_a_document_that_is_written_after_a_claim_it_has_not_seen_does_not_count(spark, table, monkeypatch, between):
    """Its commit comes last, and its number is of the generation before: both sides go by the claim."""
    module, log = (f"pgbridge.bridge.recovery.manifest_{name}" for name in ("table", "log"))
    other = ManifestTable(table.path)
    table.append(spark, SHOP, "slot", document(1))
    write = ManifestTable._write

    def late(self, *arguments):
        monkeypatch.setattr(ManifestTable, "_write", write)
        if between == "a commit that does not tell":
            monkeypatch.setattr(f"{log}._ROWS", "of another pgbridge")
        assert other.claim(spark, SHOP, "slot") == 1
        monkeypatch.setattr(f"{log}._ROWS", "pgbridge_rows")
        for number in range(2, 4):
            other.append(spark, SHOP, "slot", document(number, generation=1))
        write(self, *arguments)

    if between == "more than is looked through":
        monkeypatch.setattr(f"{module}._SINCE", 2)
    monkeypatch.setattr(ManifestTable, "_write", late)
    last = table.append(spark, SHOP, "slot", document(9))
    assert (last.generation, last.number) == (1, (1 << 32) + 2), "it is told that another one goes on"
    assert other.append(spark, SHOP, "slot", document(4, generation=1)).number == (1 << 32) + 3
    assert number_of(other, spark, SHOP) == 4
    assert ManifestTable(table.path).claim(spark, SHOP, "slot") == 2


def test_rows_that_somebody_deletes_are_gone(spark, table):
    table.append(spark, SHOP, "slot", document(1))
    assert ManifestTable(table.path).last(spark, SHOP) is not None
    spark.sql(f"DELETE FROM delta.`{table.path}`").collect()
    assert table.last(spark, SHOP) is None
