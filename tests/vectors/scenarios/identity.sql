-- setup
CREATE TABLE keyed (a int, b text, v text, PRIMARY KEY (b, a));
CREATE TABLE by_index (id int PRIMARY KEY, code text NOT NULL UNIQUE, v int);
ALTER TABLE by_index REPLICA IDENTITY USING INDEX by_index_code_key;
CREATE TABLE whole (id int PRIMARY KEY, v text, big text);
ALTER TABLE whole REPLICA IDENTITY FULL, ALTER big SET STORAGE EXTERNAL;
CREATE TABLE bag (v int);
ALTER TABLE bag REPLICA IDENTITY FULL;
CREATE TABLE silent (id int PRIMARY KEY, v int);
ALTER TABLE silent REPLICA IDENTITY NOTHING;
CREATE TABLE keyless (v int);
CREATE TABLE long_key (k text PRIMARY KEY, v int);
ALTER TABLE long_key ALTER k SET STORAGE EXTERNAL;
CREATE PUBLICATION pub FOR TABLE keyed, by_index, whole, bag, long_key;
CREATE PUBLICATION pub_insert FOR TABLE silent, keyless WITH (publish = 'insert');

-- step
INSERT INTO keyed VALUES (1, 'x', 'v');
UPDATE keyed SET v = 'w';
UPDATE keyed SET a = 2;
DELETE FROM keyed;

-- step
INSERT INTO by_index VALUES (1, 'c', 0);
UPDATE by_index SET id = 2;
UPDATE by_index SET code = 'd';
DELETE FROM by_index;

-- step
INSERT INTO whole VALUES (1, 'v', repeat('b', 2100));
UPDATE whole SET v = NULL;
DELETE FROM whole;

-- step
INSERT INTO bag VALUES (1), (1), (NULL);
UPDATE bag SET v = 2 WHERE v IS NULL;
DELETE FROM bag WHERE v = 1;

-- step
INSERT INTO silent VALUES (1, 1);
UPDATE silent SET v = 2;
DELETE FROM silent;

-- step
INSERT INTO keyless VALUES (1);
INSERT INTO keyless VALUES (NULL);

-- step
INSERT INTO long_key VALUES (repeat('k', 2100), 1);
UPDATE long_key SET v = 2;
