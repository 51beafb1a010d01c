-- The server's version, role and WAL position.
-- Parameters: none
-- Returns: server_version_num int, in_recovery bool, wal_level text, effective_wal_level text (the same before version
--          19), flush_lsn, insert_lsn text (replayed LSN on a standby), started_us bigint (microseconds since 1970),
--          password_left_s float (until the login role's password expires; NULL if it does not)
-- Lowest version: 10
SELECT current_setting('server_version_num')::int AS server_version_num,
       pg_is_in_recovery() AS in_recovery,
       current_setting('wal_level') AS wal_level,
       coalesce(current_setting('effective_wal_level', true), current_setting('wal_level')) AS effective_wal_level,
       CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn()
            ELSE pg_current_wal_flush_lsn()
       END::text AS flush_lsn,
       CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn()
            ELSE pg_current_wal_insert_lsn()
       END::text AS insert_lsn,
       (extract(epoch FROM pg_postmaster_start_time()) * 1000000)::bigint AS started_us,
       (SELECT extract(epoch FROM rolvaliduntil - now())::float8 FROM pg_roles
         WHERE rolname = session_user AND isfinite(rolvaliduntil)) AS password_left_s
