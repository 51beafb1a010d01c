"""Bytes of PostgreSQL's logical replication <-> values and Arrow columns.

There is no I/O in here: no socket, no psycopg, no Spark, no clock. Modules, lowest first: `lsn`, `errors`,
`buffer` (bounds-checked cursor), `messages` (values), `pgoutput` (strict codec, its pairs in `boundaries` and `changes`), `walsender` (the replication
stream around it), `relations` (cache), `transactions` (assembler), `oids`, `types` (PostgreSQL type -> Arrow
type and value readers), `columns` (row messages in bulk -> Arrow), `copy` (COPY BINARY in bulk -> Arrow).
"""
