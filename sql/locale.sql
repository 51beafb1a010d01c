-- The properties of server and database that results of expressions on text depend on.
-- Parameters: none
-- Returns: major_version int4, encoding text, provider text, collate text, ctype text, locale text, rules text,
--          collation_version text; NULL for a property that the version or the provider does not have
-- Lowest version: 12
SELECT current_setting('server_version_num')::int / 10000 AS major_version, pg_encoding_to_char(d.encoding) AS encoding,
       -- Through jsonb, because the columns were added in 15 and renamed in 17.
       own ->> 'datlocprovider' AS provider, d.datcollate AS collate, d.datctype AS ctype,
       coalesce(own ->> 'datlocale', own ->> 'daticulocale') AS locale, own ->> 'daticurules' AS rules,
       own ->> 'datcollversion' AS collation_version
  FROM pg_database d, to_jsonb(d) AS own
 WHERE d.datname = current_database()
