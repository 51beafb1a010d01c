-- How many replication slots and WAL senders are in use, the server's clock, and the connection's role.
-- Parameters: none
-- Returns: slots int, senders int, clock_s float (seconds since 1970), role text, superuser bool
-- Lowest version: 10
SELECT (SELECT count(*) FROM pg_replication_slots)::int AS slots,
       (SELECT count(*) FROM pg_stat_replication)::int AS senders,
       extract(epoch FROM clock_timestamp())::float8 AS clock_s,
       current_user::text AS role,
       (SELECT rolsuper FROM pg_roles WHERE rolname = current_user) AS superuser
