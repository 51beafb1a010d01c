-- The tables of publications: a row for each table and publication that has it, without partitions whose root one of
-- the publications publishes in their place (publish_via_partition_root).
-- Parameters: publications text[]
-- Returns: relid oid, namespace, name, relkind, relreplident text, columns text[] (NULL: all),
--          row_filter text (NULL: none)
-- Lowest version: 15 (row filters and column lists)
WITH published AS (
    SELECT gpt.relid, gpt.attrs, gpt.qual
      FROM pg_publication p
           CROSS JOIN LATERAL pg_get_publication_tables(p.pubname) AS gpt
     WHERE p.pubname = ANY (%(publications)s::text[])
)
SELECT c.oid AS relid, n.nspname AS namespace, c.relname AS name, c.relkind::text, c.relreplident::text,
       CASE WHEN gpt.attrs IS NOT NULL
            THEN ARRAY(SELECT a.attname::text FROM pg_attribute a
                        WHERE a.attrelid = c.oid AND a.attnum = ANY (gpt.attrs))
       END AS columns,
       pg_get_expr(gpt.qual, gpt.relid) AS row_filter
  FROM published AS gpt
       JOIN pg_class c ON c.oid = gpt.relid
       JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE NOT EXISTS (SELECT
                     FROM pg_partition_ancestors(c.oid) AS ancestor
                          JOIN published AS above ON above.relid = ancestor.relid
                    WHERE above.relid <> c.oid)
