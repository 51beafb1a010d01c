-- The named publications that this database does not have.
-- Parameters: publications text[]
-- Returns: name text
-- Lowest version: 10
SELECT name
  FROM unnest(%(publications)s::text[]) AS name
 WHERE NOT EXISTS (SELECT FROM pg_publication WHERE pubname = name)
