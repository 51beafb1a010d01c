-- The progress of the COPY statements of some connections; other roles' are visible only with pg_read_all_stats.
-- Parameters: application_names text[]
-- Returns: application_name text, pid int, rows, bytes int8 (sent so far)
-- Lowest version: 14
SELECT a.application_name, p.pid, p.tuples_processed AS rows, p.bytes_processed AS bytes
  FROM pg_stat_progress_copy p
       JOIN pg_stat_activity a USING (pid)
 WHERE p.datname = current_database() AND a.application_name = ANY (%(application_names)s)
