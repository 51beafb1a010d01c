-- A replication slot.
-- Parameters: slot_name text
-- Returns: plugin, slot_type, database text, active bool, active_pid int, confirmed_flush_lsn, restart_lsn text,
--          wal_status text (lost: the WAL it needs is gone), safe_wal_size bigint (bytes that can be written before it
--          may be lost; null without max_slot_wal_keep_size), temporary, two_phase bool, invalidation_reason text
--          (17; in 16 `conflicting`), failover bool (17), synced bool (17; a standby's copy of the primary's slot),
--          slotsync_skip_reason text (19);
--          no row when there is no such slot
-- Lowest version: 14
SELECT plugin, slot_type, database, active, active_pid, confirmed_flush_lsn::text, restart_lsn::text, wal_status,
       safe_wal_size, temporary, two_phase,
       coalesce(to_jsonb(s) ->> 'invalidation_reason',
                CASE WHEN (to_jsonb(s) ->> 'conflicting')::bool THEN 'conflicting' END) AS invalidation_reason,
       (to_jsonb(s) ->> 'failover')::bool AS failover,
       -- on a primary that was a standby it means nothing
       (to_jsonb(s) ->> 'synced')::bool AND pg_is_in_recovery() AS synced,
       to_jsonb(s) ->> 'slotsync_skip_reason' AS slotsync_skip_reason
  FROM pg_replication_slots s
 WHERE slot_name = %(slot_name)s
