"""Bytes of PostgreSQL's logical replication <-> values and Arrow columns.

There is no I/O in here: no socket, no psycopg, no Spark, no clock. Modules, lowest first: `lsn`, `errors`,
`buffer` (bounds-checked cursor), `messages` (values), `boundaries` and `changes` (the messages' codecs, decode and
encode side by side), `pgoutput` (the strict codec over them), `walsender` (the replication stream around it),
`relations` (cache), `transactions` (assembler), `oids`, `types` (PostgreSQL type -> Arrow type and value readers),
`columns` (row messages in bulk -> Arrow), `copy` (COPY BINARY in bulk -> Arrow).
"""
