-- What ANALYZE found of a column: how its order is related to that of the table's rows, and values at even distances.
-- Parameters: relid oid, key_column text
-- Returns: correlation float4 (from -1 to 1; NULL if it is not known), bounds text[] (NULL if there are none, or if
--          their text would have another delimiter), leads_index bool (an index of all rows is sorted by the column
--          first); no row without statistics that the role may see
-- Lowest version: 14
SELECT s.correlation, CASE WHEN t.typdelim = ',' THEN s.histogram_bounds::text::text[] END AS bounds,
       EXISTS (SELECT 1
                 FROM pg_index i
                      JOIN pg_class ic ON ic.oid = i.indexrelid
                      JOIN pg_am am ON am.oid = ic.relam
                WHERE i.indrelid = c.oid
                  AND i.indkey[0] = a.attnum
                  AND am.amname = 'btree'
                  AND i.indisvalid
                  AND i.indpred IS NULL) AS leads_index
  FROM pg_class c
       JOIN pg_attribute a ON a.attrelid = c.oid AND a.attname = %(key_column)s::text
       JOIN pg_type t ON t.oid = a.atttypid
       JOIN pg_namespace n ON n.oid = c.relnamespace
       JOIN pg_stats s ON s.schemaname = n.nspname AND s.tablename = c.relname AND s.inherited = (c.relkind = 'p')
 WHERE c.oid = %(relid)s::oid
   AND s.attname = a.attname
