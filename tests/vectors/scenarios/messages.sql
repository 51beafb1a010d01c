-- setup
CREATE TABLE t (id int PRIMARY KEY);
CREATE PUBLICATION "Odd, ""pub"" '\ €" FOR TABLE t;

-- step
SELECT pg_logical_emit_message(false, 'free', 'content');

-- step
SELECT pg_logical_emit_message(true, '', '');

-- step
BEGIN;
INSERT INTO t VALUES (1);
SELECT pg_logical_emit_message(true, 'prefix €', '\x00ff'::bytea);
SELECT pg_logical_emit_message(false, 'before its commit', 'x');
ROLLBACK;

-- step
BEGIN;
INSERT INTO t VALUES (1);
SELECT pg_logical_emit_message(true, 'p', 'content €');
COMMIT;
