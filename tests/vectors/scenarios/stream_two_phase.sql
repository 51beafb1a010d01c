-- setup
CREATE TABLE filler (id int, pad text);
ALTER TABLE filler ALTER pad SET STORAGE PLAIN;
CREATE TYPE mood AS ENUM ('sad', 'happy');
CREATE TABLE t (id int PRIMARY KEY, v text, m mood);
CREATE TABLE u (id int PRIMARY KEY);
CREATE PUBLICATION pub FOR TABLE t, u;

-- step
BEGIN;
INSERT INTO t VALUES (1, 'streamed');
-- fill
SAVEPOINT s;
INSERT INTO t VALUES (2);
-- fill

-- step
ROLLBACK TO s;
INSERT INTO t VALUES (3);
-- fill
PREPARE TRANSACTION 'streamed and committed';

-- step
INSERT INTO t VALUES (4);

-- step
COMMIT PREPARED 'streamed and committed';

-- step
BEGIN;
INSERT INTO t VALUES (5);
-- fill
PREPARE TRANSACTION 'streamed and rolled back';

-- step
ROLLBACK PREPARED 'streamed and rolled back';
