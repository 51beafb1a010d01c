"""`format("pgoutput")`: a publication's changes, or a snapshot of its tables, as a Spark data source of its own.

It shares the receiver, the assembler and the decoders with the daemon, and nothing else: Spark plans the batches, keeps
the offsets in its checkpoint, and writes to any sink. The contract with Structured Streaming:

    offset        A position of the WAL. A batch (start, end] has the whole transactions that end in it.
    replayable    A batch has the same rows each time it is read, from memory, on an executor or after a restart: the
                  slot is confirmed only up to offsets of which Spark has said that their batch is committed.
    refused       A slot that has moved beyond the checkpoint, another server, and a server that went back.

Three kinds of processes run this code: the driver's, which plans batches (`data_source`, `look_ahead`); executors,
which read large batches from the slot (`slot_stream`); and the one of the user's program, for snapshots (`export`).
"""
