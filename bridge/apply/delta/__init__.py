"""Every call of Spark and Delta that applies changes: one commit for each table of a batch.

The contract of this sink, on which the applier relies:

    durable       When a commit's function returns, the commit is in the table's log. `durable` flushes a local
                  file system before the catalog says so.
    idempotent    Each commit carries its batch as `txnAppId` and `txnVersion`: Delta refuses it a second time.
    all or none   A commit changes its table as a whole, or fails and leaves it as it was. Where the answer is lost, the
                  error says that the outcome is unknown, and the history tells what happened.
    undoable      Until the next batch begins, a table can be restored to the version that the catalog recorded
                  when the batch began, its columns included.
"""
