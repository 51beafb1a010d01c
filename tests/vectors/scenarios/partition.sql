-- setup
CREATE TABLE root (id int PRIMARY KEY, v text) PARTITION BY RANGE (id);
CREATE TABLE leaf (v text, id int PRIMARY KEY);
ALTER TABLE root ATTACH PARTITION leaf FOR VALUES FROM (0) TO (10);
CREATE PUBLICATION pub FOR TABLE root WITH (publish_via_partition_root = true);

-- step
INSERT INTO root VALUES (1, 'v');
UPDATE root SET v = 'w';
DELETE FROM root;
TRUNCATE root;
