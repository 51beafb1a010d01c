-- A table's primary key, unless it is deferrable.
-- Parameters: relid oid
-- Returns: columns text[], xids int8[] (the transactions that gave the key and its columns their
--          present form; 2 for one that is too old to be compared); no row without a primary key
-- Lowest version: 12
SELECT array_agg(DISTINCT a.attname::text) AS columns, array_agg(DISTINCT x.xid) AS xids
  FROM pg_constraint k
       JOIN pg_index i ON i.indexrelid = k.conindid AND i.indisprimary AND i.indimmediate
       JOIN pg_attribute a ON a.attrelid = k.conrelid AND a.attnum = ANY (k.conkey)
       CROSS JOIN LATERAL (
           SELECT CASE WHEN age(r.xmin) < 0 THEN 2 ELSE r.xmin::text::int8 END AS xid
             FROM (VALUES (k.xmin), (a.xmin)) AS r (xmin)
       ) AS x
 WHERE k.conrelid = %(relid)s AND k.contype = 'p'
 GROUP BY k.oid
