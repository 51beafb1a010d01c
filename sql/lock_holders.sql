-- Who has a table, one of its partitions or an index of them locked against readers, or waits to have it so: who comes
-- later waits behind that.
-- Parameters: relid oid
-- Returns: name text (the process id; NULL for a prepared transaction), application_name text,
--          state text (NULL: without pg_read_all_stats, of another role's session), age_s float
-- Lowest version: 10
WITH RECURSIVE tables (relid) AS (
    SELECT %(relid)s::oid
     UNION
    SELECT i.inhrelid FROM pg_inherits i JOIN tables t ON i.inhparent = t.relid
)
SELECT DISTINCT l.pid::text AS name, a.application_name, a.state,
       extract(epoch FROM clock_timestamp() - a.xact_start)::float8 AS age_s
  FROM pg_locks l
  JOIN pg_database d ON d.oid = l.database AND d.datname = current_database()
  LEFT JOIN pg_stat_activity a ON a.pid = l.pid
 WHERE l.locktype = 'relation' AND l.mode = 'AccessExclusiveLock'
   AND l.pid IS DISTINCT FROM pg_backend_pid()
   AND (l.relation IN (SELECT relid FROM tables)
        OR l.relation IN (SELECT x.indexrelid FROM pg_index x JOIN tables t ON x.indrelid = t.relid))
 ORDER BY 1
