-- The server's process of this session, and its settings that were not as they should be: they are so from now on,
-- unless `setting` says otherwise. A name that the server does not know is left out.
-- Parameters: names text[], wanted text[] (as the server shows them)
-- Returns: pid int4, name text (NULL: none differed), wanted text, setting text
-- Lowest version: 10
SELECT pg_catalog.pg_backend_pid() AS pid, w.name, w.wanted,
       CASE WHEN w.name IS NOT NULL THEN pg_catalog.set_config(w.name, w.wanted, false) END AS setting
  FROM (VALUES (1)) AS once
       LEFT JOIN ROWS FROM (pg_catalog.unnest(%(names)s::pg_catalog.text[]),
                            pg_catalog.unnest(%(wanted)s::pg_catalog.text[])) AS w (name, wanted)
              ON pg_catalog.current_setting(w.name, true) OPERATOR(pg_catalog.<>) w.wanted
