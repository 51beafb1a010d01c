"""What a former owner has in hand is refused by Delta; what comes then is not."""

from __future__ import annotations

import json

import pytest

from pgbridge.bridge.catalog.manifest import Manifest
from pgbridge.bridge.lake.commit import messages
from pgbridge.bridge.lake.commit.restore import UndoneBatch
from pgbridge.bridge.lake.log.commit_info import ANY_LSN
from pgbridge.bridge.lake.log.stamp import COPY_NUMBER_BITS, CommitStamp, stamp_options, stamped
from pgbridge.bridge.lake.writes import append_rows
from pgbridge.bridge.recovery.fence import keep_out
from pgbridge.bridge.runtime.errors import TakenOver, TargetBusy
from pgbridge.protocol.lsn import Lsn

FAMILY = "pgbridge/1/shop/inc"


def known(path: str, epoch: int = 3) -> Manifest:
    """A manifest with one table."""
    rel = ["shop", "public", "t", "r", 0x10, path, 7, None, None]
    tables = {
        "subscription": [["shop", 1, 1, "inc", epoch, "slot", "ready", "1", None, None]],
        "subscription_rel": [rel],
    }
    return Manifest.of(json.dumps({"tables": tables, "origins": [["shop", 0x20, 1]], "boot_id": "b"}))


@pytest.fixture
def path(spark, tmp_path):
    made = str(tmp_path / "t")
    spark.range(1).write.format("delta").save(made)
    return made


def test_it_is_refused(spark, path, tmp_path):
    assert keep_out(spark, known(path), ("shop", "shop:sync"), 1, str(tmp_path)) == {"shop": 1 << 20}
    batch = CommitStamp(f"{FAMILY}/3", Lsn(0x20), Lsn(0x7FFFFFFF00000000))
    late = {
        "batch": batch,
        "part": CommitStamp(f"{FAMILY}/3", Lsn(0x20), Lsn(0x30), part=1),
        "alteration": CommitStamp(f"{FAMILY}/3", Lsn(0x20), Lsn(0x30), alters=True),
        "copy": CommitStamp(f"{FAMILY}/copy", Lsn(0x30), Lsn(0x30), copy_number=(1 << COPY_NUMBER_BITS) - 1),
    }
    rows = spark.range(100, 101)
    for stamp in late.values():
        append_rows(rows, path, stamp_options(stamp))
    assert spark.read.format("delta").load(path).count() == 1
    then = (
        CommitStamp(f"{FAMILY}/{(1 << 20) + 1}", Lsn(0x20), Lsn(0x30)),
        CommitStamp(f"{FAMILY}/copy", Lsn(0x30), Lsn(0x30), copy_number=(1 << COPY_NUMBER_BITS) + 1),
    )
    for stamp in then:
        append_rows(rows, path, stamp_options(stamp))
    assert spark.read.format("delta").load(path).count() == 3
    # and a recovery of the next generation follows on it
    assert keep_out(spark, known(path, 1 << 20), ("shop",), 2, str(tmp_path)) == {"shop": 2 << 20}


def test_a_recovery_that_stood_still(spark, path, tmp_path):
    append_rows(spark.range(1), path, stamp_options(CommitStamp(f"{FAMILY}/{2 << 20}", Lsn(0x20), Lsn(0x30))))
    with pytest.raises(TakenOver, match="a later recovery"):
        keep_out(spark, known(path), ("shop",), 1, str(tmp_path))


def test_an_undo_has_a_number_that_rises():
    batch = UndoneBatch(f"{FAMILY}/3", Lsn(0x20), Lsn(0x30))
    first, second = batch.undo, batch.undo
    assert first.txn_app_id_in_delta == f"{FAMILY}/3/undo"
    assert first.txn_version <= second.txn_version


def test_the_deletion_of_messages(spark, path, tmp_path):
    """A DELETE of the former owner's undo is refused, and says so."""
    table = messages.path_in(str(tmp_path))
    messages.ensure(spark, table)
    rows = messages.BatchRows(table, "shop", Lsn(0x20), ANY_LSN)
    batch = UndoneBatch(f"{FAMILY}/3", Lsn(0x20), Lsn(0x30))
    with stamped(spark, batch.undo):
        assert not messages.delete(spark, rows), "there are none"
    keep_out(spark, known(path), ("shop",), 1, str(tmp_path))
    with stamped(spark, batch.undo), pytest.raises(TargetBusy, match="a later undo"):
        messages.delete(spark, rows)
    later = UndoneBatch(f"{FAMILY}/{(1 << 20) + 1}", Lsn(0x20), Lsn(0x30))
    with stamped(spark, later.undo):
        assert not messages.delete(spark, rows)
