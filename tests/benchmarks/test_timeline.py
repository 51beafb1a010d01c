"""A batch's steps come from the points that a daemon passes, and Spark's jobs from its event log; both are drawn."""

from __future__ import annotations

import json
import subprocess
import sys
import xml.etree.ElementTree as ET

import pytest
from typer.testing import CliRunner

from benchmarks import cli, steady, timeline
from benchmarks.bridge_folder import BridgeFolder
from benchmarks.measure import BenchmarkError
from benchmarks.timeline import Event, Job, batches, events_of, jobs_of, middle, render, svg
from pgbridge.bridge.runtime import faults


def one_batch(at_s, seconds=1.0):
    """Two tables at the same time; its first transaction came before the batch before was durable."""
    parts = [
        (-0.5, "after_receive", "walreceiver"),
        (-0.2, "after_receive", "walreceiver"),
        (0.0, "batch_begun", "batch_0"),
        (0.1, "table_begun", "apply_0"),
        (0.15, "table_begun", "apply_1"),
        (0.5, "table_committed", "apply_1"),
        (0.7, "table_committed", "apply_0"),
        (0.8, "batch_committed", "batch_0"),
        (1.0, "before_confirm", "batch_0"),
    ]
    return [Event(at_s + after * seconds, point, thread) for after, point, thread in parts]


JOBS = [Job(1, 9.0, 9.9), Job(2, 10.2, 10.3), Job(3, 10.25, 10.6), Job(4, 10.4, 10.5), Job(5, 11.5, 12.0)]


def test_steps():
    made = batches([*one_batch(10), *one_batch(20, 2), Event(30, "before_confirm", "subscription")], JOBS)
    assert [round(one.seconds, 6) for one in made] == [1, 2]
    steps = {step: round(seconds, 6) for step, seconds in made[0].steps_s.items()}
    assert steps == {
        "its first transaction waits": 0.5,
        "to the first table": 0.1,
        "tables": 0.6,
        "flush": 0.1,
        "the origin": 0.2,
    }
    assert [job.number for job in made[0].jobs] == [2, 3, 4]
    assert made[1].jobs == []
    assert middle(made) is made[1]


def test_a_batch_that_has_failed_is_left_out():
    failed = [event for event in one_batch(10) if event.point not in {"batch_committed", "before_confirm"}]
    assert len(batches([*failed, *one_batch(20)], ())) == 1


def test_jobs():
    start = {"Event": "SparkListenerJobStart", "Job ID": 3, "Submission Time": 1500}
    end = {"Event": "SparkListenerJobEnd", "Job ID": 3, "Completion Time": 2750}
    running = start | {"Job ID": 4}
    assert jobs_of(map(json.dumps, [{"Event": "SparkListenerLogStart"}, start, running, end])) == [Job(3, 1.5, 2.75)]


def test_the_drawing():
    (one,) = batches(one_batch(10), JOBS)
    root = ET.fromstring(svg(one))
    texts = [text.text for text in root.iter("{http://www.w3.org/2000/svg}text")]
    assert texts[-7:] == [
        "to the first table",
        "table 1",
        "table 2",
        "Spark's jobs 1",
        "Spark's jobs 2",
        "flush",
        "the origin",
    ]
    assert texts[:2] == ["0 ms", "100 ms"]
    load = steady.loads(1)["pgbench"]
    text = render([one] * 3, load, "batch.svg", facts="- machine: this one")
    assert "![a batch](batch.svg)" in text
    assert "| tables | 600 | 600 |\n" in text
    assert "3 jobs of Spark's (median)" in text


def test_the_daemon_notes_what_it_passes(tmp_path, monkeypatch):
    class Daemon:
        def __init__(self, *_): ...

        def run(self):
            faults.reach("batch_begun")
            return 7

    monkeypatch.setattr(timeline, "Daemon", Daemon)
    monkeypatch.setattr(timeline, "load_config", lambda _: None)
    monkeypatch.setattr(timeline, "StopSignals", lambda: None)
    try:
        assert timeline.main(tmp_path / "pgbridge.toml", tmp_path / "notes") == 7
    finally:
        faults.install(lambda _: None)
    ((at_s, point, thread),) = events_of(tmp_path / "notes")
    assert at_s > 1e9
    assert (point, thread) == ("batch_begun", "MainThread")


def test_one_command_makes_report_and_picture(tmp_path, monkeypatch, no_server):
    asked = []

    def measure(server, load, folder, *, say):
        asked.append((load.rate, load.seconds))
        return batches(one_batch(10), JOBS)

    monkeypatch.setattr(timeline, "measure", measure)
    monkeypatch.setattr(cli, "EmbeddedPostgres", no_server)
    options = ["timeline", "--rate", "7", "--seconds", "9", "--report", str(tmp_path / "t.md")]
    assert CliRunner().invoke(cli.app, options).exit_code == 0
    assert asked == [(7, 9)]
    assert "![a batch](t.svg)" in (tmp_path / "t.md").read_text()
    assert (tmp_path / "t.svg").read_text().startswith("<svg")


def test_copies_that_do_not_come_are_an_error(tmp_path):
    bridge = BridgeFolder(tmp_path)
    bridge.configure("host=none", "pub", slot_name="s")
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        ended.wait()
        with pytest.raises(BenchmarkError, match="not copied"):
            timeline._wait_for_copies(bridge, ended)
