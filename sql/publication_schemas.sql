-- As publication_state.sql, of the schemas whose tables are published.
-- Parameters: publications text[], relid oid (NULL: of all schemas; else of the table's)
-- Returns: state text; one row
-- Lowest version: 15 (pg_publication_namespace)
SELECT coalesce(string_agg(m.oid || ':' || m.xmin, ' ' ORDER BY m.oid), '') AS state
  FROM pg_publication p
  JOIN pg_publication_namespace m ON m.pnpubid = p.oid
 WHERE p.pubname = ANY (%(publications)s::text[])
   AND m.pnnspid = coalesce((SELECT relnamespace FROM pg_class WHERE oid = %(relid)s::oid), m.pnnspid)
