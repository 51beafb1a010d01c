"""A large table is copied by ranges of its key; a copy that is cut short goes on, and the table is as the source."""

from __future__ import annotations

import json
import threading
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest

from pgbridge.bridge.catalog import copied_ranges, refresh
from pgbridge.bridge.runtime import faults
from pgbridge.bridge.runtime.errors import ApplyError
from pgbridge.bridge.service.replay import replay
from pgbridge.bridge.sync import key_order
from pgbridge.bridge.verify import command
from pgbridge.protocol.lsn import Lsn
from tests.fix_bridge import config_of
from tests.oracle.delta import differences
from tests.oracle.native import DatabaseRows

RANGES = 8
ROWS = 4000
SETUP = f"""
CREATE TABLE t (id bigint PRIMARY KEY, note text, large text);
ALTER TABLE t ALTER large SET STORAGE EXTERNAL;
INSERT INTO t SELECT 10 * g, 'copied', repeat(md5(g::text), 100) FROM generate_series(1, {ROWS}) g;
ANALYZE t;
CREATE PUBLICATION pub FOR TABLE t;
"""
FREE = f"SELECT g AS id FROM generate_series(-500, {10 * ROWS}) g WHERE NOT EXISTS (SELECT FROM t WHERE id = g)"
OF_EACH_RANGE = f"""
INSERT INTO t SELECT id, 'new', 'x' FROM ({FREE}) f ORDER BY random() LIMIT 50;
UPDATE t SET note = note || '+' WHERE random() < 0.1;
DELETE FROM t WHERE random() < 0.05;
UPDATE t SET id = new.id, large = 'moved'
  FROM (SELECT id, row_number() OVER (ORDER BY random()) FROM t) old
       JOIN (SELECT id, row_number() OVER (ORDER BY random()) FROM ({FREE}) f) new USING (row_number)
 WHERE t.id = old.id AND row_number <= 100;
"""
"""Rows change in all ranges, and move between any two of them; all of what has moved is sent."""


@pytest.fixture(autouse=True)
def ranged(monkeypatch):
    """Every table is copied by ranges."""
    monkeypatch.setattr(key_order, "LEAST_RANGED_BYTES", 0)
    monkeypatch.setattr(key_order, "_LEAST_RANGE_BYTES", 8192)
    monkeypatch.setattr(key_order, "_RANGES", (RANGES, RANGES))


@pytest.fixture
def life(publisher, pipeline, spark, monkeypatch):
    """A subscription, whose copy can be cut short."""
    bridge = pipeline()
    read: list[str] = []
    stop_after: list[int] = []
    lock = threading.Lock()
    workers = []
    make = bridge.worker

    def worker(**arguments):
        workers.append(make(**arguments))
        return workers[-1]

    def reached(point: str) -> None:
        with lock:
            if point == "range_copied":
                read.append(point)
                if stop_after and len(read) >= stop_after[-1]:
                    workers[-1].stop()

    bridge.worker = worker
    monkeypatch.setattr(faults, "reach", reached)

    @contextmanager
    def cut_short(ranges: int):
        stop_after.append(len(read) + ranges)
        bridge.catch_up()
        yield
        stop_after.clear()

    def equal(table="t") -> bool:
        bridge.catch_up()
        return differences(spark, bridge.path(table), DatabaseRows(publisher.conninfo), table) == []

    return SimpleNamespace(bridge=bridge, read=read, cut_short=cut_short, equal=equal)


def ranges(life):
    return copied_ranges.read(life.bridge.catalog, life.bridge.subscription.name, ("public", "t"))


def copies(life):
    return [commit for commit in life.bridge.commits("t") if commit.get("txn", {}).get("appId", "").endswith("/copy")]


def verified(life):
    """What `pgbridge verify` finds, without a daemon."""

    @contextmanager
    def started(*_):
        yield life.bridge.spark

    document = command.collect(config_of(life.bridge), [life.bridge.subscription], started=started)
    (table,) = document["subscriptions"][0]["tables"]
    return {key: table[key] for key in ("equal", "could_not")}


def test_a_copy_that_is_cut_short_goes_on(publisher, life):
    """Rows change in every range, and move between them, after each attempt; nothing is read twice."""
    publisher.execute(SETUP)
    for number in (1, 2, 1):  # and perhaps another one that is being read
        with life.cut_short(number):
            publisher.execute(OF_EACH_RANGE)
            assert life.bridge.state("t") == "d"
            assert life.bridge.rows("t") == [], "readers see no part of a copy"
            assert sum(each.lsn is not None for each in ranges(life).ranges) == len(life.read)
    assert life.equal()
    assert len(life.read) == RANGES
    assert len(copies(life)) == 1
    assert verified(life) == {"equal": True, "could_not": None}, "although the last ranges are ahead of the stream"
    publisher.execute(OF_EACH_RANGE)
    assert verified(life) == {"equal": True, "could_not": None}
    assert life.equal()
    assert life.bridge.state("t") == "r"
    assert ranges(life) is None


def test_a_batch_that_fails_is_undone_in_such_a_table_too(spark, publisher, life):
    """It ends before the last snapshot, and is behind the first one."""
    publisher.execute(f"{SETUP}; CREATE TABLE u (id int PRIMARY KEY); ALTER PUBLICATION pub ADD TABLE u")
    with life.cut_short(RANGES // 2):
        publisher.execute("DELETE FROM t WHERE id = 20")
        publisher.execute("UPDATE t SET id = 20, note = 'moved', large = 'm' WHERE id = 10")
        publisher.execute("INSERT INTO u VALUES (77)")
        publisher.execute("INSERT INTO u VALUES (78)")
        spark.sql(f"INSERT INTO delta.`{life.bridge.path('u')}` VALUES (77)").collect()
    with pytest.raises(ApplyError, match="insert_exists"):
        life.bridge.catch_up()
    spark.sql(f"DELETE FROM delta.`{life.bridge.path('u')}` WHERE id = 77").collect()
    assert life.equal("u")
    assert life.equal()


@pytest.mark.soak
@pytest.mark.parametrize("change", ["SET TBLPROPERTIES ('a' = 'b')", "ADD CONSTRAINT c CHECK (id < 1000000)"])
def test_a_delta_table_that_is_altered_meanwhile(spark, publisher, life, change, monkeypatch):
    """Files that were written before do not fit it."""
    publisher.execute(SETUP)
    reached, altered = faults.reach, list[str]()

    def alter(point: str) -> None:
        reached(point)
        if point == "range_copied" and not altered:
            altered.append(point)
            spark.sql(f"ALTER TABLE delta.`{life.bridge.path('t')}` {change}").collect()

    monkeypatch.setattr(faults, "reach", alter)
    assert life.equal()
    assert len(life.read) > RANGES


@pytest.mark.soak
def test_what_has_no_ranges(spark, publisher, life):
    """A column that Delta numbers, and rows whose changes are not all published."""
    publisher.execute(SETUP + "CREATE TABLE u AS SELECT * FROM t; ALTER TABLE u ADD PRIMARY KEY (id); ANALYZE u")
    publisher.execute("CREATE PUBLICATION inserts FOR TABLE u WITH (publish = 'insert')")
    path = f"{life.bridge.subscription.warehouse}/public/t"
    columns = "id bigint, note string, large string, number bigint GENERATED BY DEFAULT AS IDENTITY"
    spark.sql(f"CREATE TABLE delta.`{path}` ({columns}) USING delta").collect()
    life.bridge.catch_up()
    numbers = [row["number"] for row in life.bridge.rows("t")]
    assert len(numbers) == len(set(numbers)) == ROWS
    assert life.read == []
    both = {"publications": ("pub", "inserts")}
    life.bridge.subscription = life.bridge.subscription.model_copy(update=both)
    refresh.ask(life.bridge.catalog, life.bridge.subscription.name, [None], copy_data=True)
    assert life.equal("u")
    assert life.read == []
    others = {"publications": ("pub",), "origin": "none"}  # the stream lacks changes that the server has replicated
    life.bridge.subscription = life.bridge.subscription.model_copy(update=others)
    refresh.ask(life.bridge.catalog, life.bridge.subscription.name, [("public", "t")], copy_data=True)
    assert life.equal()
    assert life.read == []


@pytest.mark.soak
def test_an_added_table_goes_on_under_the_slot_of_its_copy(publisher, life):
    """And its ranges go with it when the subscription's stream takes it over."""
    publisher.execute(f"{SETUP}; CREATE TABLE u (id int PRIMARY KEY); ALTER PUBLICATION pub SET TABLE u")
    assert life.equal("u")
    publisher.execute("ALTER PUBLICATION pub ADD TABLE t")
    refresh.ask(life.bridge.catalog, life.bridge.subscription.name, [None], copy_data=True)
    for number in (2, 3):
        with life.cut_short(number):
            publisher.execute(OF_EACH_RANGE + "INSERT INTO u SELECT coalesce(max(id), 0) + 1 FROM u")
    assert life.equal()
    assert life.equal("u")
    assert len(life.read) == RANGES


@pytest.mark.soak  # `tests.bridge.skipped` has the parts
def test_a_transaction_between_the_snapshots_is_skipped_and_replayed(spark, publisher, life):
    """In the ranges that were read before it: the others have it from the copy, and what came after it."""
    publisher.execute(SETUP)
    step = ROWS // RANGES
    with life.cut_short(3):
        publisher.execute(f"UPDATE t SET note = note || ' skipped' WHERE id % {10 * step} = 50")
    bridge, name = life.bridge, life.bridge.subscription.name
    decoded = publisher.query(
        "SELECT data FROM pg_logical_slot_peek_binary_changes(%s, NULL, NULL, 'proto_version', '1', "
        "'publication_names', 'pub')",
        (bridge.subscription.slot_name,),
    )
    (begin,) = (data for (data,) in decoded if data[:1] == b"B")
    lsn = Lsn(int.from_bytes(begin[1:9], "big"))
    publisher.execute(f"UPDATE t SET note = note || ' later' WHERE id % {10 * step} = 60")
    bridge.catalog.set_skip_lsn(name, lsn)
    bridge.catch_up()
    lacking = differences(spark, bridge.path("t"), DatabaseRows(publisher.conninfo), "t")
    assert lacking, "ranges that were read before it do not have it"
    lines = list(replay(config_of(bridge), bridge.subscription, str(lsn), started=lambda *_: nullcontext(spark)))
    assert life.equal(), lines


@pytest.mark.soak  # `tests.bridge.catalog.test_copied_ranges` has the catalog's part
def test_a_stream_that_is_cut_short_before_it_has_passed_the_last_snapshot(publisher, life):
    """The ranges are known to the next one, which begins where the table is."""
    publisher.execute(SETUP)
    with life.cut_short(4):
        publisher.execute(OF_EACH_RANGE)
    life.bridge.subscription = life.bridge.subscription.model_copy(
        update={"batch": life.bridge.subscription.batch.model_copy(update={"max_rows": 1})}
    )
    worker = life.bridge.worker()
    worker.origin_advanced = worker.stop
    worker.thread.start()
    worker.thread.join()
    assert ranges(life) is not None
    publisher.execute(OF_EACH_RANGE)
    assert life.equal()
    assert len(life.read) == RANGES


def first_of(cases):
    """The first of them, and the others among the long tests."""
    first, *others = cases
    return [first, *(pytest.param(case, marks=pytest.mark.soak) for case in others)]


WAYS = {
    "a row with a large value that is not sent": f"UPDATE t SET id = -id WHERE id = {10 * ROWS}",
    "a key that was NULL": (
        "ALTER TABLE t REPLICA IDENTITY FULL; ALTER TABLE t DROP CONSTRAINT t_pkey; "
        "ALTER TABLE t ALTER id DROP NOT NULL; INSERT INTO t VALUES (NULL, 'no', 'key'); "
        "DELETE FROM t WHERE id IS NULL; ALTER TABLE t ADD PRIMARY KEY (id); "
        "ALTER TABLE t REPLICA IDENTITY DEFAULT"
    ),
    "another identity": (
        "UPDATE t SET note = id::text; CREATE UNIQUE INDEX i ON t (note); ALTER TABLE t ALTER note SET NOT NULL; "
        "ALTER TABLE t REPLICA IDENTITY USING INDEX i; UPDATE t SET id = id + 1000000 WHERE id = 70; "
        "ALTER TABLE t REPLICA IDENTITY DEFAULT; DROP INDEX i"
    ),
}


@pytest.mark.parametrize("way", first_of(WAYS))
def test_what_cannot_be_told_by_range_is_copied_afresh(publisher, life, way):
    publisher.execute(SETUP)
    with life.cut_short(RANGES // 2):
        publisher.execute(WAYS[way])
    assert life.equal()
    assert len(life.read) > RANGES
    publisher.execute(OF_EACH_RANGE)
    assert life.equal()


ANEW = {
    "truncated": ("TRUNCATE t; INSERT INTO t VALUES (5, 'only', 'one')", RANGES),
    "a column": ("ALTER TABLE t ADD other int DEFAULT 7", 0),
    "a row filter": ("ALTER PUBLICATION pub SET TABLE t WHERE (id > 0)", RANGES),
    "out of the publication for a while": (
        "ALTER PUBLICATION pub DROP TABLE t; UPDATE t SET note = 'not sent'; ALTER PUBLICATION pub ADD TABLE t",
        RANGES,
    ),
}


@pytest.mark.parametrize("what", first_of(ANEW))
def test_a_table_that_is_another_one_begins_anew(publisher, life, what):
    """By ranges; or at once, where the Delta table gets other columns."""
    change, most = ANEW[what]
    publisher.execute(SETUP)
    with life.cut_short(3):
        publisher.execute(change)
    assert life.equal()
    assert len(life.read) <= 3 + most


def test_files_that_are_gone_are_read_again(publisher, life):
    """As after a VACUUM that keeps nothing."""
    publisher.execute(SETUP)
    with life.cut_short(3):
        done = [each for each in ranges(life).ranges if each.files]
        name = json.loads(done[0].files[0])["add"]["path"]
        Path(life.bridge.path("t"), name).unlink()
    assert life.equal()
    assert len(life.read) == RANGES + 1


def test_undisturbed_copies(publisher, life):
    """One by ranges; the other at once, because its rows do not lie in the key's order."""
    publisher.execute(SETUP + "CREATE TABLE u AS SELECT id FROM t ORDER BY md5(id::text);")
    publisher.execute("ALTER TABLE u ADD PRIMARY KEY (id); ANALYZE u; ALTER PUBLICATION pub ADD TABLE u")
    assert life.equal("u")
    assert life.equal()
    assert len(life.read) == RANGES
    assert len(copies(life)) == 1
    assert ranges(life) is None
    publisher.execute(OF_EACH_RANGE)
    assert life.equal()


@pytest.mark.soak
def test_keys_that_are_uuids(publisher, life):
    publisher.execute(
        "CREATE TABLE t (id uuid PRIMARY KEY, note text); INSERT INTO t "
        "SELECT (lpad(to_hex(g), 8, '0') || '-0000-4000-8000-000000000000')::uuid, 'copied' "
        "FROM generate_series(1, 4000) g; ANALYZE t; CREATE PUBLICATION pub FOR TABLE t"
    )
    change = (
        "UPDATE t SET note = note || '+' WHERE random() < 0.1; DELETE FROM t WHERE random() < 0.05;"
        "UPDATE t SET id = gen_random_uuid() WHERE random() < 0.05; INSERT INTO t SELECT gen_random_uuid(), 'new' "
        "FROM generate_series(1, 50)"
    )
    for number in (2, 3):
        with life.cut_short(number):
            publisher.execute(change)
    assert life.equal()
    assert len(life.read) == RANGES
