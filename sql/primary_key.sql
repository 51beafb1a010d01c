-- A table's primary key, unless it is deferrable, or not made in all partitions yet.
-- Parameters: relid oid, slot_name text (the slot of a stream), xid xid (a transaction that the stream has sent, and
--             whose receipt is not confirmed yet; NULL: not known)
-- Returns: columns text[], settled bool (the key and its columns were for that transaction as they are now); no row
--          without a primary key
-- Lowest version: 14
--
-- What makes a row of the catalog settled: its xmin precedes the slot's catalog_xmin (age < 0: it was frozen long ago).
-- A transaction that precedes catalog_xmin had ended before confirmed_flush_lsn (LogicalIncreaseXminForSlot), so before
-- any that is not confirmed yet ended; and these two never have the table's lock together. The order of xids alone says
-- nothing: ALTER TABLE has its xid before it has its lock, and xmin may be a subtransaction. And the transaction itself
-- is visible: its COMMIT is sent before others see it, for a long time if it waits for a synchronous standby.
SELECT array_agg(DISTINCT a.attname::text) AS columns,
       coalesce(bool_and(age(x.xmin) > age(s.catalog_xmin) OR age(x.xmin) < 0 AND s.catalog_xmin IS NOT NULL), false)
           AS settled
  FROM pg_constraint k
       JOIN pg_index i ON i.indexrelid = k.conindid AND i.indisprimary AND i.indimmediate AND i.indisvalid
       JOIN pg_attribute a ON a.attrelid = k.conrelid AND a.attnum = ANY (k.conkey)
       CROSS JOIN LATERAL (VALUES (k.xmin), (i.xmin), (a.xmin)) AS x (xmin)
       LEFT JOIN pg_replication_slots s
         ON s.slot_name = %(slot_name)s AND age(%(xid)s::xid) > age(pg_snapshot_xmax(pg_current_snapshot())::xid)
            AND %(xid)s::xid <> ALL (SELECT pg_snapshot_xip(pg_current_snapshot())::xid)
 WHERE k.conrelid = %(relid)s AND k.contype = 'p'
 GROUP BY k.oid
