-- The state catalog's views and triggers (SQLite), made anew with each version.

-- A table joins a subscription's batches when it begins to follow the stream, and leaves them when it does not.
-- Triggers record that, because whatever moves a table does so in a transaction that fixes the LSN.
CREATE VIEW following AS
SELECT * FROM subscription_rel WHERE state IN ('s','r') AND waits IS NULL AND instr(subscription, ':') = 0;

-- What is inserted here becomes a commit_record. Of what joins, `lsn` is up to where it has everything.
CREATE VIEW commit_membership (kind, subscription, lsn, namespace, name, path) AS
SELECT 'joined', subscription, lsn, namespace, name, path FROM following;

CREATE TRIGGER commit_membership_changes INSTEAD OF INSERT ON commit_membership
BEGIN
  INSERT INTO commit_record (subscription, kind, start_lsn, end_lsn, tables, recorded)
  SELECT NEW.subscription, NEW.kind, origin_lsn, max(origin_lsn, NEW.lsn),
         json_array(json_array(NEW.namespace, NEW.name, NEW.path)), (julianday('now') - 2440587.5) * 86400.0
    FROM (SELECT coalesce(max(remote_lsn), 0) AS origin_lsn FROM origin WHERE subscription = NEW.subscription);
END;

CREATE TRIGGER rel_joined BEFORE INSERT ON subscription_rel
WHEN NEW.state IN ('s','r') AND NEW.waits IS NULL AND instr(NEW.subscription, ':') = 0
     AND NOT EXISTS (SELECT 1 FROM following f WHERE f.subscription = NEW.subscription
                        AND f.namespace = NEW.namespace AND f.name = NEW.name)
BEGIN
  INSERT INTO commit_membership VALUES ('joined', NEW.subscription, NEW.lsn, NEW.namespace, NEW.name, NEW.path);
END;

CREATE TRIGGER rel_replaced BEFORE INSERT ON subscription_rel
WHEN NOT (NEW.state IN ('s','r') AND NEW.waits IS NULL AND instr(NEW.subscription, ':') = 0)
     AND EXISTS (SELECT 1 FROM following f WHERE f.subscription = NEW.subscription
                    AND f.namespace = NEW.namespace AND f.name = NEW.name)
BEGIN
  INSERT INTO commit_membership VALUES ('left', NEW.subscription, 0, NEW.namespace, NEW.name, NEW.path);
END;

CREATE TRIGGER rel_deleted BEFORE DELETE ON subscription_rel
WHEN OLD.state IN ('s','r') AND OLD.waits IS NULL AND instr(OLD.subscription, ':') = 0
BEGIN
  INSERT INTO commit_membership VALUES ('left', OLD.subscription, 0, OLD.namespace, OLD.name, OLD.path);
END;

CREATE TRIGGER rel_waits AFTER UPDATE OF waits ON subscription_rel
WHEN OLD.state IN ('s','r') AND OLD.waits IS NULL AND instr(OLD.subscription, ':') = 0 AND NEW.waits IS NOT NULL
BEGIN
  INSERT INTO commit_membership VALUES ('left', OLD.subscription, 0, OLD.namespace, OLD.name, OLD.path);
END;

-- The manifest of a subscription counts its changes; `bridge.catalog.manifest` has the triggers of the other tables.
CREATE TRIGGER manifest_begins AFTER INSERT ON subscription WHEN instr(NEW.name, ':') = 0
BEGIN
  INSERT OR IGNORE INTO manifest (subscription, changed) VALUES (NEW.name, 1);
END;
