-- setup
CREATE TABLE filler (id int, pad text);
ALTER TABLE filler ALTER pad SET STORAGE PLAIN;
CREATE TYPE mood AS ENUM ('sad', 'happy');
CREATE TABLE t (id int PRIMARY KEY, v text, m mood);
CREATE TABLE u (id int PRIMARY KEY);
CREATE PUBLICATION pub FOR TABLE t, u;

-- step
INSERT INTO t VALUES (0, 'alone', 'sad');

-- step
BEGIN;
INSERT INTO t VALUES (1, 'a', 'happy');
-- fill
INSERT INTO t VALUES (2, 'b');
-- fill
COMMIT;

-- step
BEGIN;
INSERT INTO t VALUES (3, 'top');
-- fill

-- step
SAVEPOINT s1;
INSERT INTO t VALUES (4, 'aborted');
UPDATE t SET v = 'aborted' WHERE id = 3;
-- fill

-- step
ROLLBACK TO s1;
INSERT INTO t VALUES (5, 'after the abort');
-- fill

-- step
SAVEPOINT s2;
DELETE FROM t WHERE id = 5;
-- fill
SAVEPOINT s3;
INSERT INTO u VALUES (1);
-- fill
RELEASE s3;

-- step
RELEASE s2;
UPDATE t SET id = 6 WHERE id = 3;
-- fill
COMMIT;

-- step
BEGIN;
INSERT INTO t VALUES (7);
-- fill

-- step
SAVEPOINT s;
ALTER TABLE t ADD w int;
INSERT INTO t VALUES (8, 'wide', NULL, 1);
-- fill

-- step
ROLLBACK TO s;
INSERT INTO t VALUES (9, 'narrow again');
-- fill

-- step
COMMIT;
INSERT INTO t VALUES (10);

-- step
BEGIN;
INSERT INTO t VALUES (11);
-- fill

-- step
ROLLBACK;

-- step
BEGIN;
INSERT INTO u VALUES (12);
SELECT pg_logical_emit_message(true, 'p', 'in a stream');
-- fill
TRUNCATE u;
-- fill
COMMIT;
