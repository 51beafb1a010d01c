-- All columns that tables ever had, with the value that rows from before ADD COLUMN have.
-- Parameters: relids oid[]
-- Returns: relid oid, attnum int2, name text (NULL: dropped), type_oid oid, typmod int4,
--          generated text ('', 's', 'v'),
--          has_missing bool (rows from before ADD COLUMN have the value `missing`: pg_attribute.attmissingval;
--          a partitioned table has no rows, so any partition's),
--          missing text (as the type's output function writes it; not split from the array's text, whose delimiter is
--          the type's), filled bool (rows from before ADD COLUMN may have
--          values that the catalog does not know: from a volatile default, or from a constant one in a table that was
--          rewritten since),
--          xid int8 (the transaction that gave the row of pg_attribute its present form; 2, FrozenTransactionId, if it
--          is too old to be compared);
--          ordered by relid, attnum
-- Lowest version: 12 (pg_partition_tree, generated columns)
SELECT a.attrelid AS relid, a.attnum, CASE WHEN NOT a.attisdropped THEN a.attname::text END AS name,
       a.atttypid AS type_oid, a.atttypmod AS typmod, a.attgenerated::text AS generated,
       m.found IS NOT NULL AS has_missing, m.missing,
       m.found IS NULL AND (a.atthasdef OR a.attidentity <> '' OR coalesce(t.typdefault IS NOT NULL, false)) AS filled,
       CASE WHEN age(a.xmin) < 0 THEN 2 ELSE a.xmin::text::int8 END AS xid
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
 WHERE a.attrelid = ANY (%(relids)s::oid[]) AND a.attnum > 0
 ORDER BY a.attrelid, a.attnum
