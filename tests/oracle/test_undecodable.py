"""A transaction that the publisher cannot send: the command that the error names is typed, and all others arrive."""

from __future__ import annotations

import shlex

import pytest

from bridge import cli, remedies
from bridge.errors import StreamError


def test_the_server_cannot_send_a_transaction(spark, publisher, pipeline):
    """The printed skip passes it and no other: those before and behind it are applied, and other tables' rows."""
    publisher.needs(15)
    publisher.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v int); CREATE TABLE sound (id int PRIMARY KEY);"
        "CREATE PUBLICATION pub FOR TABLE t WHERE (1 / id > -5), sound"
    )
    bridge = pipeline()
    bridge.catch_up()
    publisher.execute("INSERT INTO sound VALUES (1)")
    publisher.execute("BEGIN; INSERT INTO t VALUES (0, 1); INSERT INTO sound VALUES (2); COMMIT")
    publisher.execute("INSERT INTO t VALUES (5, 1)")
    publisher.execute("INSERT INTO sound VALUES (3)")
    with pytest.raises(StreamError, match="division by zero") as raised:
        bridge.catch_up()
    name = bridge.subscription.name
    error = bridge.catalog.last_error(name)
    command = remedies.skip(name, error.finish_lsn)
    assert raised.value.hint == f"the change is in the WAL; to skip its transaction, run: {command}"
    assert [row["id"] for row in bridge.rows("sound")] == [1]
    config_file = bridge.folder / "pgbridge.toml"
    config_file.write_text(
        f'state_dir = "state"\n[subscription."{name}"]\nconnection = "{publisher.conninfo}"\n'
        'publications = ["pub"]\nwarehouse = "lake"\n'
    )
    cli.app([*shlex.split(command)[1:], "--config", str(config_file)], standalone_mode=False)
    bridge.catch_up()
    assert bridge.catalog.skip_lsn(name) is None
    assert sorted(row["id"] for row in bridge.rows("sound")) == [1, 3]
    assert [row["id"] for row in bridge.rows("t")] == [5]
    publisher.execute("UPDATE t SET v = 2 WHERE id = 5")
    bridge.catch_up()
    assert [row["v"] for row in bridge.rows("t")] == [2]
