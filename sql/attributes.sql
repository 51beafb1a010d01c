-- All columns that tables ever had, with the value that rows from before ADD COLUMN have.
-- Parameters: relids oid[], slot_name text, xid xid (as in sql/primary_key.sql)
-- Returns: relid oid, attnum int2, name text (NULL: dropped), type_oid oid, typmod int4,
--          generated text ('', 's', 'v'),
--          has_missing bool (rows from before ADD COLUMN have the value `missing`: pg_attribute.attmissingval;
--          a partitioned table has no rows, so any partition's),
--          missing text (as the type's output function writes it; not split from the array's text, whose delimiter is
--          the type's), filled bool (rows from before ADD COLUMN may have
--          values that the catalog does not know: from a volatile default, or from a constant one in a table that was
--          rewritten since),
--          settled bool (the row of pg_attribute was as it is now for the transaction, as in sql/primary_key.sql);
--          ordered by relid, attnum
-- Lowest version: 14
SELECT a.attrelid AS relid, a.attnum, CASE WHEN NOT a.attisdropped THEN a.attname::text END AS name,
       a.atttypid AS type_oid, a.atttypmod AS typmod, a.attgenerated::text AS generated,
       m.found IS NOT NULL AS has_missing, m.missing,
       m.found IS NULL AND (a.atthasdef OR a.attidentity <> '' OR coalesce(t.typdefault IS NOT NULL, false)) AS filled,
       coalesce(age(a.xmin) > age(s.catalog_xmin) OR age(a.xmin) < 0 AND s.catalog_xmin IS NOT NULL, false) AS settled
  FROM pg_attribute a
       JOIN pg_class c ON c.oid = a.attrelid
       LEFT JOIN pg_type t ON t.oid = a.atttypid
       LEFT JOIN LATERAL (
           SELECT true AS found, array_to_string(h.attmissingval, '') AS missing
             FROM pg_attribute h
            WHERE h.atthasmissing AND NOT h.attisdropped
              AND CASE WHEN c.relkind = 'p'
                       THEN h.attname = a.attname AND h.attrelid IN (SELECT p.relid FROM pg_partition_tree(c.oid) AS p)
                       ELSE h.attrelid = a.attrelid AND h.attnum = a.attnum
                  END
            LIMIT 1
       ) AS m ON NOT a.attisdropped
       LEFT JOIN pg_replication_slots s
         ON s.slot_name = %(slot_name)s AND age(%(xid)s::xid) > age(pg_snapshot_xmax(pg_current_snapshot())::xid)
            AND %(xid)s::xid <> ALL (SELECT pg_snapshot_xip(pg_current_snapshot())::xid)
 WHERE a.attrelid = ANY (%(relids)s::oid[]) AND a.attnum > 0
 ORDER BY a.attrelid, a.attnum
