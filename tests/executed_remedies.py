"""Which test executes a printed remedy, in the situation in which it is printed (see `test_printed_remedies`).

By module, then by how the remedy begins. Where no test executes it, it says how far it is tested:

    read      its command, statement or setting is read by pgbridge's parser, a server, Spark or the configuration
    computed  its command is written by a function of `bridge.runtime.remedies`, and read in each form that this has
    mentioned it names a command, without arguments, that exists
    shell     the shell reads it

A remedy with nothing to type ("check the connection string") needs no entry.
"""

from __future__ import annotations

OTHERWISE = frozenset({"read", "computed", "mentioned", "shell"})

_SWAPPED = "oracle/test_typed.py::test_two_tables_have_changed_their_names"
_READABLE = "bridge/check/test_tables.py::test_the_statements_let_the_role_read"
_IDENTITY = "bridge/sync/test_start.py::test_tables_without_an_identity_are_named_with_what_to_run"
_ADDED = "oracle/test_published_again.py::test_a_table_is_had_again_after_a_refresh_has_removed_it"
_EVENTS = "oracle/test_catalog_events.py::test_seed"
_GONE = "faults/test_runbook.py::test_a_delta_table_is_gone"
_LETS_IN = "bridge/receive/test_connection.py::test_what_the_hint_says_lets_the_role_in"
_NOT_SUBSCRIBED = "faults/test_runbook.py::test_a_published_table_is_not_subscribed"
_RENAMED = "oracle/test_renamed_table.py::test_a_table_is_renamed"
_RETYPED = "bridge/sync/test_tablesync_worker.py::test_a_table_whose_columns_changed_is_copied_afresh"
_SLOT = "bridge/receive/test_slot.py::test_a_slot_that_is_to_be_used_is_made_by_the_printed_statement"
_STATE_LOST = "faults/test_runbook.py::test_the_state_directory_is_lost"
_UNDONE = "bridge/lake/commit/test_restore.py::test_a_doubtful_batch_that_somebody_has_taken_back_by_hand"
_WAITS = "oracle/test_waits.py::test_one_table_waits_and_the_others_go_on"
_WENT_BACK = "faults/test_runbook.py::test_a_delta_table_went_back"

EXECUTED: dict[str, dict[str, str]] = {
    "apply/applier.py": {
        "{remedies.of_conflict(": "bridge/apply/test_applier.py::"
        "test_a_conflict_is_told_in_postgresqls_words_or_overwritten_and_reported",
    },
    "apply/maintenance.py": {
        "see DESCRIBE HISTORY": "bridge/apply/test_maintenance_spark.py::"
        "test_rows_that_another_writer_added_since_are_not_lost",
    },
    "apply/published.py": {
        "if it was a partition": "computed",
        "create it on the publisher": "oracle/test_missing_publication.py::test_it_is_taken_up_when_it_appears",
    },
    "apply/stream.py": {
        "set messages": "read",
        "{remedies.of_prepared_binary(": "oracle/test_undecodable.py::"
        "test_what_was_prepared_in_binary_form_and_cannot_be_read",
    },
    "apply/stream_events.py": {
        "to copy the table afresh": _EVENTS,
    },
    "apply/suspects.py": {
        "set a higher": "computed",
    },
    "batch/block_decoder.py": {
        "a history needs": "read",
        "run on the server: ALTER TABLE": "read",
    },
    "batch/routes.py": {
        "copy both afresh": _SWAPPED,
        'table "{old}" was renamed': _RENAMED,
    },
    "catalog/lock.py": {
        "kill its process": "shell",
    },
    "check/connect.py": {
        "{remedies.install(": "computed",
    },
    "check/delta_protocol.py": {
        "ALTER TABLE": "bridge/check/test_delta_protocol.py::test_a_statement_that_removes_the_property",
        "move it away": _STATE_LOST,
    },
    "check/machine.py": {
        "set a lower": "read",
        "ulimit": "shell",
        "chmod -R": "bridge/check/test_machine.py::test_a_state_directory_that_everybody_can_enter",
        "chmod 600": "bridge/check/test_machine.py::test_the_command_against_it_is_quoted",
    },
    "check/server.py": {
        "pgbridge check --sql": "bridge/check/test_report.py::test_the_script_without_a_server",
        "ALTER ROLE {quoted_name(facts.role)} PASSWORD": "read",
        "ALTER SYSTEM SET max_slot_wal_keep_size": "read",
        "ALTER SYSTEM SET {subject}": "read",
        "ALTER ROLE {quoted_name(facts.role)} SET": "read",
        "ALTER SYSTEM SET hot_standby_feedback": "read",
        "have such texts": "read",
        "ROLLBACK PREPARED": "faults/test_runbook.py::test_an_open_transaction_holds_up_the_start",
        "SELECT pg_terminate_backend": "read",
    },
    "check/slot.py": {
        "SELECT pg_terminate_backend": "read",
        "ALTER SYSTEM": "read",
    },
    "check/subscription.py": {
        "run on the server; if": _NOT_SUBSCRIBED,
        "CREATE PUBLICATION": "read",
    },
    "check/tables.py": {
        "GRANT USAGE": _READABLE,
        "GRANT SELECT": _READABLE,
        "ALTER ROLE": _READABLE,
        "ALTER TABLE": _IDENTITY,
    },
    "commands/drop.py": {
        "enable the subscription": "bridge/commands/test_drop.py::test_drop_of_a_half_applied_batch",
        "drop that slot": "computed",
    },
    "commands/refresh.py": {
        "its tables are listed by": "read",
        "to remove it": _ADDED,
    },
    "config/config.py": {
        "write one with": "read",
    },
    "demo/folder.py": {
        "choose a new folder": "read",
    },
    "demo/show.py": {
        "run: {remedies.install(": "computed",
    },
    "evolution/tracker.py": {
        "{remedies.resync(": _RETYPED,
        "{'; then '.join(": _WAITS,
    },
    "lake/changes/entry_filters.py": {
        "filter_server": "read",
    },
    "lake/commit/messages.py": {
        "set messages": "read",
    },
    "lake/create.py": {
        "move them away": "read",
        "create it in Spark": "read",
    },
    "lake/forms.py": {
        "move it away": "read",
        'set mode = "changelog" for the table, or leave one': "read",
        'set mode = "changelog" for the table, or leave the': "read",
    },
    "lake/location.py": {
        "restore them from a backup": "read",
    },
    "lake/log/durable.py": {
        "check the disk": "computed",
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
    "monitor/access.py": {
        "chmod 600": "bridge/monitor/test_access.py::test_a_token_file",
    },
    "monitor/document.py": {
        "to skip the transaction, run": "computed",
        "to let it run again, run": "computed",
    },
    "publication/differences.py": {
        "{self._publish_again(": _EVENTS,
        "to copy it and follow it": _ADDED,
        "to follow what is published now": _EVENTS,
        "run on the server: ALTER PUBLICATION": "read",
    },
    "publication/partition_root.py": {
        "subscribe to a publication": "read",
    },
    "publication/replica_identity.py": {
        "{self.place}publication": "read",
    },
    "receive/connection.py": {
        "run on the server: ALTER ROLE … REPLICATION": _LETS_IN,
        "run on the server: ALTER SYSTEM SET max_wal_senders": "read",
        "run on the server: ALTER SYSTEM SET max_replication_slots": "read",
        "ALTER ROLE {} CONNECTION": _LETS_IN,
        "ALTER DATABASE": _LETS_IN,
        "ALTER ROLE {} LOGIN": _LETS_IN,
        "run on the {where}": "read",
        "the role needs SELECT": "read",
        "turn on ssl": "read",
    },
    "receive/filter_server.py": {
        "use a standby": "read",
    },
    "receive/publisher.py": {
        "run on the server: ALTER SYSTEM": "read",
        "create one there": "read",
        "run in the database": "read",
    },
    "receive/slot.py": {
        "check the connection string; if": "faults/test_positions.py::"
        "test_a_table_that_is_handed_over_while_the_subscription_is_stuck",
        "run on the server: SELECT": _SLOT,
        "drop it on the server": _SLOT,
    },
    "receive/slot_health.py": {
        "raise max_slot_wal_keep_size on the server now": "read",
        "raise max_slot_wal_keep_size on the server, or": "read",
        "see why the subscription lags": "read",
        "run on the server: ALTER ROLE": "read",
    },
    "receive/stream/undecodable.py": {
        "the added tables": "oracle/test_undecodable.py::test_the_server_cannot_send_it_to_added_tables_either",
        "the change is in the WAL; to skip": "oracle/test_undecodable.py::test_the_server_cannot_send_a_transaction",
        "the change is in the WAL, and": "oracle/test_undecodable.py::test_a_culprit_that_is_not_known",
    },
    "receive/stream/walreceiver.py": {
        "creating the publication again": "computed",
    },
    "service/daemon.py": {
        "set a lower": "read",
    },
    "service/replay.py": {
        "skip one first": "computed",
        "copy the transaction's tables": "computed",
    },
    "service/subscriber.py": {
        "{found[name].hint}": "oracle/test_typed.py::test_a_table_that_delta_cannot_hold_is_altered",
        "to subscribe to it": _NOT_SUBSCRIBED,
    },
    "skipped/replay.py": {
        "run: {remedies.resync(": "computed",
        "run the daemon until its state is r": "mentioned",
        "copy the table again": "computed",
    },
    "source/slot_stream.py": {
        "run in the database": "read",
    },
    "spark/connect.py": {
        "write master": "read",
        "install them": "computed",
    },
    "spark/hints.py": {
        "{what} run in Spark": "read",
    },
    "sync/made_tables.py": {
        "to lay them out": "computed",
    },
    "sync/own_position.py": {
        "{again}have the table": _WENT_BACK,
    },
    "sync/refresh.py": {
        "to begin it anew": "computed",
    },
    "sync/start.py": {
        "choose another slot_name": "read",
        "ALTER TABLE": _IDENTITY,
    },
    "sync/tablesync.py": {
        "to remove it": _ADDED,
        "to have the copy replace": _STATE_LOST,
        "{WAYS_BACK}": _GONE,
    },
    "targets/filled.py": {
        "run in Spark: ALTER TABLE": "oracle/test_own_columns.py::"
        "test_what_delta_cannot_fill_is_refused_for_its_table_alone",
    },
    "targets/target.py": {
        "set unrepresentable": "read",
        "run in Spark: ALTER TABLE": "bridge/targets/test_target.py::test_the_printed_statement_adds_what_is_missing",
    },
    "verify/verification.py": {
        "see pgbridge status": "mentioned",
    },
}
