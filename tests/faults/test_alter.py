"""Crashes, errors and lost answers between the steps of a batch that changes its targets' columns.

After each of them, before the next life, the publisher's catalog moves on: what was planned once could come to
something else. At the end the tables are the publisher's.
"""

from __future__ import annotations

import itertools
import threading

import pytest
from py4j.protocol import Py4JNetworkError
from pyspark.errors import PySparkException

from pgbridge.bridge.runtime import faults
from pgbridge.bridge.runtime.errors import ApplyError
from tests.oracle.delta import differences

TABLES = ("one", "two")
SCHEMA = "".join(
    f"CREATE TABLE {name} (id int PRIMARY KEY, n int); INSERT INTO {name} VALUES (0, 0);" for name in TABLES
)
CHANGES = """
BEGIN;
INSERT INTO one (id, {column}) VALUES ({i}, 1); INSERT INTO two (id) VALUES ({i});
ALTER TABLE one ALTER {column} TYPE numeric({digits},2);
ALTER TABLE one ADD c{i} int DEFAULT {i};
ALTER TABLE one RENAME {column} TO n{i};
ALTER TABLE two ADD d{i} text DEFAULT 'd{i}';
INSERT INTO one (id, n{i}) VALUES ({i} + 100, {i}); UPDATE one SET n{i} = n{i} + 0.25 WHERE id < 3;
INSERT INTO two (id) VALUES ({i} + 100); UPDATE two SET d{i} = NULL WHERE id = {i};
COMMIT
"""


class Crash(BaseException):
    """The end of the process, but for its threads."""


KINDS = {"crash": Crash(), "error": PySparkException("a fault"), "no answer": Py4JNetworkError("a fault")}
WORST = (("schema_changed", 2, "crash"), ("column_filled", 1, "no answer"))
POINTS = ("batch_begun", "schema_changed", "column_filled", "table_begun", "table_committed", "batch_committed")
ALL = tuple(
    (point, number, kind)
    for point, number, kind in itertools.product(POINTS, (1, 2, 3), KINDS)
    if number == 1 or "batch" not in point
)


def live(bridge, point: str = "", number: int = 0, kind: str = "crash") -> bool:
    """Until caught up or in trouble, with a fault at the point's n-th passing; whether it came to it."""
    lock, passed = threading.Lock(), [0]

    def reached(here: str) -> None:
        with lock:
            passed[0] += here == point
            now = here == point and passed[0] == number
        if now:
            raise KINDS[kind]

    faults.install(reached)
    worker = bridge.worker()
    try:
        worker.thread.start()
        worker.thread.join(120)
        assert not worker.thread.is_alive()
    finally:
        faults.install(lambda _: None)
    assert worker.error is None or isinstance(worker.error, (ApplyError, PySparkException, Py4JNetworkError))
    return passed[0] >= number


@pytest.mark.soak  # `delta.test_alter` takes back what was altered, `test_apply` has faults in batches
@pytest.mark.parametrize("places", [WORST, ALL], ids=["worst", "all"])
def test_a_fault_while_columns_change(spark, publisher, pipeline, monkeypatch, places):
    monkeypatch.setattr("pgbridge.bridge.service.subscriber._GIVE_UP_APPLYING_AFTER", 1)
    monkeypatch.setattr(threading, "excepthook", lambda _: None)  # crashes of threads are meant
    publisher.execute(SCHEMA + "CREATE PUBLICATION pub FOR ALL TABLES")
    bridge = pipeline()
    bridge.catch_up()
    column = "n"
    for i, (point, number, kind) in enumerate(places, 1):
        publisher.execute(CHANGES.format(i=i, column=column, digits=min(14 + i, 38)))
        assert live(bridge, point, number, kind), (point, number)
        publisher.execute(f"ALTER TABLE one RENAME n{i} TO later{i}; ALTER TABLE two ALTER d{i} DROP DEFAULT")
        column = f"later{i}"
    bridge.catch_up()
    for table in TABLES:
        query = "SELECT attname FROM pg_attribute WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped"
        columns = [name for (name,) in publisher.query(query, (table,))]
        if table == "one":
            columns.remove(column)  # no change has told the stream of its last name
            assert f"n{i}" in bridge.rows("one")[0]
        assert differences(spark, bridge.path(table), publisher, table, columns) == []
    publisher.execute("INSERT INTO one (id) VALUES (-1)")
    bridge.catch_up()
    assert differences(spark, bridge.path("one"), publisher, "one") == []
