-- The tables of publications: a row for each table and publication that has it.
-- Parameters: publications text[]
-- Returns: relid oid, namespace, name, relkind, relreplident text, columns text[] (NULL: all),
--          row_filter text (NULL: none; always so)
-- Lowest version: 13 (publish_via_partition_root)
SELECT c.oid AS relid, n.nspname AS namespace, c.relname AS name, c.relkind::text, c.relreplident::text,
       NULL::text[] AS columns, NULL::text AS row_filter
  FROM pg_publication p
       CROSS JOIN LATERAL pg_get_publication_tables(p.pubname) AS gpt
       JOIN pg_class c ON c.oid = gpt.relid
       JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE p.pubname = ANY (%(publications)s::text[])
