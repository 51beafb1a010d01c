"""A server that pg_upgrade has made of the one in the checkpoint: the query goes on, by the option `upgradedFrom`."""

from __future__ import annotations

import pytest

from pgbridge.bridge.runtime.errors import AnotherServer, ConfigError, PublisherError, SlotAdvanced
from pgbridge.protocol.lsn import Lsn
from tests.bridge.source.without_spark import Source, eventually, planned, rows_of
from tests.faults.standby import ForkedServer


@pytest.fixture
def source(starts_server):
    with ForkedServer() as server:
        made = Source(server)
        yield made
        made.close()


def insert(source, *ids):
    for number in ids:
        source.publisher.execute(f"INSERT INTO orders VALUES ({number}, 'a', 1)")


def ids(reader, start, end):
    return [row["public.orders"]["new"]["id"] for row in rows_of(reader, start, end)]


def committed(source, *, confirmed=True):
    """A batch that Spark has committed, and a server that is upgraded then; returns the batch's start and end."""
    reader = source.reader()
    start = reader.initialOffset()
    insert(source, 1, 2)
    end = planned(reader, start)
    assert ids(reader, start, end) == [1, 2]
    if confirmed:
        reader.commit(end)
        assert eventually(lambda: source.confirmed() >= Lsn.parse(end["lsn"]))
    reader.stop()
    assert eventually(source.is_free)
    return start, end


def test_the_query_goes_on(source):
    start, end = committed(source)
    former = end["system_identifier"]
    source.publisher.upgrade()
    insert(source, 3)
    with pytest.raises(AnotherServer) as caught:
        planned(source.reader(), end)
    assert f'set the option upgradedFrom = "{former}"' in caught.value.hint
    reader = source.reader(upgradedFrom=former)
    after = planned(reader, end)
    assert after["system_identifier"] != former
    assert ids(reader, end, after) == [3]
    reader.stop()
    # Spark asks for a batch again that it has planned, and not committed
    again = source.reader(upgradedFrom=former)
    assert ids(again, end, after) == [3]
    again.commit(after)
    insert(source, 4)
    last = planned(again, after)
    assert ids(again, after, last) == [4]
    again.stop()
    without = source.reader()  # the checkpoint's last offset is of the new server
    assert planned(without, after)["system_identifier"] == after["system_identifier"]
    assert ids(without, after, last) == [4]
    without.stop()
    # a planned batch of the former server alone: pg_upgrade has refused a slot with changes of it
    assert ids(source.reader(upgradedFrom=former), start, end) == []


def test_before_the_upgrade_the_option_changes_nothing(source):
    start, end = committed(source)
    reader = source.reader(upgradedFrom=end["system_identifier"])
    assert planned(reader, end) == end
    source.publisher.query(f"SELECT pg_replication_slot_advance('{source.slot}', pg_current_wal_flush_lsn())")
    insert(source, 3)
    reader.stop()
    assert eventually(source.is_free)
    source.drop_slot()
    source.create_slot()
    with pytest.raises(SlotAdvanced):
        planned(source.reader(upgradedFrom=end["system_identifier"]), start)


def test_a_server_that_pg_upgrade_did_not_make(source):
    """Its slot is where a new server's is."""
    _, end = committed(source)
    former = end["system_identifier"]
    source.publisher.replace()
    other = Source(source.publisher)
    with pytest.raises(PublisherError, match="pg_upgrade did not make this server") as caught:
        planned(other.reader(upgradedFrom=former), {**end, "lsn": "7/0"})
    assert "upgradedFrom" in caught.value.hint
    with pytest.raises(AnotherServer):
        planned(other.reader(upgradedFrom="1"), end)


def test_an_option_that_is_no_identifier(source):
    with pytest.raises(ConfigError, match="upgradedFrom"):
        source.reader(upgradedFrom="db1")
