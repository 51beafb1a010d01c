-- Transactions with a transaction id that have not ended: a slot is ready once all of them, in every database, have.
-- Of other roles' sessions, a role without pg_read_all_stats sees none.
-- Parameters: none
-- Returns: prepared bool, name text (the process id, or the gid of a prepared one), database text,
--          application_name text, age_s float
-- Lowest version: 10
SELECT false AS prepared, pid::text AS name, datname::text AS database, application_name,
       extract(epoch FROM clock_timestamp() - xact_start)::float8 AS age_s
  FROM pg_stat_activity
 WHERE backend_xid IS NOT NULL AND pid <> pg_backend_pid()
 UNION ALL
SELECT true, gid, database::text, NULL, extract(epoch FROM clock_timestamp() - prepared)::float8
  FROM pg_prepared_xacts
 ORDER BY 5 DESC
