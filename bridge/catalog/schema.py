"""The catalog's tables, and the migration of a file that an earlier version wrote."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pgbridge.bridge.catalog import manifest
from pgbridge.bridge.runtime.errors import StateError

if TYPE_CHECKING:
    import sqlite3

SCHEMA_VERSION = 25

_NOW = "(julianday('now') - 2440587.5) * 86400.0"
_ORIGIN = "coalesce((SELECT remote_lsn FROM origin WHERE subscription = {row}.subscription), 0)"
_TABLES = "json_array(json_array({row}.namespace, {row}.name, {row}.path))"
_LEAVES = f"""
      INSERT INTO commit_record (subscription, kind, start_lsn, end_lsn, tables, recorded)
      SELECT {{row}}.subscription, 'left', {_ORIGIN}, {_ORIGIN}, {_TABLES}, {_NOW};
"""


def _follows(row: str, *, waits: bool) -> str:
    """The condition that a row's table follows the subscription's stream; before version 19 none waited."""
    follows = f"{row}.state IN ('s','r') AND instr({row}.subscription, ':') = 0"
    return f"({follows} AND {row}.waits IS NULL)" if waits else f"({follows})"


def _triggers(*, waits: bool) -> tuple[str, ...]:
    """A table joins a subscription's batches when it begins to follow the stream, and leaves them when it does not.

    Triggers, because whatever moves a table does so in a transaction that fixes the LSN.
    """
    new, old, other = (_follows(row, waits=waits) for row in ("NEW", "OLD", "o"))
    followed = (
        "EXISTS (SELECT 1 FROM subscription_rel o WHERE o.subscription = NEW.subscription "
        f"AND o.namespace = NEW.namespace AND o.name = NEW.name AND {other})"
    )
    return (
        f"""
        CREATE TRIGGER rel_joined BEFORE INSERT ON subscription_rel
        WHEN {new} AND NOT {followed}
        BEGIN
          INSERT INTO commit_record (subscription, kind, start_lsn, end_lsn, tables, recorded)
          SELECT NEW.subscription, 'joined', {_ORIGIN.format(row="NEW")}, max({_ORIGIN.format(row="NEW")}, NEW.lsn),
            {_TABLES.format(row="NEW")}, {_NOW};
        END
        """,
        f"""
        CREATE TRIGGER rel_replaced BEFORE INSERT ON subscription_rel
        WHEN NOT {new} AND {followed}
        BEGIN{_LEAVES.format(row="NEW")}END
        """,
        f"""
        CREATE TRIGGER rel_deleted BEFORE DELETE ON subscription_rel
        WHEN {old}
        BEGIN{_LEAVES.format(row="OLD")}END
        """,
    )


_JOIN_ALL = (
    "INSERT INTO commit_record (subscription, kind, start_lsn, end_lsn, tables, recorded) "
    f"SELECT r.subscription, 'joined', {_ORIGIN.format(row='r')}, max({_ORIGIN.format(row='r')}, r.lsn), "
    f"{_TABLES.format(row='r')}, {_NOW} FROM subscription_rel r WHERE "
)
JOIN_ALL = _JOIN_ALL + _follows("r", waits=True)
"""Records each table that follows a stream as one that joins now."""

_SINCE_1 = (
    """
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
      sync_error_count INTEGER NOT NULL DEFAULT 0
    ) STRICT
    """,
    """
    CREATE TABLE subscription_rel (
      subscription TEXT NOT NULL REFERENCES subscription(name),
      namespace TEXT NOT NULL,
      name TEXT NOT NULL,
      state TEXT NOT NULL CHECK (state IN ('i','d','f','s','r')),
      lsn INTEGER NOT NULL DEFAULT 0,        -- changes of transactions that commit before it are in the copy
      path TEXT NOT NULL,
      PRIMARY KEY (subscription, namespace, name)
    ) STRICT
    """,
    """
    CREATE TABLE origin (
      subscription TEXT PRIMARY KEY REFERENCES subscription(name),
      remote_lsn INTEGER NOT NULL            -- every transaction that ends at or before it is durable in Delta
    ) STRICT
    """,
    """
    CREATE TABLE batch (                     -- the intent of the batch being applied: one a subscription
      subscription TEXT PRIMARY KEY REFERENCES subscription(name),
      start_lsn INTEGER NOT NULL,
      end_lsn INTEGER NOT NULL
    ) STRICT
    """,
    """
    CREATE TABLE error (
      subscription TEXT PRIMARY KEY REFERENCES subscription(name),
      message TEXT NOT NULL,
      finish_lsn INTEGER,
      relation TEXT,
      time REAL NOT NULL
    ) STRICT
    """,
)

_SINCE_2 = (
    """
    CREATE TABLE prepared (                  -- prepared transactions whose end has not come, pg_prepared_xacts' part
      subscription TEXT NOT NULL REFERENCES subscription(name),
      file TEXT NOT NULL,                    -- its changes: a file in state_dir/spool/<subscription>
      gid TEXT NOT NULL,
      xid INTEGER NOT NULL,
      end_lsn INTEGER NOT NULL,
      PRIMARY KEY (subscription, file)
    ) STRICT
    """,
)

_SINCE_3 = (
    "ALTER TABLE batch ADD COLUMN undoing INTEGER NOT NULL DEFAULT 0",  # its commits are being taken back
    """
    CREATE TABLE conflict (                  -- pg_stat_subscription_stats' confl_* counters
      subscription TEXT NOT NULL REFERENCES subscription(name),
      conflict TEXT NOT NULL,
      count INTEGER NOT NULL,
      PRIMARY KEY (subscription, conflict)
    ) STRICT
    """,
)

_SINCE_4 = (
    """
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
    ) STRICT
    """,
)

_SINCE_5 = (
    "ALTER TABLE batch ADD COLUMN alters INTEGER NOT NULL DEFAULT 0",  # it changes columns of its targets
    """
    CREATE TABLE rel_column (                -- the columns of published tables, as of the origin's LSN
      subscription TEXT NOT NULL REFERENCES subscription(name),
      relid INTEGER NOT NULL,
      attnum INTEGER NOT NULL,
      name TEXT NOT NULL,
      type_oid INTEGER NOT NULL,
      typmod INTEGER NOT NULL,
      state TEXT NOT NULL CHECK (state IN ('live','hidden','gone')),
      PRIMARY KEY (subscription, relid, attnum)
    ) STRICT
    """,
)

_SINCE_6 = (
    """
    CREATE TABLE refresh (                   -- asked for by the command line, taken up by the worker
      id INTEGER PRIMARY KEY AUTOINCREMENT,
      subscription TEXT NOT NULL REFERENCES subscription(name),
      namespace TEXT,                        -- of a table to copy afresh; NULL for the publications as a whole
      name TEXT,
      copy_data INTEGER NOT NULL             -- the tables that were added are copied
    ) STRICT
    """,
)

_SINCE_7 = ("ALTER TABLE subscription_rel ADD COLUMN relid INTEGER",)  # the published table's oid, once it is known

_SINCE_8 = ("ALTER TABLE subscription ADD COLUMN timeline INTEGER",)  # the publisher's, that the origin is on

_SINCE_9 = ("ALTER TABLE batch ADD COLUMN boot_id TEXT",)  # the machine's, when the batch was begun

_SINCE_10 = (
    """
    CREATE TABLE left_out (                  -- published tables that are not subscribed: Delta cannot hold them
      subscription TEXT NOT NULL REFERENCES subscription(name),
      namespace TEXT NOT NULL,
      name TEXT NOT NULL,
      reason TEXT NOT NULL,
      PRIMARY KEY (subscription, namespace, name)
    ) STRICT
    """,
)

_SINCE_11 = (
    # what it has committed was about to be flushed: whether that failed is not known
    "ALTER TABLE batch ADD COLUMN flushing INTEGER NOT NULL DEFAULT 0",
    "ALTER TABLE batch ADD COLUMN messages_path TEXT",  # where its logical messages go
)

_SINCE_12 = (
    """
    CREATE TABLE maintenance (
      subscription TEXT NOT NULL REFERENCES subscription(name),
      path TEXT NOT NULL,
      files INTEGER NOT NULL,                -- as last measured
      since REAL NOT NULL,                   -- when it was first looked at, in seconds since 1970
      optimized REAL,
      vacuumed REAL,
      error TEXT,                            -- of the last attempt, if it failed
      PRIMARY KEY (subscription, path)
    ) STRICT
    """,
    """
    CREATE TABLE optimizing (                -- one a subscription; dropped once it is flushed, or undone
      subscription TEXT PRIMARY KEY REFERENCES subscription(name),
      path TEXT NOT NULL,
      version INTEGER NOT NULL,              -- the table's version before
      boot_id TEXT NOT NULL,                 -- the machine's, when it was begun
      flushing INTEGER NOT NULL DEFAULT 0    -- a flush was begun, and has not succeeded
    ) STRICT
    """,
)

_SINCE_13 = (
    """
    CREATE TABLE reload (                    -- requests to read the configuration file again
      id INTEGER PRIMARY KEY AUTOINCREMENT,
      outcome TEXT,                          -- the daemon's answer, as JSON; NULL before it
      answered REAL                          -- in seconds since 1970
    ) STRICT
    """,
)

_SINCE_14 = (
    # where a batch that was handed over and failed has ended: no batch may begin before it and end after it
    "ALTER TABLE origin ADD COLUMN fence_lsn INTEGER NOT NULL DEFAULT 0",
)

_SINCE_15 = (
    # the table was subscribed and not published when the publications were to be refreshed
    "ALTER TABLE refresh ADD COLUMN unpublished INTEGER NOT NULL DEFAULT 0",
)

_SINCE_16 = (
    """
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
    ) STRICT
    """,
    *_triggers(waits=False),
    _JOIN_ALL + _follows("r", waits=False),
)

_SINCE_17 = (
    "ALTER TABLE origin ADD COLUMN timeline INTEGER",  # of all that is recorded from now on
    "ALTER TABLE origin ADD COLUMN fence_timeline INTEGER",
    "UPDATE origin SET timeline = (SELECT s.timeline FROM subscription s WHERE s.name = origin.subscription)",
    "ALTER TABLE subscription DROP COLUMN timeline",
    "ALTER TABLE subscription ADD COLUMN skip_timeline INTEGER",
    "ALTER TABLE subscription_rel ADD COLUMN position INTEGER NOT NULL DEFAULT 0",  # of the table's own log, as seen
    "ALTER TABLE subscription_rel ADD COLUMN timeline INTEGER",
    "ALTER TABLE batch ADD COLUMN timeline INTEGER",
    """
    CREATE TABLE timeline (                  -- of what is durable: two servers may have others of the same number
      subscription TEXT NOT NULL REFERENCES subscription(name),
      timeline INTEGER NOT NULL,
      begin_lsn INTEGER NOT NULL,
      PRIMARY KEY (subscription, timeline)
    ) STRICT
    """,
    "ALTER TABLE batch ADD COLUMN tables TEXT",  # JSON: the paths that it commits to; NULL for all
    # all of it was recorded on the origin's timeline, or before
    *(
        f"UPDATE {table} SET {column} = (SELECT o.timeline FROM origin o WHERE o.subscription = {table}.{name})"
        for table, column, name in (
            ("batch", "timeline", "subscription"),
            ("subscription_rel", "timeline", "subscription"),
            ("origin", "fence_timeline", "subscription"),
            ("subscription", "skip_timeline", "name"),
        )
    ),
)

_SINCE_18 = (
    """
    CREATE TABLE followed (                  -- the catalog's facts on tables when they were copied, and as noted since
      subscription TEXT NOT NULL REFERENCES subscription(name),
      namespace TEXT NOT NULL,
      name TEXT NOT NULL,
      picture TEXT NOT NULL,                 -- JSON: bridge.publication.catalog_picture
      PRIMARY KEY (subscription, namespace, name)
    ) STRICT
    """,
    """
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
    ) STRICT
    """,
    """
    CREATE TABLE removed (                   -- tables that a refresh has removed: what their Delta tables have is ours
      subscription TEXT NOT NULL REFERENCES subscription(name),
      namespace TEXT NOT NULL,
      name TEXT NOT NULL,
      path TEXT NOT NULL,
      PRIMARY KEY (subscription, namespace, name)
    ) STRICT
    """,
)

_SINCE_19 = (
    "ALTER TABLE subscription_rel ADD COLUMN waits TEXT",  # for its resync: why, with the hint
    "ALTER TABLE subscription_rel ADD COLUMN waits_since REAL",  # in seconds since 1970
    "DROP TRIGGER rel_joined",
    "DROP TRIGGER rel_replaced",
    "DROP TRIGGER rel_deleted",
    *_triggers(waits=True),
    f"""
    CREATE TRIGGER rel_waits AFTER UPDATE OF waits ON subscription_rel
    WHEN {_follows("OLD", waits=True)} AND NEW.waits IS NOT NULL
    BEGIN{_LEAVES.format(row="NEW")}END
    """,
    """
    CREATE TABLE known_type (                -- types in use that the server may drop while its stream still has values
      subscription TEXT NOT NULL REFERENCES subscription(name),
      oid INTEGER NOT NULL,
      info TEXT NOT NULL,                    -- JSON: the other fields of protocol.values.types.TypeInfo
      PRIMARY KEY (subscription, oid)
    ) STRICT
    """,
)

_SINCE_20 = (
    "ALTER TABLE prepared ADD COLUMN relids TEXT",  # JSON: of the tables that it changes; NULL if that is not known
    *manifest.TABLE,
)

_SINCE_21 = (
    """
    CREATE TABLE verified (                  -- tables that `pgbridge verify` has found equal
      subscription TEXT NOT NULL REFERENCES subscription(name),
      namespace TEXT NOT NULL,
      name TEXT NOT NULL,
      path TEXT NOT NULL,
      lsn INTEGER NOT NULL,                  -- as of which they were compared
      at REAL NOT NULL,                      -- what was committed before was compared: seconds since 1970
      recorded INTEGER NOT NULL DEFAULT 0,   -- <warehouse>/pgbridge/commits has it
      PRIMARY KEY (subscription, namespace, name)
    ) STRICT
    """,
)

_SINCE_22 = (
    """
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
    ) STRICT
    """,
    *manifest.OF_COPIED_RANGES,
    # the first snapshot of a table with ranges of several; lsn is the last one's
    "ALTER TABLE subscription_rel ADD COLUMN first_lsn INTEGER NOT NULL DEFAULT 0",
)

_SINCE_23 = (
    "ALTER TABLE verified RENAME TO verified_before",
    """
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
    ) STRICT
    """,
    """
    INSERT INTO verified (subscription, namespace, name, path, copied_lsn, tried, lsn, at, recorded)
    SELECT v.subscription, v.namespace, v.name, v.path, r.lsn, v.at, v.lsn, v.at, v.recorded
      FROM verified_before v JOIN subscription_rel r USING (subscription, namespace, name)
    """,
    "DROP TABLE verified_before",
)

_SINCE_24 = ("ALTER TABLE refresh ADD COLUMN joins INTEGER NOT NULL DEFAULT 0",)

_SINCE_25 = (
    # JSON: what its Delta table has in place of the columns; NULL if unknown
    "ALTER TABLE subscription_rel ADD COLUMN shape TEXT",
    *manifest.OF_SHAPES,
    """UPDATE subscription_rel SET shape = '{"masks": {}, "names": {}}'""",
)

_SINCE = (
    *(_SINCE_1, _SINCE_2, _SINCE_3, _SINCE_4, _SINCE_5, _SINCE_6),
    *(_SINCE_7, _SINCE_8, _SINCE_9, _SINCE_10, _SINCE_11, _SINCE_12),
    *(_SINCE_13, _SINCE_14, _SINCE_15, _SINCE_16, _SINCE_17, _SINCE_18),
    *(_SINCE_19, _SINCE_20, _SINCE_21, _SINCE_22, _SINCE_23, _SINCE_24),
    _SINCE_25,
)


def migrate(db: sqlite3.Connection) -> None:
    """Create the missing tables, within the caller's transaction.

    Raises:
        StateError: The file was written by a later version.
    """
    version = db.execute("PRAGMA user_version").fetchone()[0]
    if version > SCHEMA_VERSION:
        raise StateError(f"the state catalog was written by a later version of pgbridge (schema {version})")
    for since, statements in enumerate(_SINCE, 1):
        for statement in statements if version < since else ():
            db.execute(statement)
    db.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
