"""Which test executes a printed remedy, in the situation in which it is printed (see `test_printed_remedies`).

By module, then by how the remedy begins. Each is executed by a test here, or can be had elsewhere only. A remedy with
nothing to type ("check the connection string") needs no entry.
"""

from __future__ import annotations

from typing import Final

_ADDED = "oracle/test_published_again.py::test_a_table_is_had_again_after_a_refresh_has_removed_it"
_BADLY = "remedies/test_on_a_server.py::test_a_server_that_was_never_set_up"
_COMMANDS = "bridge/service/test_daemon_commands.py::test_each_command_in_each_state"
_EVENTS = "oracle/test_catalog_events.py::test_seed"
_GONE = "faults/test_runbook.py::test_a_delta_table_is_gone"
_IDENTITY = "bridge/sync/test_start.py::test_tables_without_an_identity_are_named_with_what_to_run"
_LETS_IN = "bridge/receive/test_connection.py::test_what_the_hint_says_lets_the_role_in"
_MISSING = "remedies/test_on_a_server.py::test_publications_that_do_not_exist"
_MODES = "remedies/test_on_this_machine.py::test_modes_that_a_table_cannot_have"
_NO_TABLE = "remedies/test_of_a_subscription.py::test_a_publication_that_does_not_exist"
_NOT_REPLAYED = "remedies/test_of_a_subscription.py::test_a_transaction_that_cannot_be_replayed"
_NOT_SUBSCRIBED = "faults/test_runbook.py::test_a_published_table_is_not_subscribed"
_READABLE = "bridge/check/test_tables.py::test_the_statements_let_the_role_read"
_RENAMED = "oracle/test_renamed_table.py::test_a_table_is_renamed"
_RETYPED = "bridge/sync/test_tablesync_worker.py::test_a_table_whose_columns_changed_is_copied_afresh"
_RUNS_OUT = "remedies/test_on_a_server.py::test_a_slot_that_runs_out_of_wal"
_SLOT = "bridge/receive/test_slot.py::test_a_slot_that_is_to_be_used_is_made_by_the_printed_statement"
_STATE_LOST = "faults/test_runbook.py::test_the_state_directory_is_lost"
_ROWS_ALREADY = "faults/test_runbook.py::test_delta_tables_have_rows_already"
_UNDONE = "bridge/lake/commit/test_restore.py::test_a_doubtful_batch_that_somebody_has_taken_back_by_hand"
_UNHELD = "remedies/test_of_a_subscription.py::test_values_that_cannot_be_held"
_WAITS = "oracle/test_waits.py::test_one_table_waits_and_the_others_go_on"
_WENT_BACK = "faults/test_runbook.py::test_a_delta_table_went_back"

EXECUTED: Final[dict[str, dict[str, str]]] = {
    "apply/applier.py": {
        "{remedies.of_conflict(": "bridge/apply/test_applier.py::"
        "test_a_conflict_is_told_in_postgresqls_words_or_overwritten_and_reported",
    },
    "apply/maintenance.py": {
        "see DESCRIBE HISTORY": "bridge/apply/test_maintenance_spark.py::"
        "test_rows_that_another_writer_added_since_are_not_lost",
    },
    "apply/published.py": {
        "if it was a partition": "oracle/test_partition_moves.py::test_rows_go_where_a_native_subscribers_go",
        "create it on the publisher": "oracle/test_missing_publication.py::test_it_is_taken_up_when_it_appears",
    },
    "apply/conflict_log.py": {
        "set target.conflict": "remedies/test_of_a_subscription.py::test_a_table_of_ours_that_has_no_place",
    },
    "apply/stream.py": {
        "{'; then '.join(": _WAITS,
        "set messages": "remedies/test_of_a_subscription.py::test_a_table_of_ours_that_has_no_place",
        "{remedies.of_prepared_binary(": "oracle/test_undecodable.py::"
        "test_what_was_prepared_in_binary_form_and_cannot_be_read",
    },
    "apply/stream_events.py": {
        "to copy the table afresh": _EVENTS,
    },
    "batch/block_decoder.py": {
        "its mode needs": "remedies/test_of_a_subscription.py::test_a_history_without_a_key",
    },
    "batch/routes.py": {
        'table "{old}" was renamed': _RENAMED,
        "copy both afresh": "oracle/test_typed.py::test_two_tables_have_changed_their_names",
    },
    "catalog/database.py": {
        "move it away": "faults/test_runbook.py::test_the_state_directory_is_damaged",
    },
    "catalog/lock.py": {
        "kill its process": "remedies/test_on_this_machine.py::test_the_spark_of_an_earlier_daemon",
    },
    "check/lake.py": {
        "ALTER TABLE": "bridge/check/test_lake.py::test_a_statement_that_removes_the_property",
        "move it away": _ROWS_ALREADY,
    },
    "check/machine.py": {
        "set a lower": "remedies/test_on_this_machine.py::test_memory_that_is_not_there",
        "ulimit": "remedies/test_on_this_machine.py::test_the_limit_of_file_descriptors",
        "chmod -R": "bridge/check/test_machine.py::test_a_state_directory_that_everybody_can_enter",
        "chmod 600": "bridge/check/test_machine.py::test_the_command_against_it_is_quoted",
    },
    "check/server.py": {
        "{remedies.check(": "bridge/check/test_report.py::test_the_script_without_a_server",
        "ALTER ROLE {quoted_name(facts.role)} PASSWORD": _BADLY,
        "ALTER SYSTEM SET max_slot_wal_keep_size = '50GB'": _BADLY,
        "ALTER SYSTEM SET {subject}": _BADLY,
        "ALTER ROLE {quoted_name(facts.role)} SET": _BADLY,
        "ALTER SYSTEM SET hot_standby_feedback": "remedies/test_on_a_server.py::test_a_standby_without_feedback",
        "have such texts": _UNHELD,
        "ROLLBACK PREPARED": "faults/test_runbook.py::test_an_open_transaction_holds_up_the_start",
        "SELECT pg_terminate_backend({transaction": _BADLY,
        "SELECT pg_terminate_backend({status": "remedies/test_on_a_server.py::test_a_slot_that_another_reads",
        "ALTER SYSTEM SET max_slot_wal_keep_size = '…'": _RUNS_OUT,
    },
    "check/subscription.py": {
        "run on the server; if": _NOT_SUBSCRIBED,
        "CREATE PUBLICATION": _MISSING,
    },
    "check/tables.py": {
        "GRANT USAGE": _READABLE,
        "GRANT SELECT": _READABLE,
        "ALTER ROLE": _READABLE,
        "ALTER TABLE": _IDENTITY,
    },
    "commands/refresh.py": {
        "enable the subscription": "bridge/commands/test_refresh.py::test_drop_of_a_half_applied_batch",
        "drop that slot": "remedies/test_of_a_subscription.py::test_a_slot_that_has_confirmed_prepared_transactions",
        "its tables are listed by": "remedies/test_of_a_subscription.py::test_a_table_that_is_not_known",
        "to remove it": _ADDED,
    },
    "commands/wait.py": {
        "run: {remedies.enable(": _COMMANDS,
        "no daemon runs": _COMMANDS,
        "see {remedies.status()}": _COMMANDS,
    },
    "config/config.py": {
        "write one with": "remedies/test_on_this_machine.py::test_no_configuration",
    },
    "demo/subscriber.py": {
        "choose a new folder": "remedies/test_on_this_machine.py::test_a_folder_that_is_no_demos",
    },
    "evolution/plan.py": {
        'add "{name}" to mask': "oracle/test_masks.py::test_a_rename_onto_the_name_of_a_dropped_column",
    },
    "evolution/tracker.py": {
        "{remedies.resync(": _RETYPED,
    },
    "lake/changes/verdicts.py": {
        "filter_server": "remedies/test_of_a_subscription.py::test_a_filter_that_is_not_translated",
    },
    "lake/changes/conflict_rows.py": {
        "set target.conflict": "remedies/test_of_a_subscription.py::test_a_table_of_ours_that_has_no_place",
    },
    "lake/commit/messages.py": {
        "set messages": "remedies/test_of_a_subscription.py::test_a_table_of_ours_that_has_no_place",
    },
    "lake/ddl.py": {
        "move them away": "bridge/lake/test_ddl.py::test_files_of_others_are_not_touched",
    },
    "lake/forms.py": {
        "move it away": _MODES,
        'set mode = "changelog" for the table, or leave one': _MODES,
        'set mode = "changelog" for the table, or leave the': _MODES,
    },
    "lake/location.py": {
        "restore them from a backup": "bridge/lake/test_location.py::"
        "test_files_that_are_gone_are_not_a_table_that_is_gone",
    },
    "lake/log/history.py": {
        "see DESCRIBE HISTORY": _UNDONE,
        "restore it to a version": _UNDONE,
        "put back what was before": _UNDONE,
        "run: {self._restore(": _UNDONE,
    },
    "lake/table.py": {
        "mount its file system": _GONE,
    },
    "monitor/document.py": {
        "to skip the transaction, run": "faults/test_runbook.py::test_a_transaction_cannot_be_applied",
        "to let it run, run": "remedies/test_of_a_subscription.py::test_a_subscription_that_is_disabled",
        "{remedies.of_no_table(": _NO_TABLE,
    },
    "config/daemon_tables.py": {
        "chmod 600": "bridge/monitor/test_server_access.py::test_a_token_file",
    },
    "publication/differences.py": {
        "{self._publish_again(": _EVENTS,
        "to copy it and follow it": _ADDED,
        "to follow what is published now": _EVENTS,
        "run on the server: ALTER PUBLICATION": "remedies/test_of_a_subscription.py::"
        "test_actions_that_are_not_published",
    },
    "publication/replica_identity.py": {
        "{self.place}publication": "oracle/test_waits.py::"
        "test_definitions_that_do_not_fit_the_stream_have_their_table_wait",
    },
    "publication/routing.py": {
        "subscribe to a publication": "remedies/test_on_a_server.py::"
        "test_definitions_of_partitions_on_a_stream_of_their_root",
    },
    "receive/connection.py": {
        "run on the server: ALTER ROLE … REPLICATION": _LETS_IN,
        "run on the server: ALTER SYSTEM SET max_wal_senders": _BADLY,
        "run on the server: ALTER SYSTEM SET max_replication_slots": _BADLY,
        "ALTER ROLE {} CONNECTION": _LETS_IN,
        "ALTER DATABASE": _LETS_IN,
        "ALTER ROLE {} LOGIN": _LETS_IN,
        "run on the {where}": _BADLY,
        "the role needs SELECT": "remedies/test_of_a_subscription.py::test_a_role_that_may_not_read",
    },
    "receive/filter_server.py": {
        "use a standby": "bridge/receive/test_filter_server.py::test_another_server_computes_alike_or_not_at_all",
    },
    "receive/publisher.py": {
        "run on the server: ALTER SYSTEM": _BADLY,
        "run in the database": _MISSING,
    },
    "source/stream.py": {
        "correct the path, or name another slot": "bridge/source/test_stream.py::"
        "test_a_slot_without_its_copy_is_refused",
    },
    "recovery/manifest_table.py": {
        "stop the daemon, and make": _STATE_LOST,
        "to have this machine wait": "faults/test_runbook.py::test_another_machine_has_taken_over",
    },
    "recovery/lost_prepared.py": {
        "once they have ended": "faults/test_recover.py::test_a_table_that_keeps_what_was_waits",
    },
    "recovery/recover.py": {
        "to have all its tables copied again": "faults/test_recover.py::test_several",
    },
    "receive/slot.py": {
        "check the connection string; if": "faults/test_positions.py::"
        "test_a_table_that_is_handed_over_while_the_subscription_is_stuck",
        "if state_dir was put back": "faults/test_recover.py::test_a_state_that_was_put_back_from_a_backup",
        "run on the server: SELECT": _SLOT,
        "drop it on the server": _SLOT,
    },
    "lake/table_position.py": {
        "{again}have the table": _WENT_BACK,
    },
    "receive/slot_status.py": {
        "raise max_slot_wal_keep_size on the server now": _RUNS_OUT,
        "raise max_slot_wal_keep_size on the server, or": _RUNS_OUT,
        "see why the subscription lags": "remedies/test_on_a_server.py::test_a_transaction_that_holds_wal",
    },
    "receive/slot_watch.py": {
        "run on the server: ALTER ROLE": "remedies/test_on_a_server.py::test_a_password_that_expires",
    },
    "receive/stream/undecodable.py": {
        "the added tables": "oracle/test_undecodable.py::test_the_server_cannot_send_it_to_added_tables_either",
        "the change is in the WAL; to skip": "oracle/test_undecodable.py::test_the_server_cannot_send_a_transaction",
        "the change is in the WAL, and": "oracle/test_undecodable.py::test_a_culprit_that_is_not_known",
    },
    "service/daemon.py": {
        "set a lower": "remedies/test_on_this_machine.py::test_memory_that_is_not_there",
        "{remedies.of_no_table(": _NO_TABLE,
    },
    "service/replay.py": {
        "skip one first": "remedies/test_on_this_machine.py::test_a_replay_of_what_was_not_skipped",
        "copy the transaction's tables": _NOT_REPLAYED,
        "unless they were copied since": _NOT_REPLAYED,
        "to see what it held": "bridge/service/test_replay.py::test_one_that_cannot_be_replayed_can_be_shown",
    },
    "service/subscriber.py": {
        "{unsupported[name].hint}": "oracle/test_typed.py::test_a_table_that_delta_cannot_hold_is_altered",
        "to subscribe to it": _NOT_SUBSCRIBED,
    },
    "skipped/replay.py": {
        "run: {remedies.resync(": _NOT_REPLAYED,
        "run the daemon until its state is r": _NOT_REPLAYED,
        "copy the table again": _NOT_REPLAYED,
    },
    "source/options.py": {
        "run in the database": _MISSING,
    },
    "spark/outcome.py": {
        "{what} run in Spark": "bridge/spark/test_outcome.py::test_the_statement_is_run",
    },
    "sync/made_tables.py": {
        "delete them in Spark": "oracle/test_changelog_and_history.py::"
        "test_deleted_rows_of_another_shape_are_not_kept_silently",
        "to remove it": _ADDED,
        "to lay them out": "remedies/test_of_a_subscription.py::test_a_layout_that_a_copy_loses",
    },
    "sync/refresh.py": {
        "to begin it anew": "remedies/test_of_a_subscription.py::test_a_changelog_with_a_gap",
    },
    "sync/server_check.py": {
        "if nothing else streams from it": "bridge/sync/test_start.py::"
        "test_the_slot_may_be_another_one_that_stands_there",
    },
    "sync/start.py": {
        "{recover}choose another slot_name": "remedies/test_of_a_subscription.py::test_a_slot_that_is_somebody_elses",
        "ALTER TABLE": _IDENTITY,
    },
    "receive/stream/masking.py": {
        "add {listed} to mask": "oracle/test_masks.py::test_definitions_that_change",
    },
    "sync/table_reading.py": {
        "end that transaction": "bridge/sync/test_tablesync_worker.py::"
        "test_a_table_that_is_locked_does_not_hold_up_the_others_of_a_start",
    },
    "sync/tablesync.py": {
        "copy the table afresh": "oracle/test_masks.py::test_masks_that_change_have_the_table_wait",
        "to have the copy replace": _ROWS_ALREADY,
        "{WAYS_BACK}": _GONE,
    },
    "targets/filled.py": {
        "run in Spark: ALTER TABLE": "oracle/test_own_columns.py::"
        "test_what_delta_cannot_fill_is_refused_for_its_table_alone",
    },
    "targets/target.py": {
        "set unrepresentable": _UNHELD,
        "run in Spark: ALTER TABLE": "bridge/targets/test_target.py::test_the_printed_statement_adds_what_is_missing",
    },
    "verify/command.py": {
        "{remedies.of_no_table(": _NO_TABLE,
    },
    "verify/verifier.py": {
        "{remedies.of_difference(": "bridge/verify/test_verifier.py::test_a_delta_table_differs",
    },
    "verify/verification.py": {
        "see {remedies.status()}": "remedies/test_of_a_subscription.py::test_a_lag_that_verify_does_not_wait_for",
    },
}

ELSEWHERE: Final[dict[str, dict[str, str]]] = {
    "apply/suspects.py": {
        "set a higher": "a JVM with 2 GB of heap beside the tests' own: faults/test_jvm.py reads it",
    },
    "batch/block_decoder.py": {
        "run on the server: ALTER TABLE": "no server sends such a change: it refuses the statement",
    },
    "check/machine.py": {
        "{remedies.install(": "downloads packages",
    },
    "demo/programs.py": {
        "run: {remedies.install(": "downloads packages",
    },
    "lake/ddl.py": {
        "create it in Spark": "a catalog with rights: Spark's own refuses names only",
    },
    "lake/log/local_tables.py": {
        "check the disk": "a disk that fails",
    },
    "lake/writes.py": {
        "check the disk": "a disk that fails",
    },
    "receive/connection.py": {
        "turn on ssl": "a server with TLS: the tests' is built without",
    },
    "receive/publisher.py": {
        "create one there": "PostgreSQL 19",
    },
    "receive/stream/copy_both.py": {
        "creating the publication again": "a server before PostgreSQL 18, whose walsender ends the stream",
    },
    "source/stream_reader.py": {
        "run on the server: SELECT": "Spark 4.0 or 4.1",
    },
    "spark/connect.py": {
        "install them": "downloads packages",
    },
}
"""What cannot be had where the tests run, and why."""
