-- setup
CREATE TABLE item (id int PRIMARY KEY, name text, price numeric(10,2), note text);
ALTER TABLE item ALTER note SET STORAGE EXTERNAL;
CREATE SCHEMA "Größe";
CREATE TABLE "Größe"."a ""b c" ("Id" bigint PRIMARY KEY, "naïve" varchar(5));
CREATE PUBLICATION pub FOR ALL TABLES;

-- step
INSERT INTO item VALUES (1, 'one', 1.50, NULL), (2, '', -0.01, 'short'), (3, 'drei €', NULL, repeat('n', 2100));

-- step
UPDATE item SET price = 2 WHERE id = 1;

-- step
UPDATE item SET name = NULL WHERE id = 3;

-- step
UPDATE item SET id = 30 WHERE id = 3;

-- step
DELETE FROM item WHERE id IN (2, 30);

-- step
INSERT INTO "Größe"."a ""b c" VALUES (1, 'héé');

-- step
BEGIN;
INSERT INTO item VALUES (4, 'four');
SAVEPOINT s;
INSERT INTO item VALUES (5);
ROLLBACK TO s;
INSERT INTO item VALUES (6);
COMMIT;

-- step
BEGIN;
INSERT INTO item VALUES (7);
ALTER TABLE item ADD extra int DEFAULT 9;
INSERT INTO item VALUES (8);
COMMIT;

-- step
ALTER TABLE item DROP COLUMN name;
UPDATE item SET extra = 10 WHERE id = 1;

-- step
ALTER TABLE item RENAME TO thing;
DELETE FROM thing WHERE id = 1;
