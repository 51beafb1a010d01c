"""Spark reads the same from a Parquet file as from rows of the plan, and the file does not stay."""

from __future__ import annotations

import datetime as dt
import os
import subprocess
import sys
import tempfile
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest

from bridge.apply.delta import effect_source as module
from bridge.apply.delta.effect_source import effect_source
from bridge.apply.delta.stage import as_frame

VALUES = {
    "new_0": pa.array([1, None], pa.int16()),
    "new_1": pa.array([1 << 40, None]),
    "new_2": pa.array([float("nan"), -0.0]),
    "new_3": pa.array(["a\0é", None]),
    "new_4": pa.array([b"\xff", None]),
    "new_5": pa.array([dt.date(1000, 2, 28), dt.date(9999, 12, 31)]),
    "new_6": pa.array([-62135596799999999, None], pa.timestamp("us")),
    "new_7": pa.array([dt.datetime(1066, 10, 14, tzinfo=dt.UTC), None], pa.timestamp("us", "UTC")),
    "new_8": pa.array([Decimal("1.50"), None], pa.decimal128(12, 2)),
    "new_9": pa.array([[1, None], None], pa.list_(pa.int32())),
    "inserted": pa.array([True, False]),
}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Any number of rows goes to a file, in a folder of this test."""
    monkeypatch.setattr(module, "PLAN_ROWS", 0)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    module._folder.cache_clear()
    yield tmp_path
    module._folder.cache_clear()


def test_a_file_has_the_same_rows_as_the_plan(spark, folder):
    table = pa.table(VALUES)
    with effect_source(spark, table) as source:
        assert len(list(folder.rglob("*.parquet"))) == 1
        expected = as_frame(spark, table)
        assert source.schema == expected.schema
        assert list(map(repr, source.collect())) == list(map(repr, expected.collect()))
    assert list(folder.rglob("*.parquet")) == []


def test_few_rows_need_no_file(spark, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with effect_source(spark, pa.table(VALUES)) as source:
        assert source.count() == 2
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_process_left_is_removed(folder):
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    left, running = (folder / f"pgbridge-effects-{pid}-x" for pid in (ended.pid, os.getpid()))
    for one in (left, running):
        one.mkdir()
        (one / "effects-1.parquet").write_bytes(b"x")
    own = Path(module._folder())
    assert sorted(folder.iterdir()) == sorted([running, own])


def test_a_folder_that_was_cleaned_away_is_made_again(folder):
    own = Path(module._folder())
    own.rmdir()
    descriptor, name = module._new_file()
    os.close(descriptor)
    assert Path(name).parent == own
