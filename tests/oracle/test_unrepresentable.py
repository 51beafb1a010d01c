"""Values that Delta does not hold, where definitions leave them out: they are the server's business alone.

With the same publications on the server itself, PostgreSQL filters before anything is sent.
"""

from __future__ import annotations

import pytest

from pgbridge.bridge.runtime.errors import ApplyError
from tests.oracle.delta import differences
from tests.oracle.native import NativeSubscriber

SCHEMA = """
    CREATE TABLE verdicts (id int PRIMARY KEY, until date);
    CREATE TABLE listed (id int PRIMARY KEY, n numeric(5, 2), secret timestamptz, nested int[]);
    CREATE TABLE filtered (id int PRIMARY KEY, until date, n numeric(5, 2));
    ALTER TABLE verdicts REPLICA IDENTITY FULL;
    ALTER TABLE filtered REPLICA IDENTITY FULL;
    CREATE PUBLICATION pub FOR ALL TABLES;
"""
DEFINITIONS = {
    "nulls": "CREATE PUBLICATION nulls FOR TABLE verdicts WHERE (until = 'infinity')",
    "errors": "CREATE PUBLICATION errors FOR TABLE listed (id, n), filtered WHERE (until < 'infinity')",
}
ROWS = """
    INSERT INTO verdicts VALUES ({0}1, 'infinity'), ({0}2, '-infinity'), ({0}3, '2020-01-01'), ({0}4, NULL);
    INSERT INTO verdicts VALUES ({0}5, '10000-01-01'), ({0}6, 'infinity');
    INSERT INTO listed VALUES ({0}1, 1, 'infinity', '{{{{1}}}}');
    INSERT INTO filtered VALUES ({0}1, 'infinity', 'NaN'), ({0}2, '2020-01-01', 2), ({0}3, 'infinity', 3);
"""
CHANGES = """
    UPDATE verdicts SET until = 'infinity' WHERE id % 10 IN (2, 3);
    UPDATE verdicts SET until = '-infinity' WHERE id % 10 = 6;
    DELETE FROM verdicts WHERE id = 11;
    UPDATE listed SET secret = '-infinity', n = 2;
    UPDATE filtered SET until = '2021-01-01' WHERE id % 10 = 3; UPDATE filtered SET until = 'infinity' WHERE id = 12;
    DELETE FROM filtered WHERE id = 11;
"""


def test_definitions_shield(spark, publisher, pipeline, tmp_path):
    """Infinity is compared before it is NULL; what is not published, or does not pass, stops nothing."""
    publisher.execute(SCHEMA + ROWS.format(1))
    for name, definitions in DEFINITIONS.items():
        publisher.execute(definitions)
        (tmp_path / f"{name}.sql").write_text(definitions)
    bridges = {
        policy: pipeline(
            publication_definitions=str(tmp_path / f"{policy}s.sql"),
            unrepresentable=policy,
            slot_name=f"{publisher.name}_{policy}",
        )
        for policy in ("null", "error")
    }
    with NativeSubscriber(publisher.conninfo, list(DEFINITIONS)) as native:
        for bridge in bridges.values():
            bridge.catch_up()
        publisher.execute(ROWS.format(2) + CHANGES)
        for bridge in bridges.values():
            bridge.catch_up()
        native.wait_caught_up()
        found = {(str(row["id"]), row["until"]) for row in bridges["null"].rows("verdicts")}
        assert found == {(row[0], None) for row in native.rows("public.verdicts")}
        assert len(found) == 5
        for table in ("listed", "filtered"):
            assert differences(spark, bridges["error"].path(table), native, table) == [], table
    publisher.execute("INSERT INTO filtered VALUES (100, '2022-01-01', 100)")
    publisher.execute("UPDATE filtered SET until = '2022-01-01' WHERE id = 21")
    with pytest.raises(ApplyError, match="column \"n\": value 'NaN' cannot be represented") as raised:
        bridges["error"].catch_up()
    assert (raised.value.context.column, raised.value.context.relation) == ("n", "public.filtered")
    assert raised.value.context.xid is not None
    assert 'set unrepresentable = "null"' in raised.value.hint
    assert 100 in {row["id"] for row in bridges["error"].rows("filtered")}


BEYOND = """
    CREATE TABLE numbers (v numeric(5, 2) PRIMARY KEY, w int);
    CREATE TABLE mixed (id int PRIMARY KEY, n numeric(5, 2), a int[], at timestamp, ns numeric(5, 2)[], w int);
    ALTER TABLE mixed REPLICA IDENTITY FULL;
"""
SHIELDED = """numbers WHERE (v <> 'NaN'),
    mixed WHERE (CASE WHEN n IS DISTINCT FROM 'NaN' THEN n + 1 < 900 ELSE false END
    AND (array_ndims(a) = 1 OR a IS NULL) AND at < '200000-01-01' AND NOT 'NaN' = ANY (ns))"""
BEYOND_ROWS = """
    INSERT INTO numbers VALUES ('NaN', {0}), ({0}, {0}), ({0}.5, {0}); UPDATE numbers SET v = {0}.25 WHERE v = 'NaN';
    UPDATE numbers SET v = 'NaN' WHERE v = {0}.5; UPDATE numbers SET w = -1 WHERE v = 'NaN';
    DELETE FROM numbers WHERE v = 'NaN';
    INSERT INTO mixed VALUES ({0}1, 'NaN', '{{1}}', '2020-01-01', '{{1}}', 1),
        ({0}2, 1, '{{{{1}},{{2}}}}', '2020-01-01', '{{1}}', 1),
        ({0}3, 1, '{{1}}', '294276-01-01', '{{1}}', 1), ({0}4, 1, '{{1}}', '2020-01-01', '{{NaN}}', 1),
        ({0}5, 1, '{{1}}', '2020-01-01', '{{1}}', 1), ({0}6, 899, '{{1}}', '2020-01-01', '{{1}}', 1);
    UPDATE mixed SET n = 2 WHERE id = {0}1; UPDATE mixed SET a = '{{2}}' WHERE id = {0}2;
    UPDATE mixed SET n = 'NaN' WHERE id = {0}5; UPDATE mixed SET w = 2; DELETE FROM mixed WHERE id = {0}4;
"""


def test_definitions_shield_from_what_spark_has_no_equal_of(spark, publisher, pipeline, tmp_path):
    """Such rows do not pass, whatever way the filter says so in; an UPDATE makes them come and go."""
    publisher.execute(BEYOND + "CREATE PUBLICATION pub FOR ALL TABLES;" + BEYOND_ROWS.format(1))
    definitions = f"CREATE PUBLICATION shielded FOR TABLE {SHIELDED}"
    publisher.execute(definitions)
    (tmp_path / "shielded.sql").write_text(definitions)
    bridge = pipeline(publication_definitions=str(tmp_path / "shielded.sql"))
    with NativeSubscriber(publisher.conninfo, ["shielded"]) as native:
        bridge.catch_up()
        publisher.execute(BEYOND_ROWS.format(2))
        bridge.catch_up()
        native.wait_caught_up()
        for table in ("numbers", "mixed"):
            assert differences(spark, bridge.path(table), native, table) == [], table
            assert len(bridge.rows(table)) >= 2
