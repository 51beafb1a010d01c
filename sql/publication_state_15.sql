-- As publication_state_14.sql, with schemas.
-- Parameters: publications text[]
-- Returns: state text; one row
-- Lowest version: 15 (pg_publication_namespace)
SELECT coalesce(string_agg(fact, ' ' ORDER BY fact), '') AS state
  FROM (SELECT 'p' || p.oid || ':' || p.xmin AS fact
          FROM pg_publication p
         WHERE p.pubname = ANY (%(publications)s::text[])
         UNION ALL
        SELECT 't' || m.oid || ':' || m.xmin
          FROM pg_publication p
          JOIN pg_publication_rel m ON m.prpubid = p.oid
         WHERE p.pubname = ANY (%(publications)s::text[])
         UNION ALL
        SELECT 's' || m.oid || ':' || m.xmin
          FROM pg_publication p
          JOIN pg_publication_namespace m ON m.pnpubid = p.oid
         WHERE p.pubname = ANY (%(publications)s::text[])) facts
