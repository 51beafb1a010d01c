-- The sequences that columns of tables take their values from, by ownership (serial, identity) or by a default; and all
-- of the database if a publication is FOR ALL SEQUENCES (PostgreSQL 19).
-- Parameters: namespaces text[], names text[] (of the tables), publications text[]
-- Returns: namespace text, name text, data_type text, start_value int8, min_value int8, max_value int8,
--          increment_by int8, cycles bool, cache_size int8, last_value int8 (NULL: not called yet, or not readable),
--          columns text[] (schema.table.column), readable bool, has_values bool (not on a standby, if it is unlogged)
-- Lowest version: 14
WITH used AS (
    SELECT d.objid AS seqrelid, d.refobjid AS relid, d.refobjsubid AS attnum
      FROM pg_depend d
     WHERE d.classid = 'pg_class'::regclass AND d.refclassid = 'pg_class'::regclass AND d.deptype IN ('a', 'i')
    UNION
    SELECT d.refobjid, a.adrelid, a.adnum
      FROM pg_attrdef a
           JOIN pg_depend d ON d.classid = 'pg_attrdef'::regclass AND d.objid = a.oid
     WHERE d.refclassid = 'pg_class'::regclass AND d.deptype = 'n'
), of_tables AS (
    SELECT u.seqrelid, array_agg(format('%%s.%%s.%%s', n.nspname, t.relname, a.attname)
                                 ORDER BY n.nspname, t.relname, a.attname) AS columns
      FROM used u
           JOIN pg_class t ON t.oid = u.relid
           JOIN pg_namespace n ON n.oid = t.relnamespace
           JOIN pg_attribute a ON a.attrelid = u.relid AND a.attnum = u.attnum AND NOT a.attisdropped
     WHERE (n.nspname::text, t.relname::text) IN (SELECT * FROM unnest(%(namespaces)s::text[], %(names)s::text[]))
     GROUP BY u.seqrelid
)
SELECT n.nspname::text AS namespace, c.relname::text AS name, format_type(s.seqtypid, NULL) AS data_type,
       s.seqstart AS start_value, s.seqmin AS min_value, s.seqmax AS max_value, s.seqincrement AS increment_by,
       s.seqcycle AS cycles, s.seqcache AS cache_size,
       CASE WHEN r.readable AND r.has_values THEN pg_sequence_last_value(c.oid) END AS last_value,
       coalesce(o.columns, '{}') AS columns, r.readable, r.has_values
  FROM pg_sequence s
       JOIN pg_class c ON c.oid = s.seqrelid AND c.relpersistence <> 't'
       JOIN pg_namespace n ON n.oid = c.relnamespace
       CROSS JOIN LATERAL (SELECT has_sequence_privilege(c.oid, 'SELECT') AS readable,
                                  c.relpersistence = 'p' OR NOT pg_is_in_recovery() AS has_values) r
       LEFT JOIN of_tables o ON o.seqrelid = s.seqrelid
 WHERE o.seqrelid IS NOT NULL
       OR EXISTS (SELECT FROM pg_publication p
                   WHERE p.pubname = ANY (%(publications)s) AND (to_jsonb(p) ->> 'puballsequences')::bool)
 ORDER BY 1, 2
