"""A changelog replayed up to an LSN, or a history as of it, gives the mirror there; at the end, PostgreSQL's rows."""

from __future__ import annotations

import json
from contextlib import closing

import pytest
from pyspark.sql import Window, functions as F

from pgbridge.bridge.catalog.catalog import Catalog, catalog_path
from pgbridge.bridge.catalog.refresh import copy_afresh
from pgbridge.bridge.config.tables import Table
from pgbridge.bridge.runtime.errors import ApplyError, NeedsResync, TargetError
from pgbridge.bridge.targets.target import added_names
from pgbridge.protocol.lsn import Lsn
from tests.bridge.apply.made_batches import Cut, failing
from tests.oracle.delta import differences
from tests.oracle.replayed import as_of, counted, mirrored, replayed
from tests.oracle.test_schema_change import BEFORE, COMES_AND_GOES, IN_LATER_BATCHES, IN_ONE_TRANSACTION, T, U
from tests.oracle.typed import type_in
from tests.oracle.workload import KEYS, OPERATIONS as USUAL, TABLES, Operation, Workload

MODES = ("mirror", "changelog", "history", "soft_deletes")
POINTS = ("batch_begun", "table_begun", "table_committed", "batch_committed", "before_confirm")
FROM_HERE = 1 << 62


@pytest.fixture
def modes(publisher, pipeline, tmp_path):
    """The three pipelines of one publication; each has a name, a slot, a state and tables of its own."""
    made = {}
    catalogs = []
    for mode in MODES:
        bridge = pipeline(mode=mode, batch__max_rows=1000, warehouse=str(tmp_path / mode))
        name = f"{publisher.name}_{mode}"
        bridge.subscription = bridge.subscription.model_copy(update={"name": name, "slot_name": name})
        bridge.catalog.close()
        bridge.catalog = Catalog(catalog_path(tmp_path / f"state_{mode}"))
        bridge.catalog.register(name, enabled=True)
        catalogs.append(bridge.catalog)
        made[mode] = bridge
    yield made
    for catalog in catalogs:
        with closing(catalog):
            pass


def assert_equal_at_every_version(spark, modes, table, key, *, every=1):
    """At each LSN where the mirror has a version."""
    mirror, changelog, history, soft_deletes = (modes[mode] for mode in MODES)
    looked_at = 0
    copied_lsn = max(rel.lsn for bridge in modes.values() for rel in bridge.catalog.rels(bridge.subscription.name))
    versions: dict[int, int] = {}  # the last one of each batch: those before it may be of its alterations
    for version, commit in enumerate(mirror.commits(table)):
        mark = json.loads(commit["commitInfo"].get("userMetadata") or "{}").get("pgbridge", {})
        if "end_lsn" in mark and Lsn.parse(mark["end_lsn"]) >= copied_lsn:
            versions[int(Lsn.parse(mark["end_lsn"]))] = version
    for lsn, version in list(versions.items())[::-every]:
        expected = mirrored(spark, mirror.path(table), version)
        assert replayed(spark, changelog.path(table), key, lsn) == expected, (table, version)
        assert as_of(spark, history.path(table), lsn) == expected, (table, version)
        looked_at += 1
    if key:
        assert_last_versions(spark, soft_deletes.path(table), history.path(table), key)
    return looked_at


def assert_last_versions(spark, soft_deletes, history, key):
    """Soft deletes are the last version of each key in the history, whether it is valid or has ended.

    The LSNs of versions that came with the copies are not compared: each mode may have a copy of its own.
    """
    of_key = Window.partitionBy(*key).orderBy(F.col("valid_from_lsn").desc())
    versions = spark.read.format("delta").load(history).withColumn("number", F.row_number().over(of_key))
    last = versions.filter("number = 1").drop("number")
    renamed = last.withColumnsRenamed(dict(zip(added_names("history"), added_names("soft_deletes"), strict=True)))
    made, expected = (
        counted(
            frame.withColumn("row_changed_lsn", F.expr("if(row_changed_at IS NULL, 0, row_changed_lsn)"))
            .toArrow()
            .to_pylist()
        )
        for frame in (spark.read.format("delta").load(soft_deletes), renamed)
    )
    assert made == expected


def truncate(workload, connection):
    """Empty two tables by one statement, among other changes."""
    connection.execute("TRUNCATE docs, lines")
    workload._keys["docs"].clear()
    workload._keys["lines"].clear()


@pytest.mark.parametrize(
    ("streaming", "lives"),
    [
        pytest.param("off", [(40, ("table_committed",))], marks=pytest.mark.soak),
        pytest.param("on", [(80, (point,)) for point in POINTS for _ in range(2)], marks=pytest.mark.soak),
    ],
    ids=["one life", "many lives, streamed"],
)
def test_random_workload_under_faults(spark, publisher, modes, streaming, lives):
    """Copies under load, then batches that are cut short; at the end all of them are equal."""
    if streaming == "on":
        publisher.stream_everything()
    for bridge in modes.values():
        bridge.subscription = bridge.subscription.model_copy(update={"streaming": streaming})
    with Workload(publisher.conninfo, 20261124, [*USUAL, Operation("truncate", 2, truncate)]) as workload:
        workload.create_tables()
        workload.publication("pub")
        workload.step(20)
        for bridge in modes.values():
            bridge.catch_up()
        for steps, points in lives:
            workload.step(steps)
            modes["mirror"].catch_up()
            for mode in MODES[1:]:
                for point in points:
                    with failing(Cut(), point), pytest.raises(Cut):
                        modes[mode].catch_up()
                modes[mode].catch_up()
    assert workload.counts["truncate"] > 0, workload.counts
    for table in TABLES:
        key = KEYS.get(table, ())
        assert differences(spark, modes["mirror"].path(table), publisher, table) == []
        assert assert_equal_at_every_version(spark, modes, table, key, every=8) > 0
        assert replayed(spark, modes["changelog"].path(table), key, FROM_HERE) == mirrored(
            spark, modes["mirror"].path(table)
        )
    appends = [commit["commitInfo"] for commit in modes["changelog"].commits("docs") if "txn" in commit]
    assert {info["operationParameters"]["mode"] for info in appends[1:]} == {"Append"}, "insert-only commits"
    later = modes["changelog"].commits("docs")[2:]
    removing = {commit["commitInfo"]["operation"] for commit in later if "remove" in commit}
    assert removing == ({"RESTORE"} if streaming == "on" else set())  # some of the lives end in an undo


@pytest.mark.soak  # `test_large_values_move_with_keys` has a new and a renamed column, too
def test_schema_changes(spark, publisher, modes):
    """ADD with a default, DROP, RENAME, a wider type; keys that change with columns that the stream lacks."""
    publisher.execute(T + U + "CREATE PUBLICATION pub FOR ALL TABLES")
    for bridge in modes.values():
        bridge.catch_up()
    for statements in (*BEFORE, IN_ONE_TRANSACTION, COMES_AND_GOES):
        publisher.execute(statements)
    for bridge in modes.values():
        bridge.catch_up()
    for statements in IN_LATER_BATCHES:
        publisher.execute(statements)
    for bridge in modes.values():
        bridge.catch_up()
    for table in ("t", "u"):
        expected = mirrored(spark, modes["mirror"].path(table))
        assert replayed(spark, modes["changelog"].path(table), ["id"], FROM_HERE) == expected
        assert as_of(spark, modes["history"].path(table), FROM_HERE) == expected
        assert_last_versions(spark, modes["soft_deletes"].path(table), modes["history"].path(table), ["id"])


class OfMode:
    """The table of a mode, where one subscription has one of each."""

    def __init__(self, bridge, mode):
        self.catalog, self.subscription, self._bridge, self._mode = bridge.catalog, bridge.subscription, bridge, mode

    def path(self, _table):
        return self._bridge.path(self._mode)

    def commits(self, _table):
        return self._bridge.commits(self._mode)


def test_large_values_move_with_keys(spark, publisher, pipeline):
    """Within one batch, over several keys, in one transaction and in several; and a key that is used again."""

    def execute(*transactions):
        """Each changes the three tables by the same statements."""
        for statements in transactions:
            publisher.execute("; ".join(["BEGIN", *(statements.format(t=mode) for mode in MODES), "COMMIT"]))

    execute(
        "CREATE TABLE {t} (id int PRIMARY KEY, n int, big text); ALTER TABLE {t} ALTER big SET STORAGE EXTERNAL;"
        "INSERT INTO {t} SELECT g, 0, repeat(g::text, 5000) FROM generate_series(1, 4) g"
    )
    publisher.execute("CREATE PUBLICATION pub FOR ALL TABLES")
    bridge = pipeline(batch__max_rows=1000, tables={f"public.{mode}": {"mode": mode} for mode in MODES})
    modes = {mode: OfMode(bridge, mode) for mode in MODES}
    bridge.catch_up()
    execute(
        "UPDATE {t} SET id = 11 WHERE id = 1; UPDATE {t} SET id = 12 WHERE id = 11",
        "UPDATE {t} SET id = 13, n = 1 WHERE id = 12",
        "UPDATE {t} SET id = 1 WHERE id = 2; UPDATE {t} SET id = 2 WHERE id = 3",
        "UPDATE {t} SET n = 2 WHERE id = 1",
        "INSERT INTO {t} VALUES (50, 0, 'x'); DELETE FROM {t} WHERE id = 50",
        "DELETE FROM {t} WHERE id = 4; INSERT INTO {t} VALUES (4, 9, 'new')",
    )
    bridge.catch_up()
    assert assert_equal_at_every_version(spark, modes, "t", ["id"]) >= 1
    versions = spark.read.format("delta").load(modes["history"].path("t")).orderBy("id", "valid_from_lsn")
    found = [
        (row["id"], row["n"], row["size"], row["valid"])
        for row in versions.selectExpr("id", "n", "length(big) AS size", "valid_to_lsn IS NULL AS valid").collect()
    ]
    assert found == [
        (1, 0, 5000, False),
        (1, 0, 5000, False),
        (1, 2, 5000, True),
        (2, 0, 5000, False),
        (2, 0, 5000, True),
        (3, 0, 5000, False),
        (4, 0, 5000, False),
        (4, 9, 3, True),
        (12, 0, 5000, False),
        (13, 1, 5000, True),
    ], "a state that no reader could see is no version"
    wrong = versions.filter("valid_to_lsn <= valid_from_lsn OR (valid_from IS NOT NULL AND valid_to < valid_from)")
    assert wrong.count() == 0
    assert versions.filter("(valid_to_lsn IS NULL) <> (valid_to IS NULL)").count() == 0
    execute(
        "ALTER TABLE {t} ADD c int DEFAULT 7; ALTER TABLE {t} RENAME big TO large",
        "INSERT INTO {t} VALUES (60, 0, 'y', 8); UPDATE {t} SET n = 5 WHERE id = 1",
    )
    bridge.catch_up()
    expected = mirrored(spark, modes["mirror"].path("t"))
    assert replayed(spark, modes["changelog"].path("t"), ["id"], FROM_HERE) == expected
    assert as_of(spark, modes["history"].path("t"), FROM_HERE) == expected
    assert_last_versions(spark, modes["soft_deletes"].path("t"), modes["history"].path("t"), ["id"])
    altered = spark.read.format("delta").load(modes["history"].path("t"))
    assert altered.filter("c IS DISTINCT FROM if(id = 60, 8, 7)").count() == 0


def test_filters_partitions_and_a_mode_for_one_table(spark, publisher, pipeline, tmp_path):
    publisher.execute(
        "CREATE TABLE p (id int, a int, PRIMARY KEY (id, a)) PARTITION BY RANGE (id);"
        "CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (100); CREATE TABLE q (id int PRIMARY KEY);"
        "INSERT INTO p VALUES (1, 1), (2, 20); CREATE PUBLICATION pub FOR TABLE p, q"
    )
    (tmp_path / "publications.sql").write_text(
        "CREATE PUBLICATION pub FOR TABLE p WHERE (a > 10), q WITH (publish_via_partition_root = true);"
    )
    from pgbridge.bridge.config.tables import Table

    bridge = pipeline(
        publication_definitions=str(tmp_path / "publications.sql"),
        mode="history",
        tables={"public.q": Table(mode="mirror")},
    )
    bridge.catch_up()
    publisher.execute("UPDATE p SET a = 11 WHERE id = 1; UPDATE p SET a = 2 WHERE id = 2; INSERT INTO q VALUES (1)")
    publisher.execute("UPDATE p SET a = 12 WHERE id = 1; INSERT INTO p VALUES (3, 30)")
    publisher.execute("TRUNCATE p")
    bridge.catch_up()
    versions = spark.read.format("delta").load(bridge.path("p")).orderBy("valid_from_lsn", "id")
    found = [
        (row["id"], row["a"], row["ends"]) for row in versions.selectExpr("*", "valid_to IS NOT NULL AS ends").collect()
    ]
    assert found == [(2, 20, True), (1, 11, True), (1, 12, True), (3, 30, True)]
    assert bridge.rows("q") == [{"id": 1}]


def test_what_cannot_be(spark, publisher, pipeline):
    publisher.execute("CREATE TABLE t (id int PRIMARY KEY, valid_to text); CREATE PUBLICATION pub FOR TABLE t")
    with pytest.raises(TargetError, match='cannot have mode = "history": its column "valid_to"'):
        pipeline(mode="history").catch_up()
    publisher.execute(
        "ALTER TABLE t RENAME valid_to TO note; CREATE TABLE bag (a int); CREATE PUBLICATION bags FOR TABLE bag"
    )
    publisher.execute("ALTER TABLE bag REPLICA IDENTITY FULL; INSERT INTO bag VALUES (1)")
    bridge = pipeline(mode="history", publications=("bags",), slot_name=f"{publisher.name}_bags")
    bridge.catch_up()
    publisher.execute("INSERT INTO bag VALUES (2), (2)")
    bridge.catch_up()
    assert sorted(row["a"] for row in bridge.rows("bag")) == [1, 2, 2]
    publisher.execute("TRUNCATE bag; INSERT INTO bag VALUES (3)")
    bridge.catch_up()
    assert sorted((row["a"], row["valid_to_lsn"] is None) for row in bridge.rows("bag")) == [
        (1, False),
        (2, False),
        (2, False),
        (3, True),
    ]
    publisher.execute("UPDATE bag SET a = 4")
    with pytest.raises(ApplyError, match='"public.bag" has changes other than INSERT, and no key') as caught:
        bridge.catch_up()
    assert 'mode = "changelog"' in caught.value.hint
    bridge.subscription = bridge.subscription.model_copy(update={"mode": "changelog"})
    with pytest.raises(TargetError, match='not have the columns of mode = "changelog"'):
        bridge.catch_up()


def test_soft_deletes_stay_when_the_table_is_copied_afresh(spark, publisher, pipeline):
    """Rows that the copy does not meet any more were deleted, and rows that are back have no mark."""
    publisher.execute(
        "CREATE TABLE t (id int, part text, note text, PRIMARY KEY (id, part)); CREATE TABLE bag (a int);"
        "INSERT INTO t SELECT g, 'p', 'first' FROM generate_series(1, 6) g; INSERT INTO bag VALUES (1), (2), (2);"
        "CREATE PUBLICATION pub FOR TABLE t, bag"
    )
    bridge = pipeline(mode="soft_deletes")
    bridge.catch_up()
    path = bridge.path("t")
    spark.sql(f"ALTER TABLE delta.`{path}` ADD COLUMNS (mine string)").collect()
    spark.sql(f"UPDATE delta.`{path}` SET mine = 'of ' || id").collect()
    publisher.execute("DELETE FROM t WHERE id IN (1, 2); UPDATE t SET note = 'second' WHERE id = 3; TRUNCATE bag")
    bridge.catch_up()

    def rows():
        names = "id", "note", "mine", "deleted", "dated"
        frame = spark.read.format("delta").load(path).orderBy("id")
        marks = "row_deleted_lsn IS NOT NULL AS deleted", "row_deleted_at IS NOT NULL AS dated"
        return [tuple(row[name] for name in names) for row in frame.selectExpr(*names[:3], *marks).collect()]

    first = [(1, "first", "of 1", True, True), (2, "first", "of 2", True, True), (3, "second", "of 3", False, False)]
    assert rows() == [*first, *((n, "first", f"of {n}", False, False) for n in (4, 5, 6))]
    assert [row["row_deleted_lsn"] is None for row in bridge.rows("bag")] == [False] * 3
    publisher.execute("INSERT INTO t VALUES (1, 'p', 'back'); DELETE FROM t WHERE id = 4; INSERT INTO bag VALUES (3)")
    for table in ("t", "bag"):
        copy_afresh(bridge.catalog, bridge.subscription.name, ("public", table))
    bridge.catch_up()
    assert rows() == [
        (1, "back", None, False, False),
        (2, "first", "of 2", True, True),
        (3, "second", None, False, False),
        (4, "first", "of 4", True, False),
        *((n, "first", None, False, False) for n in (5, 6)),
    ], "a copy replaces the rows, and what only the Delta table had of them, as in a mirror"
    assert sorted((row["a"], row["row_deleted_lsn"] is None) for row in bridge.rows("bag")) == [
        (1, False), (2, False), (2, False), (3, True),
    ]  # fmt: skip
    publisher.execute("DELETE FROM t WHERE id = 5; INSERT INTO t VALUES (4, 'p', 'again')")
    bridge.catch_up()
    assert [(row[0], row[3]) for row in rows()] == [
        (1, False),
        (2, True),
        (3, False),
        (4, False),
        (5, True),
        (6, False),
    ]
    # a copy gives the Delta table the columns that it lacks, but cannot keep deleted rows in a column of another type
    publisher.execute("ALTER TABLE t ADD more int DEFAULT 7")
    copy_afresh(bridge.catalog, bridge.subscription.name, ("public", "t"))
    bridge.catch_up()
    assert [(row[0], row[3]) for row in rows()] == [
        (1, False),
        (2, True),
        (3, False),
        (4, False),
        (5, True),
        (6, False),
    ]
    publisher.execute("ALTER TABLE t ALTER note TYPE int USING 7")
    copy_afresh(bridge.catalog, bridge.subscription.name, ("public", "t"))
    with pytest.raises(TargetError, match='column "note" of target "public.t" is string'):
        bridge.catch_up()
    assert len(rows()) == 6


def test_soft_deletes_under_another_key(spark, publisher, pipeline):
    """Deleted rows need not be unique by it: a row that comes back takes the place of all of them."""
    publisher.execute("CREATE TABLE t (id int PRIMARY KEY, code text NOT NULL); CREATE PUBLICATION pub FOR TABLE t")
    bridge = pipeline(mode="soft_deletes")
    bridge.catch_up()
    for number in (1, 2, 3):
        publisher.execute(f"INSERT INTO t VALUES ({number}, 'x')")
        publisher.execute(f"DELETE FROM t WHERE id = {number}")
    bridge.catch_up()
    assert len(bridge.rows("t")) == 3
    publisher.execute("ALTER TABLE t DROP CONSTRAINT t_pkey, ADD PRIMARY KEY (code); INSERT INTO t VALUES (4, 'x')")
    bridge.catch_up()
    assert [(row["id"], row["row_deleted_lsn"]) for row in bridge.rows("t")] == [(4, None)]
    publisher.execute("DELETE FROM t")
    bridge.catch_up()
    assert [(row["id"], row["row_deleted_lsn"] is None) for row in bridge.rows("t")] == [(4, False)]


@pytest.mark.parametrize(
    ("alter", "key"),
    [("ADD uid uuid NOT NULL DEFAULT gen_random_uuid()", "uid"), ("ADD tenant int NOT NULL DEFAULT 0", "id, tenant")],
)
def test_soft_deletes_under_a_key_that_the_delta_table_lacked(publisher, pipeline, alter, key):
    """A copy afresh keeps the deleted rows, which have no such key, and takes no row that is there for one of them."""
    publisher.execute("CREATE TABLE t (id int PRIMARY KEY, v text); CREATE PUBLICATION pub FOR TABLE t")
    publisher.execute("INSERT INTO t SELECT n, 'v' FROM generate_series(1, 5) AS n")
    bridge = pipeline(mode="soft_deletes")
    bridge.catch_up()
    publisher.execute("DELETE FROM t WHERE id > 3")
    bridge.catch_up()
    publisher.execute(f"ALTER TABLE t {alter}, DROP CONSTRAINT t_pkey, ADD PRIMARY KEY ({key})")
    for _ in range(2):
        copy_afresh(bridge.catalog, bridge.subscription.name, ("public", "t"))
        bridge.catch_up()
        rows = sorted((row["id"], row["row_deleted_lsn"] is None) for row in bridge.rows("t"))
        assert rows == [(1, True), (2, True), (3, True), (4, False), (5, False)]
    publisher.execute("DELETE FROM t WHERE id = 1")
    bridge.catch_up()
    rows = sorted((row["id"], row["row_deleted_lsn"] is None) for row in bridge.rows("t"))
    assert rows == [(1, False), (2, True), (3, True), (4, False), (5, False)]


def test_deleted_rows_of_another_shape_are_not_kept_silently(spark, publisher, pipeline):
    publisher.execute("CREATE TABLE t (id int PRIMARY KEY, v text); CREATE PUBLICATION pub FOR TABLE t")
    publisher.execute("INSERT INTO t VALUES (1, 'one'), (2, 'two')")
    bridge = pipeline(mode="soft_deletes")
    bridge.catch_up()
    path = bridge.path("t")
    masked = {"public.t": Table(mask={"v": {"first": 1}})}
    bridge.subscription = bridge.subscription.model_copy(update={"tables": masked})
    for deleted in (False, True):
        with pytest.raises(NeedsResync, match='mask or rename_columns of table "public.t" are others'):
            bridge.catch_up()
        copy_afresh(bridge.catalog, bridge.subscription.name, ("public", "t"))
        if deleted:
            with pytest.raises(TargetError, match='the deleted rows of table "public.t" were made with') as caught:
                bridge.catch_up()
            break
        bridge.catch_up()
        assert {row["v"] for row in bridge.rows("t")} == {"o", "t"}
        publisher.execute("DELETE FROM t WHERE id = 1")
        bridge.catch_up()
        masked["public.t"] = Table(mask={"v": "null"})
    assert len(spark.read.format("delta").load(path).collect()) == 2
    spark.sql(f"DELETE FROM delta.`{path}` WHERE row_deleted_lsn IS NOT NULL").collect()
    type_in(bridge, caught.value.hint.rpartition(": ")[2])
    bridge.catch_up()
    assert [row["v"] for row in bridge.rows("t")] == [None]


def test_a_column_that_comes_with_a_name_of_the_modes(publisher, memory_pipeline):
    publisher.execute("CREATE TABLE t (id int PRIMARY KEY); CREATE PUBLICATION pub FOR TABLE t")
    bridge = memory_pipeline()
    bridge.catch_up()
    publisher.execute("ALTER TABLE t ADD row_deleted_at text; INSERT INTO t VALUES (1, 'a')")
    bridge.catch_up()  # a mirror adds none
    assert bridge.rows("t") == [{"id": 1, "row_deleted_at": "a"}]


@pytest.mark.parametrize(("mode", "column"), [("soft_deletes", "row_deleted_at"), ("history", "valid_to")])
def test_a_column_that_comes_with_a_name_of_its_mode(publisher, pipeline, mode, column):
    publisher.execute("CREATE TABLE t (id int PRIMARY KEY); CREATE PUBLICATION pub FOR TABLE t")
    bridge = pipeline(mode=mode)
    bridge.catch_up()
    publisher.execute(f"ALTER TABLE t ADD {column} text; INSERT INTO t VALUES (1, 'a')")
    with pytest.raises(NeedsResync, match="has the name of one that the mode adds"):
        bridge.catch_up()
