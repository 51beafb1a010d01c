-- The tables of the database and other relations that a publication may name, without those of system schemas.
-- Parameters: none
-- Returns: relid oid, namespace, name, relkind text (r, p, v, m, f, S), relpersistence text (p, u),
--          publishable bool (is_publishable_class, but no sequence), is_partition bool,
--          replica_identity text (d, n, f, i),
--          parents oid[] (the table it is a partition of, or those it inherits from),
--          partition_key text[] (names of columns; empty if it is not partitioned);
--          ordered by namespace, name
-- Lowest version: 10
SELECT c.oid AS relid, n.nspname AS namespace, c.relname AS name, c.relkind::text, c.relpersistence::text,
       -- from version 19 on a sequence is publishable, too: to no stream, by ALL SEQUENCES
       c.relkind IN ('r', 'p') AND pg_relation_is_publishable(c.oid) AS publishable, c.relispartition AS is_partition,
       c.relreplident::text AS replica_identity,
       ARRAY(SELECT i.inhparent FROM pg_inherits i WHERE i.inhrelid = c.oid ORDER BY i.inhseqno) AS parents,
       -- an expression has the number 0
       ARRAY(SELECT coalesce(a.attname::text, '(expression)')
               FROM pg_partitioned_table p
                    CROSS JOIN unnest(p.partattrs::int2[]) WITH ORDINALITY AS k (attnum, number)
                    LEFT JOIN pg_attribute a ON a.attrelid = p.partrelid AND a.attnum = k.attnum
              WHERE p.partrelid = c.oid ORDER BY k.number) AS partition_key
  FROM pg_class c
       JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE c.relkind IN ('r', 'p', 'v', 'm', 'f', 'S') AND c.relpersistence <> 't'
   AND n.nspname NOT IN ('pg_catalog', 'pg_toast', 'information_schema')
 ORDER BY n.nspname, c.relname
