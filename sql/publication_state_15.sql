-- As publication_state_14.sql, with schemas.
-- Parameters: publications text[], relid oid (NULL: of all tables; else of this one, and of its schema)
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
         WHERE p.pubname = ANY (%(publications)s::text[]) AND m.prrelid = coalesce(%(relid)s::oid, m.prrelid)
         UNION ALL
        SELECT 's' || m.oid || ':' || m.xmin
          FROM pg_publication p
          JOIN pg_publication_namespace m ON m.pnpubid = p.oid
         WHERE p.pubname = ANY (%(publications)s::text[])
           AND m.pnnspid = coalesce((SELECT relnamespace FROM pg_class WHERE oid = %(relid)s::oid), m.pnnspid)) facts
