-- The columns of tables, with their keys and collations.
-- Parameters: relids oid[]
-- Returns: relid oid, attnum int2, name text, type_oid oid, typmod int4, generated text ('', 's', 'v'),
--          in_primary_key bool (false if it is deferrable: then it identifies no row within a transaction),
--          in_replica_identity_index bool,
--          collation text (schema.name; NULL for a type without collations), collation_deterministic bool,
--          collation_provider text (b, c, i), collation_ctype text (the locale of upper, lower and classes),
--          collation_bytewise bool (text sorts as its bytes do, in the database's encoding); ordered by relid, attnum
-- Lowest version: 12 (generated columns)
SELECT a.attrelid AS relid, a.attnum, a.attname AS name, a.atttypid AS type_oid, a.atttypmod AS typmod,
       a.attgenerated::text AS generated,
       -- indkey begins at 0; its columns from indnkeyatts on are INCLUDE columns, not part of the key.
       coalesce(a.attnum = ANY ((pk.indkey::int2[])[:pk.indnkeyatts - 1]), false) AS in_primary_key,
       coalesce(a.attnum = ANY ((ri.indkey::int2[])[:ri.indnkeyatts - 1]), false) AS in_replica_identity_index,
       cn.nspname || '.' || co.collname AS collation, co.collisdeterministic AS collation_deterministic,
       used.provider AS collation_provider, used.ctype AS collation_ctype,
       CASE used.provider WHEN 'b' THEN true WHEN 'i' THEN false
            WHEN 'c' THEN used.collate IN ('C', 'POSIX') END AS collation_bytewise
  FROM pg_attribute a
       LEFT JOIN pg_index pk ON pk.indrelid = a.attrelid AND pk.indisprimary AND pk.indimmediate
       LEFT JOIN pg_index ri ON ri.indrelid = a.attrelid AND ri.indisreplident
       LEFT JOIN pg_collation co ON co.oid = a.attcollation
       LEFT JOIN pg_namespace cn ON cn.oid = co.collnamespace
       -- Through jsonb, because the columns of a locale were renamed in 15 and in 17. 'd' is the database's.
       LEFT JOIN LATERAL (
           SELECT CASE co.collprovider WHEN 'd' THEN coalesce(db ->> 'datlocprovider', 'c')
                                       ELSE co.collprovider::text END AS provider,
                  CASE co.collprovider WHEN 'd' THEN db ->> 'datcollate' ELSE own ->> 'collcollate' END AS collate,
                  CASE co.collprovider
                       WHEN 'd' THEN coalesce(db ->> 'datlocale', db ->> 'daticulocale', db ->> 'datctype')
                       ELSE coalesce(own ->> 'colllocale', own ->> 'colliculocale', own ->> 'collctype') END AS ctype
             FROM to_jsonb(co) AS own,
                  (SELECT to_jsonb(d) FROM pg_database d WHERE d.datname = current_database()) AS database (db)
       ) AS used ON co.oid IS NOT NULL
 WHERE a.attrelid = ANY (%(relids)s::oid[]) AND a.attnum > 0 AND NOT a.attisdropped
 ORDER BY a.attrelid, a.attnum
