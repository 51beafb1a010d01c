-- The functions, and the operators by their functions, that are not immutable.
-- Parameters: functions oid[], operators oid[]
-- Returns: kind text (function, operator), oid oid
-- Lowest version: 12
SELECT 'function' AS kind, p.oid
  FROM pg_proc p
 WHERE p.oid = ANY (%(functions)s::oid[]) AND p.provolatile <> 'i'
UNION ALL
SELECT 'operator', o.oid
  FROM pg_operator o JOIN pg_proc p ON p.oid = o.oprcode
 WHERE o.oid = ANY (%(operators)s::oid[]) AND p.provolatile <> 'i'
