-- The tables of publications: a row for each table and publication that has it, without partitions whose root one of
-- the publications publishes in their place (publish_via_partition_root).
-- Parameters: publications text[]
-- Returns: relid oid, namespace, name, relkind, relreplident text, columns text[] (NULL: all),
--          row_filter text (NULL: none; always so)
-- Lowest version: 13 (publish_via_partition_root)
WITH published AS (
    SELECT gpt.relid
      FROM pg_publication p
           CROSS JOIN LATERAL pg_get_publication_tables(p.pubname) AS gpt
     WHERE p.pubname = ANY (%(publications)s::text[])
)
SELECT c.oid AS relid, n.nspname AS namespace, c.relname AS name, c.relkind::text, c.relreplident::text,
       NULL::text[] AS columns, NULL::text AS row_filter
  FROM published
       JOIN pg_class c ON c.oid = published.relid
       JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE NOT EXISTS (SELECT
                     FROM pg_partition_ancestors(c.oid) AS ancestor
                          JOIN published AS above ON above.relid = ancestor.relid
                    WHERE above.relid <> c.oid)
