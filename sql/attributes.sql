-- All columns that tables ever had, and what the rows from before ADD COLUMN hold of one.
-- Parameters: relids oid[]
-- Returns: relid oid, attnum int2, name text (NULL when it was dropped), type_oid oid, typmod int4,
--          generated text ('', 's', 'v'),
--          has_missing bool (rows from before ADD COLUMN have the value `missing`, which is pg_attribute.attmissingval;
--          of a partitioned table, which has no rows itself, that of any partition),
--          missing text (as its type writes it), filled bool (rows may have got values that the catalog does not
--          have: by a volatile default, or by a constant one and the table was rewritten since);
--          ordered by relid, attnum
-- Lowest version: 12 (pg_partition_tree, generated columns)
SELECT a.attrelid AS relid, a.attnum, CASE WHEN NOT a.attisdropped THEN a.attname::text END AS name,
       a.atttypid AS type_oid, a.atttypmod AS typmod, a.attgenerated::text AS generated,
       m.found IS NOT NULL AS has_missing, m.missing,
       m.found IS NULL AND (a.atthasdef OR a.attidentity <> '' OR coalesce(t.typdefault IS NOT NULL, false)) AS filled
  FROM pg_attribute a
       JOIN pg_class c ON c.oid = a.attrelid
       LEFT JOIN pg_type t ON t.oid = a.atttypid
       LEFT JOIN LATERAL (
           SELECT true AS found, (h.attmissingval::text::text[])[1] AS missing
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
