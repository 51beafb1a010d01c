-- setup
CREATE TABLE t (id int PRIMARY KEY, v text);
CREATE PUBLICATION pub FOR TABLE t;

-- step
BEGIN;
INSERT INTO t VALUES (1, 'top');
SAVEPOINT s;
INSERT INTO t VALUES (2, 'aborted');

-- step
ROLLBACK TO s;
INSERT INTO t VALUES (3, 'after the abort');
SELECT pg_logical_emit_message(true, 'p', 'in a stream');
COMMIT;

-- step
BEGIN;
DELETE FROM t;

-- step
ROLLBACK;
