-- What is needed to decode values of types and of the types they consist of: base types of domains, elements of
-- arrays, subtypes of ranges and multiranges, at any depth.
-- Parameters: oids oid[] (no row for one that the server does not have)
-- Returns, in the order of protocol.values.types.TypeInfo's fields, ordered by oid:
--          oid oid, name text, namespace text,
--          typtype "char" (b base, d domain, e enum, c composite, r range, m multirange, p pseudo),
--          basetype oid (of a domain, else 0), typmod int4 (the domain's for its base type, else -1),
--          element oid (of a true array, else 0: also for int2vector, oidvector, name and point, which have a
--          typelem and are no arrays), subtype oid (of a range, or of a multirange's range, else 0),
--          delimiter "char" (between the elements of an array of this type, in text)
-- Lowest version: 10
WITH RECURSIVE part AS (
    SELECT t.oid, t.typname, n.nspname, t.typtype, t.typbasetype, t.typtypmod, t.typdelim,
           -- Every array type is the typarray of its element type; typsubscript would need version 14.
           coalesce(element.oid, 0::pg_catalog.oid) AS element,
           coalesce(range.rngsubtype, 0::pg_catalog.oid) AS subtype
      FROM pg_catalog.pg_type AS t
      JOIN pg_catalog.pg_namespace AS n ON n.oid = t.typnamespace
      LEFT JOIN pg_catalog.pg_type AS element ON element.oid = t.typelem AND element.typarray = t.oid
      -- Through jsonb, because servers before 14 have neither multiranges nor this column.
      LEFT JOIN pg_catalog.pg_range AS range
             ON t.oid IN (range.rngtypid, (pg_catalog.to_jsonb(range) ->> 'rngmultitypid')::pg_catalog.oid)
), wanted AS (
    SELECT pg_catalog.unnest(%(oids)s::pg_catalog.oid[]) AS oid
     UNION
    SELECT made_of.oid
      FROM wanted
      JOIN part ON part.oid = wanted.oid
     CROSS JOIN LATERAL (VALUES (part.typbasetype), (part.element), (part.subtype)) AS made_of (oid)
     WHERE made_of.oid <> 0
)
SELECT part.oid, part.typname::pg_catalog.text AS name, part.nspname::pg_catalog.text AS namespace,
       part.typtype, part.typbasetype AS basetype, part.typtypmod AS typmod, part.element, part.subtype,
       part.typdelim AS delimiter
  FROM part
  JOIN wanted ON wanted.oid = part.oid
 ORDER BY part.oid
