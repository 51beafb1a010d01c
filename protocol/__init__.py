"""Bytes of PostgreSQL's logical replication <-> values and Arrow columns.

There is no I/O here: no socket, no psycopg, no Spark, no clock. The modules, lowest first:

- `lsn`, `errors`, `buffer` (a bounds-checked cursor), `values/` (PostgreSQL's types and their values)
- one message at a time: `messages` (dataclasses), `transaction_messages` and `pgoutput` (the strict codec: decode and
  encode side by side), `walsender` (the replication stream around it)
- many messages at once: `message_array` (in the buffers in which they arrived), `decode_chunk` and `columns`
  (row messages -> Arrow), `copy` (CopyData in a buffer, COPY BINARY -> Arrow)
- transactions: `relations` (the announced definitions), `transactions`, runs of which are found in bulk, `assembler`
"""
