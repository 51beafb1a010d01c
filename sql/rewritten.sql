-- Whether a table, or a partition of it, has other files than in this transaction's snapshot: pg_class is read under
-- the snapshot, the function tells what is true now. NULL is the answer for a table without files.
-- Parameters: relid oid
-- Returns: rewritten bool
-- Lowest version: 14
SELECT bool_or(c.relfilenode <> 0 AND c.relfilenode IS DISTINCT FROM pg_relation_filenode(c.oid)) AS rewritten
  FROM pg_class c
 WHERE c.oid = %(relid)s OR c.oid IN (SELECT relid FROM pg_partition_tree(%(relid)s))
