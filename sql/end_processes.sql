-- Ends server processes, of this role or of one that it is a member of.
-- Parameters: pids int[]
-- Returns: ended bool (one row for each)
-- Lowest version: 14
SELECT pg_terminate_backend(pid) AS ended FROM unnest(%(pids)s::int[]) AS asked (pid)
