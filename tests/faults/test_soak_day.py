"""What a day of random faults tells of growth: it is seen, and what only looks like it is not."""

from __future__ import annotations

import json
import os
import sqlite3
import xml.etree.ElementTree as ET

import psutil
import pytest

from tests.faults.soak_day import (
    MEASURES,
    MONTH_S,
    NIGHT,
    Sampler,
    age,
    age_maintenance,
    draw,
    grown,
    growth,
    table,
)
from tests.faults.soaked_daemon import Daemon

SPOOL = next(measure for measure in MEASURES if measure.name == "spool KiB")
MEMORY = next(measure for measure in MEASURES if measure.name == "Python MiB")


def samples(measure, *values):
    """All other measures stay."""
    still = {each.name: 1.0 for each in MEASURES}
    return [{**still, "at_s": 10.0 * number, measure.name: value} for number, value in enumerate(values)]


def test_what_stays_is_compared_over_the_run():
    rising = samples(SPOOL, *(1000.0 * number for number in range(100)))
    compared = growth(rising, SPOOL)
    assert compared is not None
    assert compared.ratio == pytest.approx(3, rel=0.05)
    assert [line.partition(":")[0] for line in grown(rising)] == ["spool KiB"]
    assert grown(samples(SPOOL, *([5000.0] * 50), 90_000.0, *([5000.0] * 49))) == []


def test_a_process_is_compared_within_the_night():
    """By day each kill begins anew, and a young process is small."""
    day = [100.0, 300.0] * 30
    assert grown(samples(MEMORY, *day, *([500.0] * 40))) == []
    assert len(grown(samples(MEMORY, *day, *(200.0 + 20 * number for number in range(40))))) == 1
    assert len(day) / 100 == NIGHT


def test_a_little_more_is_no_growth():
    assert grown(samples(SPOOL, *([0.5] * 50), *([15.0] * 50))) == []


def test_what_could_not_be_sampled_is_not_taken_for_flat():
    assert len(grown([])) == len(MEASURES)
    assert growth([{"at_s": 1.0, MEMORY.name: 1.0}], SPOOL) is None
    assert len(table([])) == 2


def test_the_picture_has_a_plot_for_each_measure_and_is_well_formed():
    taken = [{"at_s": 10.0 * n, "Python MiB": 200.0 + n, "spool KiB": 0.0} for n in range(20)]
    root = ET.fromstring(draw(taken))
    lines = [each for each in root if each.tag.endswith("polyline")]
    assert len(lines) == 2
    assert all(len(line.attrib["points"].split()) == 20 for line in lines)
    assert any("at most 219" in (each.text or "") for each in root)


def test_a_sample_has_processes_files_and_the_batches_since_the_last_one(tmp_path):
    (tmp_path / "state" / "spool" / "soak").mkdir(parents=True)
    (tmp_path / "state" / "spool" / "soak" / "7.1").write_bytes(bytes(2048))
    log = tmp_path / "daemon.log"
    log.write_text("".join(json.dumps({"event": "batch applied", "seconds": s}) + "\n" for s in (1, 2, 6)) + '{"event"')

    class OwnDaemon(Daemon):
        pid = os.getpid()

    sampler = Sampler(OwnDaemon(tmp_path), psutil.Process, lambda: 12)
    first, second = sampler._sample(), sampler._sample()
    assert first["spool KiB"] == 2
    assert first["seconds a batch"] == 2
    assert first["Python descriptors"] == first["JVM descriptors"] > 0
    assert first["files in _delta_log"] == 12
    assert "seconds a batch" not in second


def test_files_and_maintenance_become_a_month_older(tmp_path):
    file = tmp_path / "lake" / "public" / "t" / "_delta_log" / "0.json"
    file.parent.mkdir(parents=True)
    file.write_text("{}")
    before_s = file.stat().st_mtime
    with sqlite3.connect(tmp_path / "catalog.sqlite") as db:
        db.execute("CREATE TABLE maintenance (since, optimized, vacuumed)")
        db.execute("INSERT INTO maintenance VALUES (5000000, 6000000, NULL)")
    age(tmp_path / "lake")
    age_maintenance(tmp_path / "catalog.sqlite")
    assert before_s - file.stat().st_mtime == pytest.approx(MONTH_S, abs=1)
    rows = db.execute("SELECT since, optimized, vacuumed FROM maintenance").fetchall()
    assert rows == [(5_000_000 - MONTH_S, 6_000_000 - MONTH_S, None)]
