-- The server's version, role and WAL position.
-- Parameters: none
-- Returns: server_version_num int, in_recovery bool, wal_level text, flush_lsn pg_lsn (replayed LSN on a standby),
--          started_us bigint (microseconds since 1970)
-- Lowest version: 10
SELECT current_setting('server_version_num')::int AS server_version_num,
       pg_is_in_recovery() AS in_recovery,
       current_setting('wal_level') AS wal_level,
       CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn()
            ELSE pg_current_wal_flush_lsn()
       END::text AS flush_lsn,
       (extract(epoch FROM pg_postmaster_start_time()) * 1000000)::bigint AS started_us
