-- setup
CREATE TABLE filler (id int, pad text);
ALTER TABLE filler ALTER pad SET STORAGE PLAIN;
CREATE TABLE t (id int PRIMARY KEY);
CREATE PUBLICATION pub FOR TABLE t;
SELECT pg_replication_origin_create('vector origin €');

-- step
INSERT INTO t VALUES (1);

-- step
SELECT pg_replication_origin_session_setup('vector origin €');

-- step
BEGIN;
SELECT pg_replication_origin_xact_setup('AB/CDEF0123', '2024-01-02 03:04:05+00');
INSERT INTO t VALUES (2);
COMMIT;

-- step
BEGIN;
SELECT pg_replication_origin_xact_setup('AB/CDEF0456', now());
INSERT INTO t VALUES (3);
-- fill
INSERT INTO t VALUES (4);
COMMIT;

-- step
SELECT pg_replication_origin_session_reset();
SELECT pg_replication_origin_drop('vector origin €');
