-- Settings of the server, as it has them now: those of the names that its version knows.
-- Parameters: names text[]
-- Returns: name, setting text (a number in units of `unit`), unit text
-- Lowest version: 10
SELECT name, setting, unit
  FROM pg_settings
 WHERE name = ANY(%(names)s::text[])
