-- setup
CREATE TYPE mood AS ENUM ('sad', 'happy');
CREATE DOMAIN positive AS int CHECK (VALUE > 0);
CREATE TYPE pair AS (x int, y text);
CREATE SCHEMA other;
CREATE TYPE other.span AS RANGE (subtype = float8);
CREATE TABLE numbers (id int PRIMARY KEY, bo bool, i2 int2, i8 int8, o oid, f4 float4, f8 float8, n numeric,
    n102 numeric(10,2), m money);
CREATE TABLE texts (id int PRIMARY KEY, t text, v varchar(10), c char(4), n name, by bytea, j json, jb jsonb, u uuid,
    b bit(3), vb varbit, ts tsvector);
CREATE TABLE times (id int PRIMARY KEY, d date, t time, tz timetz(3), ts timestamp, tstz timestamptz, iv interval);
CREATE TABLE others (id int PRIMARY KEY, ip inet, cd cidr, mac macaddr, p point, r int4range, mr int4multirange,
    ia int[], ta text[], e mood, ea mood[], d positive, pr pair, sp other.span);
CREATE PUBLICATION pub FOR ALL TABLES;

-- step
INSERT INTO numbers VALUES
    (1, true, -32768, 9223372036854775807, 4294967295, 1.5, 0.1, 12345678901234567890.123456789, -1.25, 12.34),
    (2, false, 32767, -9223372036854775808, 0, 'NaN', 'Infinity', 'NaN', 0, -1),
    (3, NULL, 0, 0, 1, '-0', '-Infinity', '-Infinity', 99999999.99, 0);
INSERT INTO numbers VALUES (4);

-- step
INSERT INTO texts VALUES
    (1, E'a\n\t''"\\', 'vier', 'ab', 'pg_class', '\x00ff10', '{"a" : [1, null]}', '{"a" : [1, null]}',
    'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11', B'101', B'01', 'a fat cat'::tsvector),
    (2, '', '', '', '', '', '""', '{}', '00000000-0000-0000-0000-000000000000', B'000', B'', '');
INSERT INTO texts VALUES (3, '😀 ünï');

-- step
SET TimeZone = 'UTC';
INSERT INTO times VALUES
    (1, '2024-02-29', '23:59:59.999999', '12:00:00.123+05:30', '2024-02-29 12:34:56.789', '2024-02-29 12:34:56+02',
    '1 year 2 mons -3 days 04:05:06.7'),
    (2, 'infinity', '24:00', '00:00-12', '-infinity', 'infinity', '0'),
    (3, '0044-03-15 BC', '00:00', NULL, '0001-01-01 00:00', '294276-12-31 23:59:59.999999', '-178000000 years');

-- step
INSERT INTO others VALUES
    (1, '192.168.0.1/24', '2001:db8::/32', '08:00:2b:01:02:03', '(1.5,-2)', '[1,5)', '{[1,2),[5,9)}', '{1,NULL,3}',
    '{a,"b c",NULL,"NULL","\"q\""}', 'happy', '{sad,happy}', 7, '(1,"x y")', '[1.5,2.5)'),
    (2, '::1', '0.0.0.0/0', '00:00:00:00:00:00', '(0,0)', 'empty', '{}', '{}', '{{a,b},{c,d}}', 'sad', '{}', 1, '(,)',
    '(,)');
INSERT INTO others VALUES (3);

-- step
ALTER TYPE mood RENAME VALUE 'sad' TO 'blue';
UPDATE others SET e = 'blue', d = 8 WHERE id = 1;
