"""Which replica identities of partitions identify rows of the table that they are published as."""

from __future__ import annotations

import pytest

from pgbridge.bridge.publication.replica_identity import missing_partition_key, partition_refusal, partition_refusals
from tests.bridge.publication.server_publications import own_routing, relation, routing

TREE = """
    CREATE TABLE root (a int, b int, c int NOT NULL, n int) PARTITION BY RANGE (a);
    CREATE TABLE mid PARTITION OF root FOR VALUES FROM (0) TO (100) PARTITION BY LIST (b);
    CREATE TABLE low PARTITION OF mid DEFAULT; CREATE UNIQUE INDEX low_c ON low (c);
    ALTER TABLE low REPLICA IDENTITY USING INDEX low_c;
    CREATE TABLE rest PARTITION OF root DEFAULT; ALTER TABLE rest ADD PRIMARY KEY (c, a);
    CREATE TABLE whole (a int, b int) PARTITION BY HASH ((a + b));
    CREATE TABLE one PARTITION OF whole FOR VALUES WITH (MODULUS 1, REMAINDER 0);
    ALTER TABLE one ADD PRIMARY KEY (a, b);
"""
VIA_ROOT = "CREATE PUBLICATION p FOR TABLE root, whole WITH (publish_via_partition_root)"


@pytest.mark.parametrize(
    ("name", "identity", "missing"),
    [
        ("low", "c", ("b", "a")),
        ("low", "ac", ("b",)),
        ("low", "abc", ()),
        ("low", "ba", ()),
        ("low", ["a", "old name of b"], ()),
        ("low", ["c", "old name of b"], ("b", "a")),
        ("rest", "c", ("a",)),
        ("rest", "ca", ()),
        ("mid", "b", ("a",)),
        ("one", "ab", ("(expression)",)),
    ],
)
def test_the_partition_key_of_each_level(publisher, name, identity, missing):
    publisher.execute(TREE)
    routed = routing(publisher, VIA_ROOT)
    entry = routed.entry(relation(routed, name))
    assert entry is not None
    assert missing_partition_key(entry, identity, routed.relations) == missing
    refusal = partition_refusal(entry, identity, routed.relations)
    assert (refusal is None) == (not missing)
    if refusal is not None:
        assert f"lacks the partition key ({', '.join(missing)})" in refusal.detail
        assert refusal.message("DELETE").startswith(
            f'logical replication target relation "{entry.target.qualified_name}" '
        )


def test_only_for_changes_that_come_as_the_partitions(publisher):
    """Those that come as the root's have the root's identity. FULL identifies rows by all columns."""
    publisher.execute(TREE)
    publisher.execute("CREATE PUBLICATION leaves FOR ALL TABLES")
    publisher.execute("CREATE PUBLICATION roots FOR ALL TABLES WITH (publish_via_partition_root)")

    def refused(text: str, stream: str) -> list[str]:
        return [
            refusal.table for refusal in partition_refusals(routing(publisher, text), own_routing(publisher, stream))
        ]

    assert refused(VIA_ROOT, "leaves") == ["low", "one"]
    assert refused(VIA_ROOT, "roots") == []
    assert refused("CREATE PUBLICATION p FOR TABLE root, whole", "leaves") == []
    assert refused(VIA_ROOT.replace("root)", "root, publish = 'insert')"), "leaves") == []
    publisher.execute("ALTER TABLE low REPLICA IDENTITY FULL; ALTER TABLE one REPLICA IDENTITY NOTHING")
    assert refused(VIA_ROOT, "leaves") == []
