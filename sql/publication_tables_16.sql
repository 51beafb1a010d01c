-- The tables of publications: a row for each table and publication that has it, without leaf partitions whose root
-- another of the publications publishes (publish_via_partition_root).
-- Parameters: publications text[]
-- Returns: relid oid, namespace, name, relkind, relreplident text, columns text[] (the published ones),
--          row_filter text (NULL: none)
-- Lowest version: 16 (pg_get_publication_tables takes several names)
SELECT c.oid AS relid, n.nspname AS namespace, c.relname AS name, c.relkind::text, c.relreplident::text,
       ARRAY(SELECT a.attname::text FROM pg_attribute a
              WHERE a.attrelid = c.oid AND a.attnum = ANY (gpt.attrs)) AS columns,
       pg_get_expr(gpt.qual, gpt.relid) AS row_filter
  FROM pg_get_publication_tables(VARIADIC %(publications)s::text[]) AS gpt
       JOIN pg_class c ON c.oid = gpt.relid
       JOIN pg_namespace n ON n.oid = c.relnamespace
