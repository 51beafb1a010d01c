-- setup
CREATE TABLE t (id int PRIMARY KEY, a int, b int GENERATED ALWAYS AS (a + 1) STORED);
CREATE PUBLICATION pub FOR TABLE t WITH (publish_generated_columns = stored);

-- step
INSERT INTO t VALUES (1, 5);
UPDATE t SET a = 6;
DELETE FROM t;
