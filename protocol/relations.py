"""The relations announced in a replication session, by OID.

Rows name their table only by its OID: pgoutput sends the Relation before a table's first change, again after
each change of its definition, and again in each streamed transaction, because that one may be applied later
or never (`RelationSyncEntry` in `pgoutput.c`). A new session starts with an empty cache, as the server does.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from protocol.errors import UnexpectedMessage

if TYPE_CHECKING:
    from protocol.messages import Relation


class _Announced(NamedTuple):
    number: int  # of announcements before it in this session
    relation: Relation


class RelationCache:
    """Definitions as the server believes the subscriber to hold them; their `xid` is None.

    What a streamed transaction announces counts only within it, until `promote`.
    """

    def __init__(self) -> None:
        self._count = 0
        self._session: dict[int, _Announced] = {}
        self._streams: dict[int, dict[int, _Announced]] = {}

    def update(self, relation: Relation, stream_xid: int | None = None) -> bool:
        """Take an announcement.

        Args:
            relation: The message.
            stream_xid: The streamed transaction it came in (Stream Start's xid, not a subtransaction's).

        Returns:
            True if its definition differs from what `get` gave before, or there was none.
        """
        differs = self.differs(relation, stream_xid)
        relation = replace(relation, xid=None)
        announced = self._session if stream_xid is None else self._streams.setdefault(stream_xid, {})
        self._count += 1
        announced[relation.relation_id] = _Announced(self._count, relation)
        return differs

    def differs(self, relation: Relation, stream_xid: int | None = None) -> bool:
        """Whether an announcement would change what `get` gives, or begin it."""
        return replace(relation, xid=None) != self.find(relation.relation_id, stream_xid)

    def get(self, relation_id: int, stream_xid: int | None = None) -> Relation:
        """Return the definition that a row's OID stands for.

        Raises:
            UnexpectedMessage: The server has not announced it.
        """
        relation = self.find(relation_id, stream_xid)
        if relation is None:
            state = f"no RELATION message has announced OID {relation_id}"
            if stream_xid is not None:
                state += f" in streamed transaction {stream_xid} or before"
            raise UnexpectedMessage("row", state, "the server sends one before a table's first change")
        return relation

    def session(self) -> tuple[Relation, ...]:
        """What `get` gives outside of streamed transactions."""
        return tuple(announced.relation for announced in self._session.values())

    def promote(self, stream_xid: int) -> None:
        """At Stream Commit: what the transaction announced now counts for the session.

        An announcement made outside the stream since then is newer and stays.
        """
        for relation_id, announced in self._streams.pop(stream_xid, {}).items():
            known = self._session.get(relation_id)
            if known is None or known.number < announced.number:
                self._session[relation_id] = announced

    def forget(self, stream_xid: int) -> None:
        """At Stream Abort, also of a subtransaction, and Stream Prepare: drop what the transaction announced.

        The server no longer counts on it either (`cleanup_rel_sync_cache`): it announces again before what
        follows of an aborted subtransaction's parent, and never relies on what a prepared transaction announced.
        """
        self._streams.pop(stream_xid, None)

    def find(self, relation_id: int, stream_xid: int | None = None) -> Relation | None:
        """Like `get`; None when the server has not announced it."""
        announced = None
        if stream_xid is not None:
            announced = self._streams.get(stream_xid, {}).get(relation_id)
        announced = announced or self._session.get(relation_id)
        return None if announced is None else announced.relation
