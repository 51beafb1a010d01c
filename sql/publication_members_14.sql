-- The members of publications: tables; this version has no column lists, row filters and schemas.
-- Parameters: publications text[]
-- Returns: publication text, namespace text, name text, columns text[] (NULL: no list; always so),
--          row_filter text (NULL: none; always so), excepted bool (false; always so);
--          ordered by publication, namespace, name
-- Lowest version: 10
SELECT p.pubname AS publication, n.nspname AS namespace, c.relname AS name,
       NULL::text[] AS columns, NULL::text AS row_filter, false AS excepted
  FROM pg_publication p
       JOIN pg_publication_rel r ON r.prpubid = p.oid
       JOIN pg_class c ON c.oid = r.prrelid
       JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE p.pubname = ANY (%(publications)s::text[])
 ORDER BY p.pubname, n.nspname, c.relname
