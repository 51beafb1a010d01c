-- The tables of the state catalog (SQLite). A file of an earlier version gets the steps after its own; its triggers are
-- dropped before, and made anew behind them (triggers.sql).

-- version 10: that of pgbridge 0.1.0
CREATE TABLE subscription (
  name TEXT PRIMARY KEY,
  enabled INTEGER NOT NULL,
  configured_enabled INTEGER NOT NULL,   -- the file's value when it was last seen: a change of it takes effect
  incarnation TEXT,                      -- made with the origin; part of Delta's txnAppId
  epoch INTEGER NOT NULL DEFAULT 0,      -- moves on when a batch is undone
  slot_name TEXT,
  slot_state TEXT,                       -- creating | ready
  system_identifier TEXT,
  skip_lsn INTEGER,
  state TEXT NOT NULL DEFAULT 'stopped',
  received_lsn INTEGER NOT NULL DEFAULT 0,
  apply_error_count INTEGER NOT NULL DEFAULT 0,
  sync_error_count INTEGER NOT NULL DEFAULT 0,
  timeline INTEGER                       -- the publisher's, that the origin is on
) STRICT;

CREATE TABLE subscription_rel (
  subscription TEXT NOT NULL REFERENCES subscription(name),
  namespace TEXT NOT NULL,
  name TEXT NOT NULL,
  state TEXT NOT NULL CHECK (state IN ('i','d','f','s','r')),
  lsn INTEGER NOT NULL DEFAULT 0,        -- changes of transactions that commit before it are in the copy
  path TEXT NOT NULL,
  relid INTEGER,                         -- the published table's oid, once it is known
  PRIMARY KEY (subscription, namespace, name)
) STRICT;

CREATE TABLE origin (
  subscription TEXT PRIMARY KEY REFERENCES subscription(name),
  remote_lsn INTEGER NOT NULL            -- every transaction that ends at or before it is durable in Delta
) STRICT;

CREATE TABLE batch (                     -- the intent of the batch being applied: one a subscription
  subscription TEXT PRIMARY KEY REFERENCES subscription(name),
  start_lsn INTEGER NOT NULL,
  end_lsn INTEGER NOT NULL,
  undoing INTEGER NOT NULL DEFAULT 0,    -- its commits are being taken back
  alters INTEGER NOT NULL DEFAULT 0,     -- it changes columns of its targets
  boot_id TEXT                           -- the machine's, when the batch was begun
) STRICT;

CREATE TABLE error (
  subscription TEXT PRIMARY KEY REFERENCES subscription(name),
  message TEXT NOT NULL,
  finish_lsn INTEGER,
  relation TEXT,
  time REAL NOT NULL
) STRICT;

CREATE TABLE prepared (                  -- prepared transactions whose end has not come, pg_prepared_xacts' part
  subscription TEXT NOT NULL REFERENCES subscription(name),
  file TEXT NOT NULL,                    -- its changes: a file in state_dir/spool/<subscription>
  gid TEXT NOT NULL,
  xid INTEGER NOT NULL,
  end_lsn INTEGER NOT NULL,
  PRIMARY KEY (subscription, file)
) STRICT;

CREATE TABLE conflict (                  -- pg_stat_subscription_stats' confl_* counters
  subscription TEXT NOT NULL REFERENCES subscription(name),
  conflict TEXT NOT NULL,
  count INTEGER NOT NULL,
  PRIMARY KEY (subscription, conflict)
) STRICT;

CREATE TABLE copy_progress (             -- pg_stat_progress_copy's part, of the copies that are under way
  subscription TEXT NOT NULL REFERENCES subscription(name),
  namespace TEXT NOT NULL,
  name TEXT NOT NULL,
  rows INTEGER NOT NULL,
  bytes INTEGER NOT NULL,
  total_bytes_estimate INTEGER NOT NULL,
  rows_per_s REAL,
  seconds_left REAL,
  PRIMARY KEY (subscription, namespace, name)
) STRICT;

CREATE TABLE rel_column (                -- the columns of published tables, as of the origin's LSN
  subscription TEXT NOT NULL REFERENCES subscription(name),
  relid INTEGER NOT NULL,
  attnum INTEGER NOT NULL,
  name TEXT NOT NULL,
  type_oid INTEGER NOT NULL,
  typmod INTEGER NOT NULL,
  state TEXT NOT NULL CHECK (state IN ('live','hidden','gone')),
  PRIMARY KEY (subscription, relid, attnum)
) STRICT;

CREATE TABLE refresh (                   -- asked for by the command line, taken up by the worker
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  subscription TEXT NOT NULL REFERENCES subscription(name),
  namespace TEXT,                        -- of a table to copy afresh; NULL for the publications as a whole
  name TEXT,
  copy_data INTEGER NOT NULL             -- the tables that were added are copied
) STRICT;

CREATE TABLE left_out (                  -- published tables that are not subscribed: Delta cannot hold them
  subscription TEXT NOT NULL REFERENCES subscription(name),
  namespace TEXT NOT NULL,
  name TEXT NOT NULL,
  reason TEXT NOT NULL,
  PRIMARY KEY (subscription, namespace, name)
) STRICT;

-- version 11
-- what it has committed was about to be flushed: whether that failed is not known
ALTER TABLE batch ADD COLUMN flushing INTEGER NOT NULL DEFAULT 0;
ALTER TABLE batch ADD COLUMN messages_path TEXT;  -- where its logical messages go

-- version 12
CREATE TABLE maintenance (
  subscription TEXT NOT NULL REFERENCES subscription(name),
  path TEXT NOT NULL,
  files INTEGER NOT NULL,                -- as last measured
  since REAL NOT NULL,                   -- when it was first looked at, in seconds since 1970
  optimized REAL,
  vacuumed REAL,
  error TEXT,                            -- of the last attempt, if it failed
  PRIMARY KEY (subscription, path)
) STRICT;

CREATE TABLE optimizing (                -- one a subscription; dropped once it is flushed, or undone
  subscription TEXT PRIMARY KEY REFERENCES subscription(name),
  path TEXT NOT NULL,
  version INTEGER NOT NULL,              -- the table's version before
  boot_id TEXT NOT NULL,                 -- the machine's, when it was begun
  flushing INTEGER NOT NULL DEFAULT 0    -- a flush was begun, and has not succeeded
) STRICT;

-- version 13
CREATE TABLE reload (                    -- requests to read the configuration file again
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  outcome TEXT,                          -- the daemon's answer, as JSON; NULL before it
  answered REAL                          -- in seconds since 1970
) STRICT;

-- version 14
-- where a batch that was handed over and failed has ended: no batch may begin before it and end after it
ALTER TABLE origin ADD COLUMN fence_lsn INTEGER NOT NULL DEFAULT 0;

-- version 15
-- the table was subscribed and not published when the publications were to be refreshed
ALTER TABLE refresh ADD COLUMN unpublished INTEGER NOT NULL DEFAULT 0;

-- version 16
CREATE TABLE commit_record (             -- what <warehouse>/pgbridge/commits does not have yet
  number INTEGER PRIMARY KEY AUTOINCREMENT,
  subscription TEXT NOT NULL REFERENCES subscription(name),
  kind TEXT NOT NULL CHECK (kind IN ('batch','joined','left')),
  origin TEXT,                           -- the application id of the batch's commits
  start_lsn INTEGER NOT NULL,            -- of joined and left: the origin's LSN at that moment
  end_lsn INTEGER NOT NULL,              -- of joined: the table has what ends at or before it
  first_commit_us INTEGER,               -- microseconds since 2000-01-01 UTC
  last_commit_us INTEGER,
  transactions INTEGER NOT NULL DEFAULT 0,
  tables TEXT NOT NULL,                  -- JSON: [[namespace, name, path], …]
  recorded REAL NOT NULL                 -- in seconds since 1970
) STRICT;

INSERT INTO commit_record (subscription, kind, start_lsn, end_lsn, tables, recorded)
SELECT r.subscription, 'joined', coalesce(o.remote_lsn, 0), max(coalesce(o.remote_lsn, 0), r.lsn),
       json_array(json_array(r.namespace, r.name, r.path)), (julianday('now') - 2440587.5) * 86400.0
  FROM subscription_rel r LEFT JOIN origin o USING (subscription)
 WHERE r.state IN ('s','r') AND instr(r.subscription, ':') = 0;

-- version 17
ALTER TABLE origin ADD COLUMN timeline INTEGER;  -- of all that is recorded from now on
ALTER TABLE origin ADD COLUMN fence_timeline INTEGER;
UPDATE origin SET timeline = (SELECT s.timeline FROM subscription s WHERE s.name = origin.subscription);
ALTER TABLE subscription DROP COLUMN timeline;
ALTER TABLE subscription ADD COLUMN skip_timeline INTEGER;
ALTER TABLE subscription_rel ADD COLUMN position INTEGER NOT NULL DEFAULT 0;  -- of the table's own log, as seen
ALTER TABLE subscription_rel ADD COLUMN timeline INTEGER;
ALTER TABLE batch ADD COLUMN timeline INTEGER;
CREATE TABLE timeline (                  -- of what is durable: two servers may have others of the same number
  subscription TEXT NOT NULL REFERENCES subscription(name),
  timeline INTEGER NOT NULL,
  begin_lsn INTEGER NOT NULL,
  PRIMARY KEY (subscription, timeline)
) STRICT;

ALTER TABLE batch ADD COLUMN tables TEXT;  -- JSON: the paths that it commits to; NULL for all
-- all of it was recorded on the origin's timeline, or before
UPDATE batch SET timeline = (SELECT o.timeline FROM origin o WHERE o.subscription = batch.subscription);
UPDATE subscription_rel
   SET timeline = (SELECT o.timeline FROM origin o WHERE o.subscription = subscription_rel.subscription);
UPDATE origin SET fence_timeline = timeline;
UPDATE subscription SET skip_timeline = (SELECT o.timeline FROM origin o WHERE o.subscription = subscription.name);

-- version 18
CREATE TABLE followed (                  -- the catalog's facts on tables when they were copied, and as noted since
  subscription TEXT NOT NULL REFERENCES subscription(name),
  namespace TEXT NOT NULL,
  name TEXT NOT NULL,
  picture TEXT NOT NULL,                 -- JSON: bridge.publication.catalog_picture
  PRIMARY KEY (subscription, namespace, name)
) STRICT;

CREATE TABLE difference (                -- between what is followed and what is published, as last seen
  subscription TEXT NOT NULL REFERENCES subscription(name),
  kind TEXT NOT NULL,
  namespace TEXT NOT NULL,
  name TEXT NOT NULL,
  subject TEXT NOT NULL,                 -- a partition, or a type's part; empty for the table as a whole
  message TEXT NOT NULL,
  hint TEXT NOT NULL,
  since REAL NOT NULL,                   -- when it was first seen, in seconds since 1970
  PRIMARY KEY (subscription, kind, namespace, name, subject)
) STRICT;

CREATE TABLE removed (                   -- tables that a refresh has removed: what their Delta tables have is ours
  subscription TEXT NOT NULL REFERENCES subscription(name),
  namespace TEXT NOT NULL,
  name TEXT NOT NULL,
  path TEXT NOT NULL,
  PRIMARY KEY (subscription, namespace, name)
) STRICT;

-- version 19
ALTER TABLE subscription_rel ADD COLUMN waits TEXT;  -- for its resync: why, with the hint
ALTER TABLE subscription_rel ADD COLUMN waits_since REAL;  -- in seconds since 1970
CREATE TABLE known_type (                -- types in use that the server may drop while its stream still has values
  subscription TEXT NOT NULL REFERENCES subscription(name),
  oid INTEGER NOT NULL,
  info TEXT NOT NULL,                    -- JSON: the other fields of protocol.values.types.TypeInfo
  PRIMARY KEY (subscription, oid)
) STRICT;

-- version 20
ALTER TABLE prepared ADD COLUMN relids TEXT;  -- JSON: of the tables that it changes; NULL if that is not known
CREATE TABLE manifest (                  -- what the warehouse has of the catalog
  subscription TEXT PRIMARY KEY REFERENCES subscription(name),
  changed INTEGER NOT NULL,              -- grows with each change of what belongs there
  written INTEGER NOT NULL DEFAULT 0,    -- up to which change it is there
  digest TEXT,                           -- of what is there; NULL if that is not known
  generation INTEGER NOT NULL DEFAULT 0  -- one more with each recovery
) STRICT;

INSERT INTO manifest (subscription, changed) SELECT name, 1 FROM subscription WHERE instr(name, ':') = 0;

-- version 21
CREATE TABLE verified (                  -- tables that `pgbridge verify` has found equal
  subscription TEXT NOT NULL REFERENCES subscription(name),
  namespace TEXT NOT NULL,
  name TEXT NOT NULL,
  path TEXT NOT NULL,
  lsn INTEGER NOT NULL,                  -- as of which they were compared
  at REAL NOT NULL,                      -- what was committed before was compared: seconds since 1970
  recorded INTEGER NOT NULL DEFAULT 0,   -- <warehouse>/pgbridge/commits has it
  PRIMARY KEY (subscription, namespace, name)
) STRICT;

-- version 22
CREATE TABLE copied_range (              -- of a table's key: its copy reads each under a snapshot of its own
  subscription TEXT NOT NULL REFERENCES subscription(name),
  namespace TEXT NOT NULL,
  name TEXT NOT NULL,
  number INTEGER NOT NULL,
  key_column TEXT NOT NULL,
  lower TEXT,                            -- the least value in it; NULL for no bound
  upper TEXT,                            -- the least value above it
  source TEXT NOT NULL,                  -- what is copied to what, in short
  lsn INTEGER,                           -- the snapshot's; NULL until it is read
  files TEXT,                            -- JSON: its data files, until one commit adds those of all
  PRIMARY KEY (subscription, namespace, name, number)
) STRICT;

-- the first snapshot of a table with ranges of several; lsn is the last one's
ALTER TABLE subscription_rel ADD COLUMN first_lsn INTEGER NOT NULL DEFAULT 0;

-- version 23
ALTER TABLE verified RENAME TO verified_before;
CREATE TABLE verified (                  -- what was last found of tables that are compared with the published ones
  subscription TEXT NOT NULL REFERENCES subscription(name),
  namespace TEXT NOT NULL,
  name TEXT NOT NULL,
  path TEXT NOT NULL,
  copied_lsn INTEGER NOT NULL,           -- its lsn in subscription_rel: another copy of it is another table
  tried REAL NOT NULL,                   -- when, in seconds since 1970
  lsn INTEGER,                           -- as of which it was last found equal; NULL if it never was
  at REAL,                               -- what was committed before was compared then: seconds since 1970
  recorded INTEGER NOT NULL DEFAULT 0,   -- <warehouse>/pgbridge/commits has it
  version INTEGER,                       -- the Delta table's, if that is equal
  differs TEXT,                          -- what differs
  differs_lsn INTEGER,                   -- as of which
  caveat TEXT,                           -- what is not compared, or may differ by the configuration's will
  could_not TEXT,                        -- why it could not be told
  begun TEXT,                            -- JSON: how far a verification in parts has come
  PRIMARY KEY (subscription, namespace, name)
) STRICT;

INSERT INTO verified (subscription, namespace, name, path, copied_lsn, tried, lsn, at, recorded)
SELECT v.subscription, v.namespace, v.name, v.path, r.lsn, v.at, v.lsn, v.at, v.recorded
  FROM verified_before v JOIN subscription_rel r USING (subscription, namespace, name);

DROP TABLE verified_before;

-- version 24
ALTER TABLE refresh ADD COLUMN joins INTEGER NOT NULL DEFAULT 0;

-- version 25
ALTER TABLE subscription_rel ADD COLUMN shape TEXT;  -- JSON: what its Delta table has in place of the columns
UPDATE subscription_rel SET shape = '{"masks": {}, "names": {}}';

-- version 26: the views of triggers.sql
