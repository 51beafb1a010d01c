"""A warehouse on S3, by a real server: copies, batches, undo, maintenance, and a network that is slow and cuts."""

from __future__ import annotations

import signal

import pytest

from pgbridge.bridge.apply.maintenance import DeltaTables
from pgbridge.bridge.lake.log.local_tables import LocalTables
from pgbridge.bridge.runtime.errors import ApplyError
from tests.bridge.subscribed import end, wait_until
from tests.fix_s3 import ACCESS_KEY, SECRET_KEY
from tests.oracle.delta import differences
from tests.oracle.native import DatabaseRows

SETUP = """
CREATE TABLE docs (id int PRIMARY KEY, body text, n int, day date);
CREATE TABLE facts (at int, what text);
INSERT INTO docs SELECT i, 'body ' || i, i FROM generate_series(1, 50) i;
CREATE PUBLICATION pub FOR TABLE docs, facts;
"""
CHANGES = (
    "INSERT INTO facts SELECT i, 'fact' FROM generate_series(1, 20) i",
    "UPDATE docs SET n = n + 1 WHERE id % 2 = 0; DELETE FROM docs WHERE id > 40; INSERT INTO docs VALUES (60, 'x', 1)",
    "BEGIN; TRUNCATE facts; INSERT INTO facts VALUES (1, 'after'); COMMIT",
    "ALTER TABLE docs ADD COLUMN more text DEFAULT 'm'; INSERT INTO docs VALUES (61, 'y', 2, NULL, 'z')",
)
REFUSED = "BEGIN; INSERT INTO facts VALUES (7, 'no'); INSERT INTO docs VALUES (90, 'b', 1, 'infinity'); COMMIT"
FEW_TRIES = {"retry.limit": "1", "attempts.maximum": "1"}
TABLES = ("docs", "facts")


def assert_equal(spark, bridge, publisher):
    for table in TABLES:
        assert differences(spark, bridge.path(table), DatabaseRows(publisher.conninfo), f"public.{table}") == []


@pytest.fixture
def on_s3(spark, publisher, pipeline, bucket):
    """A subscription whose tables are copied to S3."""
    bucket.put_into(spark, **FEW_TRIES)
    publisher.execute(SETUP)
    bridge = pipeline(warehouse=bucket.warehouse)
    bridge.catch_up()
    return bridge


def test_batches_and_maintenance_on_a_bad_network(spark, publisher, on_s3, bucket):
    """S3A sends a request again; nothing is lost, nothing is there twice."""
    assert_equal(spark, on_s3, publisher)
    for changes, fault in zip(CHANGES, ("cut before", "cut after", "slow down", None), strict=True):
        left = bucket.proxy.once(fault, "PUT", "_delta_log/0000") if fault else lambda: 0
        bucket.proxy.delay_s = 0.0 if fault else 0.05
        publisher.execute(changes)
        on_s3.catch_up()
        assert left() == 0
        bucket.proxy.heal()
        assert_equal(spark, on_s3, publisher)
    tables = DeltaTables(spark, LocalTables())
    tables.optimize(on_s3.path("docs"))
    tables.vacuum(on_s3.path("docs"), 168)
    assert_equal(spark, on_s3, publisher)
    commits = [one for one in bucket.proxy.requests if one.method == "PUT" and one.path.endswith(".json")]
    assert commits
    # docs/object-stores.md says so: where Delta asks S3 to refuse a second writer, its rule of one writer may go
    assert not any("if-none-match" in one.headers for one in commits)
    # a new file's name is in no folder yet, and nobody asks
    assert not any(one.status == 404 and one.path.endswith(".parquet") for one in bucket.proxy.requests)


@pytest.mark.soak  # it waits for the client's patience to end
def test_a_store_that_is_away_for_longer_fails_the_batch_and_no_row(spark, publisher, on_s3, bucket):
    """Commits arrive and their answers are lost, until S3A gives up; so are those of the undo."""
    bucket.proxy.fault = lambda method, path: (
        "cut after" if method == "PUT" and "public/docs/_delta_log/0000" in path else None
    )
    publisher.execute(CHANGES[1])
    with pytest.raises(ApplyError, match="docs"):
        on_s3.catch_up()
    bucket.proxy.heal()
    publisher.execute(CHANGES[0])
    on_s3.catch_up()
    assert_equal(spark, on_s3, publisher)


@pytest.mark.soak  # RESTORE on a store is in the soak of faults, too
def test_a_transaction_that_cannot_be_applied_is_undone_and_skipped(spark, publisher, on_s3):
    publisher.execute(REFUSED)
    with pytest.raises(ApplyError, match="infinity") as raised:
        on_s3.catch_up()
    assert on_s3.rows("facts") == []
    on_s3.catalog.set_skip_lsn(on_s3.subscription.name, raised.value.context.finish_lsn)
    publisher.execute(CHANGES[0])
    on_s3.catch_up()
    assert len(on_s3.rows("facts")) == 20
    assert len(on_s3.rows("docs")) == 50


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"secret.key": "wrong"}, "S3 refuses"),
        ({"endpoint": "http://no.such.host.invalid"}, "S3 does not answer"),
        ({"missing": ""}, "create the bucket"),
    ],
    ids=["keys", "endpoint", "bucket"],
)
def test_a_store_that_refuses(spark, publisher, pipeline, bucket, settings, words):
    if "missing" in settings:
        bucket.rename(f"{bucket.name}missing")
    bucket.put_into(spark, **FEW_TRIES, **settings)
    publisher.execute("CREATE TABLE docs (id int); CREATE PUBLICATION pub FOR TABLE docs")
    bridge = pipeline(warehouse=bucket.warehouse)
    worker = bridge.worker(until_caught_up=False)
    worker.thread.start()
    wait_until(lambda: bridge.catalog.last_error(bridge.subscription.name) is not None)
    end(worker)
    error = bridge.catalog.last_error(bridge.subscription.name)
    assert error is not None
    assert words in str(error)


@pytest.mark.soak  # five daemons with a JVM each; `test_a_store_that_is_away…` has lost commits in every run
def test_the_daemon_is_killed(spark, publisher, daemon, bucket, monkeypatch, tmp_path):
    """It takes its keys from a profile of ~/.aws, and each waits for the JVM of the one that was killed."""
    profile = tmp_path / "credentials"
    profile.write_text(f"[default]\naws_access_key_id = {ACCESS_KEY}\naws_secret_access_key = {SECRET_KEY}\n")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(profile))
    bucket.put_into(spark)
    publisher.execute(SETUP)
    settings = {f"spark.hadoop.{key}": value for key, value in bucket.settings().items()}
    bridge = daemon(warehouse=bucket.warehouse, spark_conf=settings)
    assert bridge.run_until_caught_up(fault="table_copied") == -signal.SIGKILL, bridge.log_tail()
    for changes, point in zip(CHANGES, ("batch_begun", "table_begun", "table_committed", ""), strict=True):
        publisher.execute(changes)
        assert bridge.run_until_caught_up(fault=point) == (-signal.SIGKILL if point else 0), bridge.log_tail()
    for table in TABLES:
        assert (
            differences(
                spark, f"{bucket.warehouse}/public/{table}", DatabaseRows(publisher.conninfo), f"public.{table}"
            )
            == []
        )
