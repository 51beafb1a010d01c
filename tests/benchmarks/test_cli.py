"""The commands: what is chosen is measured, printed, and written to the report."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from benchmarks import apply, catch_up, cli, start
from benchmarks.latency import Sample
from benchmarks.measure import VARIANTS, BenchmarkError, Measured, Run
from benchmarks.processes import Usage
from benchmarks.steady import Steady


@pytest.fixture
def asked(monkeypatch):
    """What `measure` was asked for; it answers at once."""
    calls: list[tuple[str, int, float]] = []

    def measure(server, workload, *, rounds, scale, say):
        calls.append((workload.name, rounds, scale))
        say("loaded")
        if scale > 1:
            raise BenchmarkError("it did not work")
        return Measured(workload, 100, 10, 1, [[Run(variant, 1, 1, 1, 0) for variant in VARIANTS]])

    server = SimpleNamespace(version="18.6")
    monkeypatch.setattr(cli, "EmbeddedPostgres", lambda **_: contextlib.nullcontext(server))
    monkeypatch.setattr(cli, "measure", measure)
    return calls


def test_both_workloads_five_rounds_by_default(asked, monkeypatch, tmp_path):
    monkeypatch.setattr(cli, "_REPORTS", tmp_path)
    result = CliRunner().invoke(cli.app, ["receive"])
    assert result.exit_code == 0
    assert asked == [("W1", 5, 1.0), ("W2", 5, 1.0)]
    (written,) = tmp_path.glob("*-receive.md")
    assert {"## W1", "## W2"} <= set(written.read_text().splitlines())
    assert f"wrote {written}" in result.stdout


def test_one_workload_on_a_small_scale(asked, tmp_path):
    path = tmp_path / "new" / "try.md"
    options = ["receive", "--workload", "W2", "--rounds", "2", "--scale", "0.01", "--report", str(path)]
    assert CliRunner().invoke(cli.app, options).exit_code == 0
    assert asked == [("W2", 2, 0.01)]
    assert "| receive + decode | 1.00 | 100 |" in path.read_text()


def test_failure_is_told_in_words(asked, tmp_path):
    result = CliRunner().invoke(cli.app, ["receive", "--scale", "2", "--report", str(tmp_path / "none.md")])
    assert result.exit_code == 1
    assert "benchmarks: it did not work" in result.stderr
    assert not (tmp_path / "none.md").exists()


@pytest.mark.parametrize(
    ("options", "chosen", "variants"),
    [
        ([], ["W1", "W2", "5xW2"], catch_up.VARIANTS),
        (["--case", "5xW2", "--no-cold"], ["5xW2"], (catch_up.NATIVE, catch_up.WARM)),
    ],
)
def test_catching_up(asked, monkeypatch, tmp_path, options, chosen, variants):
    calls = []

    def measure(servers, case, folder, *, variants, rounds, scale, say):
        calls.append((case.name, tuple(variants), rounds, scale))
        assert not folder.exists()
        runs = [catch_up.Run(variant, 2, 0, 0, 1) for variant in variants]
        return catch_up.Measured(case, 100, 10, [runs])

    monkeypatch.setattr(catch_up, "measure", measure)
    monkeypatch.setattr(cli, "_REPORTS", tmp_path)
    assert CliRunner().invoke(cli.app, ["catch-up", *options]).exit_code == 0
    assert calls == [(name, variants, 3, 1.0) for name in chosen]
    (written,) = tmp_path.glob("*-catch-up.md")
    assert f"## {chosen[-1]}\n" in written.read_text()


def test_steady_loads_have_the_rate_and_time_that_are_asked_for(asked, monkeypatch, tmp_path):
    calls = []

    def measure(server, load, folder, *, warm_up_s, patience_s, say):
        calls.append((load.name, load.rate, load.seconds, warm_up_s))
        usage = Usage(1, 1, 1 << 20, 1 << 20, 0)
        return Steady(load, 0, 10, 9, [Sample(n, n) for n in range(10)], [Sample(9, 9)], usage, 0, 3)

    monkeypatch.setattr("benchmarks.steady.measure", measure)
    monkeypatch.setattr(cli, "_REPORTS", tmp_path)
    assert CliRunner().invoke(cli.app, ["steady", "--scale", "0.5"]).exit_code == 0
    options = ["steady", "--load", "pgbench", "--rate", "7", "--seconds", "9", "--warm-up", "3"]
    assert CliRunner().invoke(cli.app, options).exit_code == 0
    assert calls == [("pgbench", 100, 60, 30), ("tables", 250, 150, 30), ("pgbench", 7, 9, 3)]
    (written,) = tmp_path.glob("*-steady.md")
    assert "## pgbench\n" in written.read_text()


def test_start(asked, monkeypatch, tmp_path):
    def measure(servers, folder, *, rounds, scale, say):
        assert (rounds, scale, folder.exists()) == (1, 0.1, False)
        return start.Measured(1, [[start.Run(variant, 1, 2, 3, 0) for variant in start.VARIANTS]])

    monkeypatch.setattr("benchmarks.start.measure", measure)
    path = tmp_path / "start.md"
    options = ["start", "--rounds", "1", "--scale", "0.1", "--report", str(path)]
    assert CliRunner().invoke(cli.app, options).exit_code == 0
    assert "| pgbridge run | 1.00 | 2.00 | 3.00 |" in path.read_text()


def test_apply_measures_each_kind_key_and_size_that_is_asked_for(monkeypatch, tmp_path):
    asked = []

    def measure(folder, cases, *, rounds, say):
        assert folder.is_dir()
        asked.extend(cases)
        return [apply.Measured(case, [apply.Cost(1.0, 2.0, 7, 1, 10)] * rounds) for case in cases]

    monkeypatch.setattr(apply, "measure", measure)
    path = tmp_path / "apply.md"
    options = ["apply", "--kind", "update", "--changes", "1000", "--changes", "10", "--rows", "100", "--rows", "5000"]
    result = CliRunner().invoke(cli.app, [*options, "--rounds", "2", "--report", str(path)])
    assert result.exit_code == 0
    assert [str(case) for case in asked] == [
        f"{number} update, {rows} rows with {keys} keys"
        for rows, numbers in ((100, [10]), (5000, [1000, 10]))
        for keys in ("serial", "random")
        for number in numbers
    ]
    assert "| 10 | update | serial | 5 000 | 1.00 (1.00 to 1.00) | 1.00 |" in path.read_text()
