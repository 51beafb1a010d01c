-- The schemas of the database.
-- Parameters: none
-- Returns: name text
-- Lowest version: 10
SELECT nspname AS name FROM pg_namespace
