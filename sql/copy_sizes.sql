-- The sizes of the tables that a copy reads: the table itself, or its leaf partitions.
-- Parameters: relid oid
-- Returns: blocks int8 (of the main fork; 0 if a copy cannot be divided by ctid: a foreign table, another access method
--          than heap, or a role that may read some columns only), block_bytes int8, table_bytes int8 (with TOAST; NULL
--          if it is not known), filenode oid (another one once the table was rewritten); a row for each table
-- Lowest version: 14
SELECT CASE WHEN am.amname = 'heap' AND has_table_privilege(%(relid)s::oid, 'SELECT')
            THEN pg_relation_size(c.oid) / current_setting('block_size')::int8 ELSE 0 END AS blocks,
       current_setting('block_size')::int8 AS block_bytes,
       CASE WHEN am.amname = 'heap' THEN pg_table_size(c.oid) END AS table_bytes,
       pg_relation_filenode(c.oid) AS filenode
  FROM pg_class c
       LEFT JOIN pg_am am ON am.oid = c.relam
 WHERE c.relkind <> 'p'
   AND c.oid IN (SELECT %(relid)s::oid UNION SELECT relid FROM pg_partition_tree(%(relid)s::oid) WHERE isleaf)
