-- The tables that a table is a partition of, its parent first; none for one that is no partition, or does not exist.
-- Parameters: relid oid
-- Returns: relid oid
-- Lowest version: 12
SELECT a.relid::oid AS relid
  FROM pg_partition_ancestors(%(relid)s) WITH ORDINALITY AS a (relid, level)
 WHERE a.relid <> %(relid)s::oid
 ORDER BY a.level
