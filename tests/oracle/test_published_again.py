"""What no message announces, with a running memory_pipeline: seen, and ended by the command that is named."""

from __future__ import annotations

from pgbridge.bridge.catalog import followed, refresh
from pgbridge.bridge.commands.refresh import ask
from tests.oracle.delta import differences

SCHEMA = """
CREATE TYPE mood AS ENUM ('ok', 'sad');
CREATE TABLE t (id int PRIMARY KEY, v text); CREATE TABLE o (id int PRIMARY KEY, m mood);
CREATE TABLE r (id int PRIMARY KEY) PARTITION BY RANGE (id);
CREATE TABLE r1 PARTITION OF r FOR VALUES FROM (0) TO (10);
CREATE TABLE r2 PARTITION OF r FOR VALUES FROM (10) TO (20);
CREATE TABLE lone (id int PRIMARY KEY);
INSERT INTO t VALUES (1, 'old'), (2, 'old'); INSERT INTO o VALUES (1, 'ok'); INSERT INTO r VALUES (1), (11);
INSERT INTO lone VALUES (21);
CREATE PUBLICATION pub FOR TABLE t, o, r WITH (publish_via_partition_root);
"""


def seen(bridge):
    return [one.difference for one in followed.seen(bridge.catalog, bridge.subscription.name)]


def typed(bridge, hint):
    """Run the last command of a hint."""
    words = hint.rpartition("run: pgbridge refresh ")[2].split()
    assert words[0] == bridge.subscription.name
    tables = [word for word in words[1:] if word != "--resync"]
    ask(bridge.subscription, bridge.catalog, resync=tables, copy_data=None, when="now")


def test_a_table_is_not_followed_as_it_is_published(publisher, memory_pipeline):
    publisher.execute(SCHEMA)
    bridge = memory_pipeline()
    bridge.catch_up()
    assert seen(bridge) == []
    publisher.execute("DROP TABLE t; CREATE TABLE t (id int PRIMARY KEY, v text); INSERT INTO t VALUES (2, 'new')")
    publisher.execute("ALTER PUBLICATION pub ADD TABLE t")
    publisher.execute("ALTER TYPE mood RENAME VALUE 'ok' TO 'fine'")
    publisher.execute("ALTER TABLE r ATTACH PARTITION lone FOR VALUES FROM (20) TO (30); INSERT INTO r VALUES (22)")
    publisher.execute("ALTER TABLE r DETACH PARTITION r2; INSERT INTO r1 VALUES (2)")
    bridge.catch_up()
    assert sorted(one.kind for one in seen(bridge)) == ["attached", "detached", "replaced", "type"]
    for one in seen(bridge):
        typed(bridge, one.hint)
    bridge.catch_up()
    assert seen(bridge) == []
    publisher.execute("INSERT INTO t VALUES (3, 'newer'); INSERT INTO o VALUES (2, 'fine')")
    bridge.catch_up()
    for table in ("t", "o", "r"):
        assert differences(bridge.spark, bridge.path(table), publisher, table) == []


def test_a_table_is_had_again_after_a_refresh_has_removed_it(publisher, memory_pipeline):
    """O11: dropped, refreshed away, created again; the warning's command copies it over its own rows."""
    publisher.execute(SCHEMA)
    bridge = memory_pipeline()
    bridge.catch_up()
    name = bridge.subscription.name
    publisher.execute("DROP TABLE t")
    bridge.catch_up()
    (one,) = seen(bridge)
    typed(bridge, one.hint)
    bridge.catch_up()
    assert [rel.name for rel in bridge.catalog.rels(name)] == ["o", "r"]
    publisher.execute("CREATE TABLE t (id int PRIMARY KEY, v text); ALTER PUBLICATION pub ADD TABLE t")
    publisher.execute("INSERT INTO t VALUES (7, 'again')")
    bridge.catch_up()
    (one,) = seen(bridge)
    assert one.kind == "not_followed"
    typed(bridge, one.hint)
    bridge.catch_up()
    assert not refresh.asked(bridge.catalog, name)
    publisher.execute("INSERT INTO t VALUES (8, 'follows')")
    bridge.catch_up()
    assert seen(bridge) == []
    assert differences(bridge.spark, bridge.path("t"), publisher, "t") == []
