-- What shows that a daemon lives: each process that streams from its slots, and its other sessions in this database.
-- Parameters: slot_names text[], application_names text[] (of the other sessions)
-- Returns: pid int, slot_name text (null for another session), application_name text, client text,
--          sign text (changes while the daemon lives, by whichever clock; and where that cannot be seen)
-- Lowest version: 14
SELECT a.pid, s.slot_name, a.application_name, coalesce(a.client_hostname, host(a.client_addr), 'this host') AS client,
       CASE WHEN coalesce(r.state, a.state) IS NULL THEN clock_timestamp() -- the role may not see it
            WHEN s.slot_name IS NULL AND a.state <> 'active' THEN a.state_change
            -- it waits for its client, or for WAL; while it decodes what it does not send, it reads no replies
            WHEN a.wait_event_type IN ('Activity', 'Client') THEN coalesce(r.reply_time, a.backend_start)
            ELSE clock_timestamp()
       END::text AS sign
  FROM pg_stat_activity a
  LEFT JOIN pg_replication_slots s ON s.active_pid = a.pid AND s.slot_name = ANY (%(slot_names)s::text[])
  LEFT JOIN pg_stat_replication r ON r.pid = a.pid
 WHERE a.pid <> pg_backend_pid()
   AND (s.slot_name IS NOT NULL
        OR (a.application_name = ANY (%(application_names)s::text[]) AND a.datname = current_database()))
 ORDER BY a.pid
