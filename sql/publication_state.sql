-- What tells whether publications have been altered, without a lock on a table: the rows of the catalog, each with the
-- transaction that wrote it. One that is taken out and put back has another row.
-- Parameters: publications text[], relid oid (NULL: of all tables; else of this one)
-- Returns: state text; one row
-- Lowest version: 10
SELECT coalesce(string_agg(fact, ' ' ORDER BY fact), '') AS state
  FROM (SELECT 'p' || p.oid || ':' || p.xmin AS fact
          FROM pg_publication p
         WHERE p.pubname = ANY (%(publications)s::text[])
         UNION ALL
        SELECT 't' || m.oid || ':' || m.xmin
          FROM pg_publication p
          JOIN pg_publication_rel m ON m.prpubid = p.oid
         WHERE p.pubname = ANY (%(publications)s::text[]) AND m.prrelid = coalesce(%(relid)s::oid, m.prrelid)) facts
