-- All columns that tables ever had, and what is known of the value that rows from before ADD COLUMN have.
-- Parameters: relids oid[], slot_name text, xid xid (as in sql/primary_key.sql)
-- Returns: relid oid, attnum int2, name text (NULL: dropped), type_oid oid, typmod int4,
--          generated text ('', 's', 'v'),
--          fill bytea (the value, as the type's output function writes it; NULL also for a value of NULL),
--          fill_known bool (with `expression` null: whether it is that),
--          expression bytea (the value is that of this expression, if it is a constant; NULL for no expression),
--          base_type text (the column's type, or its base type, as SQL), is_builtin bool (whether that is built in),
--          settled bool (the row of pg_attribute was as it is now for the transaction, as in sql/primary_key.sql),
--          unlisted bool (a publication's column list leaves it out, of the table or of one that it is part of);
--          ordered by relid, attnum
-- Lowest version: 14
--
-- `attmissingval` has the value, unless the table was rewritten (RelationClearMissing), in ADD COLUMN or later. It is
-- not split from the array's text, whose delimiter is the type's. A partitioned table has no rows, so any partition's
-- counts.
-- Without it the value is
--   NULL, if no rewrite came since ADD COLUMN: a default was set later. A table that was never rewritten has its oid as
--     relfilenode; a rewrite makes its TOAST table and its indexes anew, whose rows of pg_class are settled if it was
--     long ago.
--   the default, if it was stored by ADD COLUMN, which writes the column's dependency on a type that is not built in
--     after that; or if a rewrite cleared attmissingval (`cleared`: the transaction that rewrote the table last has
--     written the column's row in pg_attribute after the table's in pg_class), and the default was stored before.
--   a domain's default, if the domain was not altered since the column came, whose dependency was written then.
-- Not told, all of it within the lag: a default that was dropped after a rewrite had cleared it; one that was set after
-- ADD COLUMN, if a transaction then rewrites the table and alters something else of the column.
--
-- Both come as bytes, in UTF-8 unless the database is SQL_ASCII: that takes bytes of any encoding.
SELECT a.attrelid AS relid, a.attnum, CASE WHEN NOT a.attisdropped THEN a.attname::text END AS name,
       a.atttypid AS type_oid, a.atttypmod AS typmod, a.attgenerated::text AS generated,
       convert_to(m.fill, u.encoding) AS fill,
       m.found IS NOT NULL OR a.attidentity = '' AND a.attgenerated = '' AND (
           d.oid IS NULL AND t.typdefault IS NULL AND NOT (w.rewritten AND k.cleared)
           OR d.oid IS NOT NULL AND NOT w.rewritten
       ) AS fill_known,
       convert_to(
           CASE WHEN m.found IS NOT NULL OR a.attidentity <> '' OR a.attgenerated <> '' OR c.relkind <> 'r' THEN NULL
                WHEN d.oid IS NULL AND (age(t.xmin) > age(e.xmin)
                                        OR t.xmin = e.xmin AND t.cmin::text::int < e.cmin::text::int)
                THEN pg_get_expr(t.typdefaultbin, 0)
                WHEN e.xmin = d.xmin AND e.cmin::text::int > d.cmin::text::int
                     OR w.rewritten AND k.cleared
                        AND (age(c.xmin) < age(d.xmin) OR c.xmin = d.xmin AND c.cmin::text::int > d.cmin::text::int)
                THEN pg_get_expr(d.adbin, d.adrelid)
           END,
           u.encoding
       ) AS expression,
       CASE t.typtype WHEN 'd' THEN format_type(t.typbasetype, t.typtypmod)
                      ELSE format_type(a.atttypid, a.atttypmod) END AS base_type,
       CASE t.typtype WHEN 'd' THEN t.typbasetype ELSE a.atttypid END < 16384 AS is_builtin,
       coalesce(age(a.xmin) > age(s.catalog_xmin) OR age(a.xmin) < 0 AND s.catalog_xmin IS NOT NULL, false) AS settled,
       EXISTS (
           SELECT FROM pg_publication_rel r
                  JOIN pg_attribute l ON l.attrelid = r.prrelid AND l.attname = a.attname
            WHERE r.prrelid IN (SELECT a.attrelid UNION ALL SELECT p FROM pg_partition_ancestors(a.attrelid) AS p)
              AND NOT nullif(to_jsonb(r) -> 'prattrs', 'null') @> to_jsonb(l.attnum)
       ) AS unlisted
  FROM pg_attribute a
       JOIN pg_class c ON c.oid = a.attrelid
       CROSS JOIN (SELECT CASE getdatabaseencoding() WHEN 'SQL_ASCII' THEN 'SQL_ASCII' ELSE 'UTF8' END) AS u (encoding)
       LEFT JOIN pg_type t ON t.oid = a.atttypid
       LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
       LEFT JOIN pg_depend e
              ON e.classid = 'pg_class'::regclass AND e.objid = a.attrelid AND e.objsubid = a.attnum
             AND e.refclassid = 'pg_type'::regclass AND e.refobjid = a.atttypid
       LEFT JOIN LATERAL (
           SELECT true AS found, array_to_string(h.attmissingval, '') AS fill
             FROM pg_attribute h
            WHERE h.atthasmissing AND NOT h.attisdropped
              AND CASE WHEN c.relkind = 'p'
                       THEN h.attname = a.attname AND h.attrelid IN (SELECT p.relid FROM pg_partition_tree(c.oid) AS p)
                       ELSE h.attrelid = a.attrelid AND h.attnum = a.attnum
                  END
            LIMIT 1
       ) AS m ON NOT a.attisdropped
       LEFT JOIN pg_replication_slots s
         ON s.slot_name = %(slot_name)s AND age(%(xid)s::xid) > age(pg_snapshot_xmax(pg_current_snapshot())::xid)
            AND %(xid)s::xid <> ALL (SELECT pg_snapshot_xip(pg_current_snapshot())::xid)
       CROSS JOIN LATERAL (
           SELECT coalesce(bool_or(f.relfilenode <> f.oid
                                   AND NOT coalesce(age(o.xmin) > age(s.catalog_xmin)
                                                    OR age(o.xmin) < 0 AND s.catalog_xmin IS NOT NULL, false)),
                           false) AS rewritten,
                  bool_and(coalesce(o.xmin = f.xmin, true)) AS last
             FROM (SELECT c.oid WHERE c.relkind = 'r'
                    UNION ALL
                   SELECT p.relid FROM pg_partition_tree(c.oid) AS p WHERE p.isleaf AND c.relkind = 'p') AS leaf (oid)
                  JOIN pg_class f ON f.oid = leaf.oid
                  LEFT JOIN LATERAL (
                      SELECT made.xmin
                        FROM pg_class made
                       WHERE made.oid = f.reltoastrelid
                          OR made.oid IN (SELECT i.indexrelid FROM pg_index i WHERE i.indrelid = f.oid)
                       ORDER BY made.oid = f.reltoastrelid DESC, made.oid
                       LIMIT 1
                  ) AS o ON true
       ) AS w
       CROSS JOIN LATERAL (
           SELECT w.last AND a.xmin = c.xmin AND a.cmin::text::int > c.cmin::text::int AS cleared
       ) AS k
 WHERE a.attrelid = ANY (%(relids)s::oid[]) AND a.attnum > 0
 ORDER BY a.attrelid, a.attnum
