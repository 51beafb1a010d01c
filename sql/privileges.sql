-- Whether the connection's role may read tables.
-- Parameters: relids oid[]
-- Returns: relid oid, usage bool (of the schema), unreadable text[] (columns without SELECT),
--          row_security bool (a policy hides rows from the role)
-- Lowest version: 10
SELECT c.oid AS relid,
       has_schema_privilege(c.relnamespace, 'USAGE') AS usage,
       ARRAY(SELECT a.attname::text
               FROM pg_attribute a
              WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
                    AND NOT has_column_privilege(c.oid, a.attnum, 'SELECT')
              ORDER BY a.attnum) AS unreadable,
       row_security_active(c.oid) AS row_security
  FROM pg_class c
 WHERE c.oid = ANY(%(relids)s::oid[])
