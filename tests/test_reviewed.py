"""What a review by use found wrong, by its numbers: the test that has its input, or its kind.

B: a configuration or a page said something that was not so. O: a day of operating. R: public reports of the same job.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[1]

REVIEWED: Final = {
    "B1": "bridge/check/test_report_refusals.py::test_the_server_shows_it",  # a table's name with a typo
    "B2": "bridge/check/test_report_refusals.py::test_the_server_shows_it",  # definitions of a table that is not there
    "B3": "bridge/check/test_report_refusals.py::test_two_subscriptions",  # one Delta table
    "B4": "bridge/check/test_report_refusals.py::test_two_subscriptions",  # one slot
    "B5": "bridge/check/test_machine.py::test_below_a_folder_that_may_not_be_entered",
    "B6": "test_docs_new_tables.py::test_the_example",  # paths that Spark's SQL does not take
    "B7": "bridge/catalog/test_notes.py::test_an_error_of_the_start_is_over_once_the_stream_has_begun",
    "B8": "bridge/service/test_replay.py::test_a_daemon_is_running",  # the hint was another state_dir
    "B9": "bridge/check/test_tables.py::test_a_column_list_without_the_key",
    "B10": "bridge/check/test_report_refusals.py::test_the_file_is_refused",  # a master that Spark does not know
    "B11": "bridge/sync/test_tablesync_worker.py::test_errors_that_stay_count_and_the_subscriptions_own_disable",
    "B12": "test_reviewed.py::test_the_pages_say_the_same",
    "O1": "bridge/check/test_machine.py::test_ports",
    "O2": "bridge/sync/test_server_check.py::test_commits_that_wait_for_the_subscription_are_told_at_the_start",
    "O3": "bridge/sync/test_tablesync_worker.py::test_a_disable_meanwhile_is_not_a_failure",
    "O5": "bridge/check/test_report_refusals.py::test_the_file_is_refused",  # vacuum_retention_h below 168
    "O6": "bridge/receive/test_connection.py::test_what_the_hint_says_lets_the_role_in",
    "O7": "bridge/sync/test_catalog_look.py::test_every_event_is_seen",
    "O8": "bridge/apply/test_stream_events.py::test_messages_and_notices_cannot_fill_the_log",
    "O9": "bridge/monitor/test_server.py::test_slow_clients_do_not_keep_out_one_that_asks",
    "O10": "test_monitoring_files.py::test_alert_leads_to_the_runbook",
    "O11": "oracle/test_published_again.py::test_a_table_is_had_again_after_a_refresh_has_removed_it",
    "R-A1": "bridge/receive/test_publisher_types.py::test_attributes",  # a default of type box
    "R-A4": "oracle/test_published_again.py::test_a_table_is_not_followed_as_it_is_published",  # a label is renamed
    "R-A5": "bridge/sync/test_catalog_look.py::test_an_identity_that_may_be_null",
    "R-A6": "oracle/test_catalog_events.py::test_seed",  # partitions are attached and detached
    "R-A7": "oracle/test_types.py::test_every_type_and_every_name_goes_all_the_way",  # read by a second engine
    "R-B1": "bridge/receive/stream/test_undecodable.py::test_sql_ascii_sends_bytes_as_they_are",
    "R-B2": "bridge/receive/test_slot.py::test_why_a_server_is_refused",  # the way on is that of another server
    "R-B3": (
        "bridge/receive/stream/test_walreceiver_status.py::test_a_receiver_that_is_late_has_its_status_updates_sent"
    ),
    "R-C1": "oracle/test_own_columns.py::test_own_columns_are_filled_and_kept",
}
"""O4, what a log of many commits costs, has no test: it is measured."""


@pytest.mark.parametrize("number", REVIEWED)
def test_there_is_a_test_of_it(number):
    path, _, name = REVIEWED[number].partition("::")
    tree = ast.parse((ROOT / "tests" / path).read_text(encoding="utf-8"))
    assert name in {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def test_the_pages_say_the_same():
    """B12: no command without a description, one figure for pgbridge's own memory, and the files of a skip."""
    index = (ROOT / "docs/commands/README.md").read_text(encoding="utf-8")
    commands = re.findall(r"^\| \[?`pgbridge .*\|$", index, re.MULTILINE)
    assert len(commands) > 10
    assert [row for row in commands if not row.rstrip("| ").rpartition("|")[2].strip(" `)")] == []
    assert [row for row in commands if re.search(r"\|\s*\|$", row)] == []
    sizes = re.findall(r"(\d+) MB for pgbridge itself", (ROOT / "docs/configuration.md").read_text(encoding="utf-8"))
    sizes += re.findall(r"pgbridge itself \| (\d+) MB", (ROOT / "docs/containers.md").read_text(encoding="utf-8"))
    assert len(sizes) == 2
    assert len(set(sizes)) == 1
