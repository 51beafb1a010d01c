"""Which tables lose changes with a spool file. `tests/faults/test_recover.py` has what becomes of them."""

from __future__ import annotations

from typing import Any

import pytest

from pgbridge.bridge.catalog.catalog_rows import PreparedRow, RelRow
from pgbridge.bridge.config.config import Subscription
from pgbridge.bridge.recovery.lost_prepared import LostPrepared
from pgbridge.bridge.track.spool import SpoolFile, spool_folder
from pgbridge.protocol.lsn import Lsn
from pgbridge.protocol.stream.transactions import Ending, Transaction

SHOP = Subscription(name="shop", connection="", publications=("p",), warehouse="lake")


class Known:
    """What a manifest says: a and b follow, c is not copied yet, and the tablesync worker has d."""

    def __init__(self, *relids):
        self.rows = [PreparedRow("7.1", "g", 7, Lsn(0x20), relids or None)]

    def prepared(self, name):
        return self.rows if name == "shop" else []

    def rels(self, name):
        states = {"a": "r", "b": "r", "c": "d", "d": "r"}
        rels = [RelRow("public", t, s, Lsn(0x10), t, relid) for relid, (t, s) in enumerate(states.items(), 1)]
        return rels[:3] if name == "shop" else rels[3:]


def lost(folder, known: Any, subscription=SHOP):
    return LostPrepared(subscription, known, folder)


@pytest.mark.parametrize(
    ("known", "names", "changes_copied"),
    [
        (Known(2), ["b"], False),
        (Known(1, 2), ["a", "b"], False),
        (Known(2, 3), ["b"], False),
        (Known(2, 4), ["b"], True),
        (Known(2, 5), ["a", "b"], True),
        (Known(), ["a", "b"], True),
        (None, [], False),
    ],
    ids=["b", "a and b", "one to be copied", "the worker's", "one that is none of them", "unknown ones", "no stream"],
)
def test_the_tables_that_they_change(tmp_path, known, names, changes_copied):
    made = lost(tmp_path, known)
    assert ([rel.name for rel in made.changed], made.changes_copied) == (names, changes_copied)
    assert all(made.copies_afresh(rel) for rel in made.changed)
    assert {made.what_becomes_of(rel) for rel in made.changed} <= {
        'copied again, once prepared transactions have ended: "g"'
    }


def test_an_empty_file_is_left_for_the_end_and_is_no_changes_the_next_time(tmp_path):
    lost(tmp_path, Known(2)).put_empty()
    kept = SpoolFile.load(spool_folder(tmp_path, "shop") / "7.1")
    assert (kept.gid, kept.ending, kept.n_rows) == ("g", Ending.PREPARE, 0)
    assert [rel.name for rel in lost(tmp_path, Known(2)).changed] == ["b"]


def test_what_has_its_changes_loses_nothing(tmp_path):
    folder = spool_folder(tmp_path, "shop")
    folder.mkdir(parents=True)
    SpoolFile(folder / "7.1").keep(Transaction(7, Lsn(0x20), 0, Lsn(0x20), gid="g", ending=Ending.PREPARE))
    assert lost(tmp_path, Known(2)).changed == []


def test_a_history_waits_for_its_operator(tmp_path):
    made = lost(tmp_path, Known(1), SHOP.model_copy(update={"mode": "history"}))
    (rel,) = made.changed
    assert not made.copies_afresh(rel)
    assert "pgbridge refresh shop --resync public.a" in made.what_becomes_of(rel)
