-- The types of a table's columns, as SQL writes them.
-- Parameters: relid oid
-- Returns: name text, declaration text
-- Lowest version: 14
SELECT attname::text AS name, format_type(atttypid, atttypmod) AS declaration
  FROM pg_attribute
 WHERE attrelid = %(relid)s AND attnum > 0 AND NOT attisdropped
 ORDER BY attnum
