-- Whether a table, or a partition of it, has other files than in this transaction's snapshot, or is not in it, or is a
-- partition only since then: tables are read under the snapshot, the functions tell what is true now.
-- Parameters: relid oid, name text (as it is read: quoted, with its schema)
-- Returns: rewritten bool, readable bool (the table has rows of its own, and the role may read them all),
--          renamed bool (it does not have the name any more: another table may have it)
-- Lowest version: 14
SELECT bool_or(
           c.oid IS NULL OR c.relfilenode <> 0 AND c.relfilenode IS DISTINCT FROM pg_relation_filenode(c.oid)
           OR part.oid <> %(relid)s AND NOT EXISTS (SELECT FROM pg_inherits i WHERE i.inhrelid = part.oid)
       ) AS rewritten,
       bool_and(part.oid <> %(relid)s OR c.relkind = 'r' AND has_table_privilege(c.oid, 'SELECT')) IS TRUE AS readable,
       to_regclass(%(name)s) IS DISTINCT FROM %(relid)s::oid AS renamed
  FROM (SELECT %(relid)s::oid AS oid UNION SELECT relid FROM pg_partition_tree(%(relid)s)) part
       LEFT JOIN pg_class c ON c.oid = part.oid
