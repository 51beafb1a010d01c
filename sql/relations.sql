-- The tables of the database and other relations that a publication may name, without those of system schemas.
-- Parameters: slot_name text (NULL for none)
-- Returns: relid oid, namespace, name, relkind text (r, p, v, m, f, S), relpersistence text (p, u),
--          publishable bool (is_publishable_class, but no sequence), is_partition bool,
--          replica_identity text (d, n, f, i),
--          parents oid[] (the table it is a partition of, or those it inherits from; without one that it is being
--          detached from concurrently, as in pgoutput),
--          parent_since_xid int8 (the transaction that made it a partition; of a table that is none, the one that
--          made it none if it was one; 0 if that precedes all that the slot still sends, or without a slot),
--          created_so bool (that transaction created it),
--          partition_key text[] (names of columns; empty if it is not partitioned);
--          ordered by namespace, name
-- Lowest version: 14
--
-- DETACH writes the row of each column, which is not inherited any more: so the oldest of these is not older. What
-- catalog_xmin proves, sql/primary_key.sql says.
SELECT c.oid AS relid, n.nspname AS namespace, c.relname AS name, c.relkind::text, c.relpersistence::text,
       -- from version 19 on a sequence is publishable, too: to no stream, by ALL SEQUENCES
       -- NULL of a table that was dropped since this snapshot
       c.relkind IN ('r', 'p') AND coalesce(pg_relation_is_publishable(c.oid), c.relpersistence = 'p') AS publishable,
       c.relispartition AS is_partition,
       c.relreplident::text AS replica_identity,
       ARRAY(SELECT i.inhparent FROM pg_inherits i
              WHERE i.inhrelid = c.oid AND NOT i.inhdetachpending ORDER BY i.inhseqno) AS parents,
       CASE WHEN age(since.xid) BETWEEN 0 AND age(s.catalog_xmin) THEN since.xid::text::int8 ELSE 0
       END AS parent_since_xid,
       coalesce(since.xid::text = made.xmin::text, true) AS created_so,
       -- an expression has the number 0
       ARRAY(SELECT coalesce(a.attname::text, '(expression)')
               FROM pg_partitioned_table p
                    CROSS JOIN unnest(p.partattrs::int2[]) WITH ORDINALITY AS k (attnum, number)
                    LEFT JOIN pg_attribute a ON a.attrelid = p.partrelid AND a.attnum = k.attnum
              WHERE p.partrelid = c.oid ORDER BY k.number) AS partition_key
  FROM pg_class c
       JOIN pg_namespace n ON n.oid = c.relnamespace
       LEFT JOIN pg_replication_slots s ON s.slot_name = %(slot_name)s
       -- A system column's row is written when the table is created, and never again.
       LEFT JOIN pg_attribute made ON made.attrelid = c.oid AND made.attnum = -6
       LEFT JOIN LATERAL (
           SELECT i.xmin AS xid FROM pg_inherits i WHERE c.relispartition AND i.inhrelid = c.oid
            UNION ALL
          (SELECT a.xmin FROM pg_attribute a
            WHERE NOT c.relispartition AND a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
            ORDER BY age(a.xmin) DESC LIMIT 1)
       ) AS since ON c.relkind IN ('r', 'p')
 WHERE c.relkind IN ('r', 'p', 'v', 'm', 'f', 'S') AND c.relpersistence <> 't'
   AND n.nspname NOT IN ('pg_catalog', 'pg_toast', 'information_schema')
 ORDER BY n.nspname, c.relname
