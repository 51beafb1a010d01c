-- setup
CREATE TABLE filtered (id int PRIMARY KEY, price int, secret text);
ALTER TABLE filtered REPLICA IDENTITY FULL;
CREATE TABLE listed (id int PRIMARY KEY, a int, b int);
CREATE PUBLICATION pub_filter FOR TABLE filtered WHERE (price > 10);
CREATE PUBLICATION pub_list FOR TABLE listed (id, b);

-- step
INSERT INTO filtered VALUES (1, 5, 's'), (2, 20, 's');

-- step
UPDATE filtered SET price = 30 WHERE id = 1;
UPDATE filtered SET price = 1 WHERE id = 2;
UPDATE filtered SET price = 40 WHERE id = 1;
DELETE FROM filtered;

-- step
INSERT INTO listed VALUES (1, 2, 3);
UPDATE listed SET a = 5;
UPDATE listed SET id = 2;
DELETE FROM listed;
