-- The members of publications: tables with their column lists and row filters, whole schemas, and the tables that
-- FOR ALL TABLES EXCEPT leaves out.
-- Parameters: publications text[]
-- Returns: publication text, namespace text, name text (NULL: all tables of the schema),
--          columns text[] (NULL: no list), row_filter text (NULL: none), excepted bool (false before version 19);
--          ordered by publication, namespace, name
-- Lowest version: 15 (row filters, column lists, schemas)
SELECT p.pubname AS publication, n.nspname AS namespace, c.relname AS name,
       CASE WHEN r.prattrs IS NOT NULL
            THEN ARRAY(SELECT a.attname::text FROM pg_attribute a
                        WHERE a.attrelid = c.oid AND a.attnum = ANY (r.prattrs) ORDER BY a.attnum)
       END AS columns,
       pg_get_expr(r.prqual, r.prrelid) AS row_filter,
       coalesce((to_jsonb(r) ->> 'prexcept')::bool, false) AS excepted
  FROM pg_publication p
       JOIN pg_publication_rel r ON r.prpubid = p.oid
       JOIN pg_class c ON c.oid = r.prrelid
       JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE p.pubname = ANY (%(publications)s::text[])
 UNION ALL
SELECT p.pubname, n.nspname, NULL, NULL, NULL, false
  FROM pg_publication p
       JOIN pg_publication_namespace s ON s.pnpubid = p.oid
       JOIN pg_namespace n ON n.oid = s.pnnspid
 WHERE p.pubname = ANY (%(publications)s::text[])
 ORDER BY publication, namespace, name
