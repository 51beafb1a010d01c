-- A replication slot.
-- Parameters: slot_name text
-- Returns: plugin, slot_type, database text, active bool, active_pid int, confirmed_flush_lsn, restart_lsn text,
--          wal_status text (lost: the WAL it needs is gone), temporary, two_phase bool;
--          no row when there is no such slot
-- Lowest version: 14
SELECT plugin, slot_type, database, active, active_pid, confirmed_flush_lsn::text, restart_lsn::text, wal_status,
       temporary, two_phase
  FROM pg_replication_slots
 WHERE slot_name = %(slot_name)s
