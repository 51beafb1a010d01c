"""Every call of Spark and Delta that applies changes: one commit to each table of a batch.

The contract of this sink, on which the applier relies:

    durable       When a function that commits returns, the commit is in the table's log. On a local file system it may
                  not be on disk yet: `log.local_tables.LocalTables.flush` must return before the catalog records the
                  batch.
    idempotent    Within `log.stamp.stamped`, a commit carries its batch as `txnAppId` and `txnVersion`. Delta leaves
                  it out if the table has that version, or a higher one, of that application id: nothing is evaluated,
                  nothing is raised, and `writes.merge_into` returns None. ALTER TABLE is not covered: a batch that
                  changes columns and was cut short is undone, not repeated (`ddl`).
    all or none   A function commits to one table by one Delta commit, or not at all; only `alter_table` makes several.
                  After TargetBusy (`retry`) that table has nothing of the commit. Any other error, of Spark or
                  of the connection to it, does not say whether the commit was made: the table's `log.history` does.
    undoable      Until the next batch begins, `commit.restore.restore_tables` restores each table, with its columns,
                  to the version before the batch's first commit, which it finds in `log.history`. It refuses
                  (TargetError) if another writer has changed rows since.

Functions raise Spark's own errors (`bridge.spark.outcome.SPARK_ERRORS`) except where they say otherwise.
`bridge.lake.commit_errors` makes an ApplyError of them, or OutcomeUnknown if the connection to Spark was lost. A
commit may still be made then, so the batch is applied again, or undone with `fence`, which keeps a late one out.
An error that a commit raises on purpose is read back: a conflict (`commit_errors.conflict_of`).
"""
