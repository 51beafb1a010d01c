"""The cache holds what the server believes it to hold, through streams that commit, abort and overlap."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pgbridge.protocol.codec.messages import (
    Column,
    Delete,
    Insert,
    Relation,
    StreamAbort,
    StreamCommit,
    StreamPrepare,
    StreamStart,
    StreamStop,
    Truncate,
    Update,
)
from pgbridge.protocol.codec.pgoutput import decode
from pgbridge.protocol.errors import UnexpectedMessage
from pgbridge.protocol.stream.relations import RelationCache
from tests.vectors import load

NARROW = Relation(16385, "public", "t", "d", (Column("id", 23, -1, is_key=True),))
WIDE = replace(NARROW, columns=(*NARROW.columns, Column("v", 25, -1, is_key=False)))
OTHER = replace(NARROW, relation_id=16386, name="other")


def test_update_tells_whether_the_definition_is_new():
    cache = RelationCache()
    assert cache.update(NARROW)
    assert not cache.update(NARROW)
    assert cache.update(WIDE)
    assert cache.get(16385) == WIDE
    assert cache.update(replace(WIDE, replica_identity="f"))
    assert cache.update(OTHER)
    assert cache.get(16386) == OTHER


def test_differs_tells_without_taking():
    cache = RelationCache()
    assert cache.differs(NARROW)
    cache.update(NARROW)
    assert not cache.differs(NARROW)
    assert not cache.differs(replace(NARROW, xid=5))
    assert cache.differs(WIDE)
    assert cache.get(16385) == NARROW
    cache.update(WIDE, stream_xid=7)
    assert not cache.differs(WIDE, stream_xid=7)
    assert cache.differs(WIDE)


def test_the_xid_does_not_count():
    cache = RelationCache()
    cache.update(NARROW)
    assert not cache.update(replace(NARROW, xid=700), stream_xid=699)
    assert cache.get(16385, stream_xid=699) == NARROW


def test_an_unknown_oid():
    cache = RelationCache()
    cache.update(NARROW, stream_xid=7)
    with pytest.raises(UnexpectedMessage, match="no RELATION message has announced OID 16385: the server"):
        cache.get(16385)
    with pytest.raises(UnexpectedMessage, match="announced OID 16386 in streamed transaction 7 or before"):
        cache.get(16386, stream_xid=7)


def test_a_stream_is_seen_by_itself_alone_until_it_commits():
    cache = RelationCache()
    cache.update(NARROW)
    assert cache.update(WIDE, stream_xid=7)
    assert cache.get(16385) == NARROW
    assert cache.get(16385, stream_xid=7) == WIDE
    assert cache.get(16385, stream_xid=8) == NARROW
    cache.promote(7)
    assert cache.get(16385) == WIDE
    assert cache.get(16385, stream_xid=8) == WIDE


def test_an_aborted_stream_leaves_nothing():
    cache = RelationCache()
    cache.update(NARROW)
    cache.update(WIDE, stream_xid=7)
    cache.update(OTHER, stream_xid=7)
    cache.forget(7)
    assert cache.get(16385, stream_xid=7) == NARROW
    cache.promote(7)
    assert cache.get(16385) == NARROW
    with pytest.raises(UnexpectedMessage):
        cache.get(16386)


def test_after_a_subtransaction_aborts_what_is_announced_again_counts():
    cache = RelationCache()
    cache.update(NARROW, stream_xid=7)
    cache.update(replace(WIDE, xid=8), stream_xid=7)
    cache.forget(7)
    assert cache.update(replace(NARROW, xid=9), stream_xid=7)
    cache.promote(7)
    assert cache.get(16385) == NARROW


def test_the_latest_announcement_wins_over_a_later_commit():
    """The server sends again, outside the stream, only what has changed since it sent it within."""
    cache = RelationCache()
    cache.update(NARROW, stream_xid=7)
    cache.update(WIDE)
    assert cache.get(16385, stream_xid=7) == NARROW
    cache.promote(7)
    assert cache.get(16385) == WIDE


def test_streams_end_by_themselves():
    """Nothing is kept for transactions that are over, or that announced nothing."""
    cache = RelationCache()
    cache.promote(7)
    cache.forget(7)
    for xid in (8, 9):
        cache.update(NARROW, stream_xid=xid)
    cache.promote(8)
    cache.forget(9)
    assert cache._streams == {}


@pytest.mark.parametrize("path", load.FILES, ids=load.name_of)
def test_recorded_rows_fit_the_relations_in_the_cache(path):
    """In every recorded session each row has as many values as the relation the cache has for it.

    In stream_v2 an aborted subtransaction adds a column, in rows_* one is added and one dropped.
    """
    cache = RelationCache()
    stream_xid = None
    for vector in load.vectors(path):
        match decode(vector.data, in_stream=vector.in_stream):
            case Relation() as relation:
                cache.update(relation, stream_xid)
            case StreamStart(xid):
                stream_xid = xid
            case StreamStop():
                stream_xid = None
            case StreamCommit(xid):
                cache.promote(xid)
            case StreamAbort(xid) | StreamPrepare(xid=xid):
                cache.forget(xid)
            case Insert() | Update() | Delete() as row:
                relation = cache.get(row.relation_id, stream_xid)
                parts = (getattr(row, name, None) for name in ("new_tuple", "key_tuple", "old_tuple"))
                assert {len(part) for part in parts if part is not None} == {len(relation.columns)}
            case Truncate(relation_ids):
                assert [cache.get(relation_id, stream_xid) for relation_id in relation_ids]
            case _:
                pass
