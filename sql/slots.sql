-- Replication slots, and what else their watch asks of the server: one row for each name.
-- Parameters: slot_names text[]
-- Returns: slot_name text (as asked), found bool, plugin, slot_type, database text, active bool, active_pid int,
--          confirmed_flush_lsn, restart_lsn text, wal_status text (lost: the WAL it needs is gone),
--          safe_wal_size bigint (bytes that can be written before it may be lost; null without
--          max_slot_wal_keep_size), two_phase bool, invalidation_reason text (17; in 16 `conflicting`),
--          failover bool (17), synced bool (17; a standby's copy of the primary's slot),
--          slotsync_skip_reason text (19; all of these are null when there is no such slot),
--          flush_lsn text (the server's; on a standby the replayed LSN), password_left_s float (until the login role's
--          password expires; null if it does not), synchronous_standby_names text (a standby: '', it has no commits),
--          committed_at timestamptz, committed_lsn text (whatever was committed before that time ends before that LSN;
--          a standby: was replayed)
-- Lowest version: 14
SELECT asked.slot_name, s.slot_name IS NOT NULL AS found, plugin, slot_type, database, active, active_pid,
       confirmed_flush_lsn::text, restart_lsn::text, wal_status, safe_wal_size, two_phase,
       coalesce(to_jsonb(s) ->> 'invalidation_reason',
                CASE WHEN (to_jsonb(s) ->> 'conflicting')::bool THEN 'conflicting' END) AS invalidation_reason,
       (to_jsonb(s) ->> 'failover')::bool AS failover,
       -- on a primary that was a standby it means nothing
       (to_jsonb(s) ->> 'synced')::bool AND pg_is_in_recovery() AS synced,
       to_jsonb(s) ->> 'slotsync_skip_reason' AS slotsync_skip_reason,
       CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn()
            ELSE pg_current_wal_flush_lsn()
       END::text AS flush_lsn,
       (SELECT extract(epoch FROM rolvaliduntil - now())::float8 FROM pg_roles
         WHERE rolname = session_user AND isfinite(rolvaliduntil)) AS password_left_s,
       CASE WHEN pg_is_in_recovery() THEN '' ELSE current_setting('synchronous_standby_names')
       END AS synchronous_standby_names,
       -- first the time, and then the LSN; a commit has its time before its record is written
       CASE WHEN pg_is_in_recovery() THEN pg_last_xact_replay_timestamp()
            ELSE clock_timestamp()
       END - interval '1 s' AS committed_at,
       CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn()
            ELSE pg_current_wal_insert_lsn()
       END::text AS committed_lsn
  FROM unnest(%(slot_names)s::text[]) AS asked (slot_name)
  LEFT JOIN pg_replication_slots s ON s.slot_name = asked.slot_name
