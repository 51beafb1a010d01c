"""The relations announced in a replication session, by OID.

Rows name their table only by its OID. pgoutput sends the Relation before a table's first change, again after each
change of its definition, and again in each streamed transaction, because that transaction may be applied later or never
(`RelationSyncEntry` in `pgoutput.c`). A new session starts with an empty cache, as the server does.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from pgbridge.protocol.errors import UnexpectedMessage

if TYPE_CHECKING:
    from pgbridge.protocol.codec.messages import Relation


class _Announced(NamedTuple):
    number: int  # the number of announcements before it in this session
    relation: Relation


class RelationCache:
    """The definitions that the server believes the subscriber to hold; their `xid` is None.

    An announcement in a streamed transaction counts only within it, until `promote`.
    """

    def __init__(self) -> None:
        self._count = 0
        self._session: dict[int, _Announced] = {}
        self._streams: dict[int, dict[int, _Announced]] = {}

    def update(self, relation: Relation, stream_xid: int | None = None) -> bool:
        """Take an announcement.

        Args:
            relation: The message.
            stream_xid: The streamed transaction that it came in (Stream Start's xid, not a subtransaction's).

        Returns:
            True if the definition is new or differs from the one that `get` returned before.
        """
        differs = self.differs(relation, stream_xid)
        relation = replace(relation, xid=None)
        announced = self._session if stream_xid is None else self._streams.setdefault(stream_xid, {})
        self._count += 1
        announced[relation.relation_id] = _Announced(self._count, relation)
        return differs

    def differs(self, relation: Relation, stream_xid: int | None = None) -> bool:
        """Whether `update` with this announcement would return True."""
        return replace(relation, xid=None) != self.find(relation.relation_id, stream_xid)

    def get(self, relation_id: int, stream_xid: int | None = None) -> Relation:
        """Return the definition of the relation with this OID.

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
        """The definitions in force outside of streamed transactions."""
        return tuple(announced.relation for announced in self._session.values())

    def promote(self, stream_xid: int) -> None:
        """At Stream Commit: the transaction's announcements count for the session now.

        A newer announcement, made outside of the transaction, stays.
        """
        for relation_id, announced in self._streams.pop(stream_xid, {}).items():
            known = self._session.get(relation_id)
            if known is None or known.number < announced.number:
                self._session[relation_id] = announced

    def forget(self, stream_xid: int) -> None:
        """At Stream Abort, also of a subtransaction, and at Stream Prepare: drop the transaction's announcements.

        The server drops them as well (`cleanup_rel_sync_cache`): it announces again before the next changes of an
        aborted subtransaction's parent, and never relies on the announcements of a prepared transaction.
        """
        self._streams.pop(stream_xid, None)

    def find(self, relation_id: int, stream_xid: int | None = None) -> Relation | None:
        """Like `get`; None when the server has not announced it."""
        announced = None
        if stream_xid is not None:
            announced = self._streams.get(stream_xid, {}).get(relation_id)
        announced = announced or self._session.get(relation_id)
        return None if announced is None else announced.relation
