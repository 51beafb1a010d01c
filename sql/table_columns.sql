-- The columns of tables, with their keys.
-- Parameters: relids oid[]
-- Returns: relid oid, attnum int2, name text, type_oid oid, typmod int4, generated text ('', 's', 'v'),
--          in_primary_key bool (false if it is deferrable: then it identifies no row within a transaction),
--          in_replica_identity_index bool; ordered by relid, attnum
-- Lowest version: 12 (generated columns)
SELECT a.attrelid AS relid, a.attnum, a.attname AS name, a.atttypid AS type_oid, a.atttypmod AS typmod,
       a.attgenerated::text AS generated,
       -- indkey begins at 0; its columns from indnkeyatts on are INCLUDE columns, not part of the key.
       coalesce(a.attnum = ANY ((pk.indkey::int2[])[:pk.indnkeyatts - 1]), false) AS in_primary_key,
       coalesce(a.attnum = ANY ((ri.indkey::int2[])[:ri.indnkeyatts - 1]), false) AS in_replica_identity_index
  FROM pg_attribute a
       LEFT JOIN pg_index pk ON pk.indrelid = a.attrelid AND pk.indisprimary AND pk.indimmediate
       LEFT JOIN pg_index ri ON ri.indrelid = a.attrelid AND ri.indisreplident
 WHERE a.attrelid = ANY (%(relids)s::oid[]) AND a.attnum > 0 AND NOT a.attisdropped
 ORDER BY a.attrelid, a.attnum
