-- setup
CREATE TYPE mood AS ENUM ('sad', 'happy');
CREATE TABLE t (id int PRIMARY KEY, v text, m mood);
CREATE TABLE u (id int PRIMARY KEY);
CREATE PUBLICATION pub FOR TABLE t, u;

-- step
BEGIN;
INSERT INTO u VALUES (1);
PREPARE TRANSACTION 'committed';

-- step
COMMIT PREPARED 'committed';

-- step
BEGIN;
INSERT INTO u VALUES (2);
PREPARE TRANSACTION 'rolled back €';

-- step
ROLLBACK PREPARED 'rolled back €';

-- step
BEGIN;
CREATE TABLE not_published ();
PREPARE TRANSACTION 'empty';

-- step
COMMIT PREPARED 'empty';
