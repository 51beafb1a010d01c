"""The page has each workload, each shape and each rate, by medians; and is made by one command."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from benchmarks import catch_up, cli, page, steady
from benchmarks.catch_up import COLD, DEBEZIUM, NATIVE, WARM, Case, Measured, Run
from benchmarks.latency import Sample
from benchmarks.processes import Usage
from benchmarks.published import PUBLISHED, SHAPES
from benchmarks.steady import Steady

MIB = 1 << 20


def measured(case, variants=(NATIVE, WARM, COLD, DEBEZIUM), rounds=3):
    """The n-th round of a variant takes n seconds more than its place."""
    runs = {
        NATIVE: lambda s: Run(NATIVE, s, 0, 0, 1.0, written_bytes=100 * MIB),
        WARM: lambda s: Run(WARM, s, 0, 0, 0.5, 1.5, 300 * MIB, 1000 * MIB, 7, 50 * MIB),
        COLD: lambda s: Run(COLD, s, 0, 0, 0.5, 5.5, 300 * MIB, 900 * MIB, 7, 50 * MIB),
        DEBEZIUM: lambda s: Run(DEBEZIUM, s, 0, 0, 0.0, 9.0, None, 700 * MIB),
    }
    made = [[runs[v](float(i + 1 + n)) for i, v in enumerate(variants)] for n in range(rounds)]
    return Measured(case, 2_000_000, 1_000, made)


def test_medians_of_each_variant():
    lines = page.table(measured(Case("tpcc", PUBLISHED["tpcc"]))).splitlines()[2:]
    assert lines == [
        f"| {NATIVE} | 2.0 | 1 000 000 | 1.00 | 1.0 | 0.5 |  | 100 |",
        f"| {WARM} | 3.0 | 666 667 | 1.50 | 2.0 | 1.0 | 1 300 | 50 |",
        f"| {COLD} | 4.0 | 500 000 | 2.00 | 6.0 | 3.0 | 1 200 | 50 |",
        f"| {DEBEZIUM} | 5.0 | 400 000 | 2.50 | 9.0 | 4.5 | 700 |  |",
    ]


def test_a_shape():
    workload = SHAPES["columns"][25]
    text = page.shape("columns", {25: measured(Case(workload.name, workload), (NATIVE, WARM))})
    assert text.splitlines()[2:] == ["| 25 | 666 667 | 1.0 | 0.5 | 1.50 | 26 |"]


@pytest.fixture
def asked(monkeypatch, no_server):
    """What is measured, in order; nothing is."""
    calls = []

    def catch(servers, case, folder, *, variants, rounds, scale, say):
        calls.append((case.name, rounds, scale))
        return measured(case, tuple(v for v in (NATIVE, WARM, COLD, DEBEZIUM) if v in {NATIVE, *variants}), rounds)

    def steadily(server, load, folder, *, warm_up_s, patience_s, say):
        calls.append((load.rate, load.seconds, warm_up_s))
        usage = Usage(1, 1, MIB, MIB, 0)
        return Steady(load, 0, 10, 9, [Sample(n, n) for n in range(10)], [Sample(9, 9)], usage, 0, 3)

    monkeypatch.setattr(catch_up, "measure", catch)
    monkeypatch.setattr(steady, "measure", steadily)
    monkeypatch.setattr(cli, "EmbeddedPostgres", no_server)
    return calls


def test_one_command_makes_it(asked, tmp_path):
    """What the file of measurements has is not measured again."""
    path, raw = tmp_path / "page.md", tmp_path / "raw.json"
    options = ["page", "--rounds", "2", "--page", str(path), "--raw", str(raw)]
    assert CliRunner().invoke(cli.app, [*options, "--workload", "tpcc"]).exit_code == 0
    shapes = [workload.name for workloads in SHAPES.values() for workload in workloads.values()]
    assert asked[0] == ("tpcc", 2, 1.0)
    assert [name for name, *_ in asked[1 : -len(page.RATES)]] == shapes
    assert asked[-len(page.RATES) :] == [(rate, 60, 30) for rate in page.RATES]
    assert "### taxi" not in path.read_text()
    asked.clear()
    assert CliRunner().invoke(cli.app, options).exit_code == 0
    assert asked == [(name, 1 if name == "taxi" else 2, 1.0) for name in PUBLISHED if name != "tpcc"]
    text = path.read_text()
    for heading in ("## The workloads of others", *(f"### {name}" for name in PUBLISHED), "## Lag by rate"):
        assert f"\n{heading}\n" in text
    assert f"| {WARM} | 3.0 | 666 667 |" in text or f"| {WARM} | 2.5 |" in text
    assert "| 500 | " in text
