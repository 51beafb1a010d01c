-- The types of a table's columns, as SQL writes them; of a domain the type beneath it.
-- A cast to a domain fails for rows that are older than its constraint, and still does to an array of a domain.
-- Parameters: relid oid
-- Returns: name text, declaration text
-- Lowest version: 14
WITH RECURSIVE base AS (
    SELECT attnum, attname, atttypid AS type, atttypmod AS typmod
      FROM pg_attribute
     WHERE attrelid = %(relid)s AND attnum > 0 AND NOT attisdropped
    UNION ALL
    SELECT attnum, attname, typbasetype, typtypmod
      FROM base JOIN pg_type ON pg_type.oid = base.type
     WHERE typtype = 'd'
)
SELECT attname::text AS name, format_type(type, typmod) AS declaration
  FROM base JOIN pg_type ON pg_type.oid = base.type
 WHERE typtype <> 'd'
 ORDER BY attnum
