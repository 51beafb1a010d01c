-- Publications by name, as they were created.
-- Parameters: publications text[]
-- Returns: name text, all_tables, pubinsert, pubupdate, pubdelete, pubtruncate, via_root bool,
--          generated_columns text (n, s; NULL before version 18), all_sequences bool (false before version 19)
-- Lowest version: 13 (publish_via_partition_root)
SELECT p.pubname AS name, p.puballtables AS all_tables, p.pubinsert, p.pubupdate, p.pubdelete, p.pubtruncate,
       p.pubviaroot AS via_root, to_jsonb(p) ->> 'pubgencols' AS generated_columns,
       coalesce((to_jsonb(p) ->> 'puballsequences')::bool, false) AS all_sequences
  FROM pg_publication p
 WHERE p.pubname = ANY (%(publications)s::text[])
