"""Which tests are left to `make test-all`: those that take long and are not in `EACH_RUN`, as nightly.txt lists them.

    make test-all PYTEST_ARGS=--junitxml=durations.xml
    .venv/bin/python -m tests.nightly durations.xml

writes the list anew. A test with several cases counts with all of them together, and its first case is in each run.
"""

from __future__ import annotations

import sys
import xml.etree.ElementTree as ET
from collections import Counter
from pathlib import Path
from typing import Final

LIST: Final = Path(__file__).with_name("nightly.txt")

MOST_S: Final = 4.0
"""What a test may take, of one of three processes on two cores, to be in each run."""

EACH_RUN: Final = frozenset(
    {
        "bridge/apply/test_applier.py::test_a_failed_table_is_named_and_nothing_is_left_of_the_batch",
        "bridge/service/test_daemon_monitor.py::test_a_daemons_life",
        "bridge/source/test_data_source.py::test_changes_of_one_table_and_restarts",
        "bridge/verify/test_verification.py::test_planted_differences",
        "faults/test_apply.py::test_a_fault_at_every_step",
        "faults/test_promotion.py::test_a_standby_is_promoted",
        "oracle/test_documentation.py::test_case",
        "oracle/test_replica_identity.py::test_every_identity_as_the_native_subscriber",
        "oracle/test_schema_change.py::test_every_kind_of_change",
        "oracle/test_types.py::test_every_type_and_every_name_goes_all_the_way",
        "oracle/test_workload.py::test_native_subscriber_ends_equal_with_prepared_transactions",
        "simulation/test_matrix.py::test_a_transaction_that_cannot_be_applied_is_skipped_as_a_whole",
        "simulation/test_matrix.py::test_equal_or_refused",
        "simulation/test_seeds.py::test_equal_or_refused",
    }
)
"""Tests that are in each run however long they take: one of each face, and of each promise."""


def nightly() -> frozenset[str]:
    """The functions that are left to `make test-all`, as `path::name` below tests/."""
    return frozenset(LIST.read_text(encoding="utf-8").split())


def slow(report: ET.Element) -> list[str]:
    """The functions that take longer than `MOST_S` in a report of pytest's, in order."""
    seconds: Counter[str] = Counter()
    for case in report.iter("testcase"):
        module = case.attrib["classname"].removeprefix("tests.").replace(".", "/")
        seconds[f"{module}.py::{case.attrib['name'].partition('[')[0]}"] += float(case.attrib["time"])  # type: ignore[assignment]
    return sorted(name for name, taken_s in seconds.items() if taken_s >= MOST_S and name not in EACH_RUN)


if __name__ == "__main__":
    LIST.write_text("".join(f"{name}\n" for name in slow(ET.parse(sys.argv[1]).getroot())), encoding="utf-8")
