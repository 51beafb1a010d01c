"""Masks the values of a stream's messages before anything else sees them, or writes them to a file.

A row's columns are those of the Relation message that the server has sent before it: within a streamed transaction the
transaction's own, if it has one. Messages are not decoded otherwise, and those of other tables are not touched.

A column is masked by its name. If a table does not have a masked column any more, but one that it did not have before,
that may be the same column under another name; then nothing is let through.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

import numpy as np

from pgbridge.bridge.publication.shape import Shape, identifies
from pgbridge.bridge.runtime import remedies
from pgbridge.bridge.runtime.errors import TargetError
from pgbridge.protocol.bulk.columns import RowMessages
from pgbridge.protocol.bulk.message_array import MessageArray
from pgbridge.protocol.codec import messages as m, pgoutput, walsender
from pgbridge.protocol.codec.walsender import HEADER_BYTES
from pgbridge.protocol.errors import MalformedMessage
from pgbridge.protocol.stream.transactions import ROW_TAGS

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from pgbridge.bridge.publication.shape import Mask, Masks
    from pgbridge.protocol.values.value_array import Ints

    Name = tuple[str, str]

_TEXT, _BINARY = b"tb"
_NULL: Final = b"n"
_VALUE: Final = struct.Struct(">cI")
_ROWS: Final = np.isin(np.arange(256), list(ROW_TAGS))
_LOOKED_AT: Final = np.isin(np.arange(256), list(b"RSEcAp"))
"""Relation, Stream Start, Stream Stop, Stream Commit, Stream Abort, Stream Prepare."""


class StreamMasks:
    """The masks of one stream.

    Args:
        masks: By the published table's (namespace, name).
        names: The names under which tables of the subscription are configured, by relid: one that was renamed is masked
            under its new name, too.
        known: The names of the tables' columns as of where the stream begins, by relid.
    """

    def __init__(
        self,
        masks: Mapping[Name, Masks],
        names: Mapping[int, Name],
        known: Mapping[int, Collection[str]],
    ) -> None:
        self._masks = masks
        self._names = names
        self._known = known
        # by xid of the streamed transaction that has sent it, 0 for any other; and by relid
        self._relations: dict[tuple[int, int], tuple[m.Relation, dict[int, Mask]]] = {}
        self._xid: int | None = None

    def masked(self, messages: MessageArray) -> MessageArray:
        """The messages, each in its XLogData, with masked values; call it once for each message, in order.

        Raises:
            TargetError: A table has changed so that it is not known which of its columns is masked.
            MalformedMessage: A message does not have its tag's form.
            UnsupportedMessage: The same.
        """
        if not len(messages):
            return messages
        # a message that is too short is a keepalive, or malformed: whoever assembles them says so
        tags = np.where(messages.lengths > HEADER_BYTES, messages.data[messages.starts + HEADER_BYTES], 0)
        places: list[tuple[Ints, Ints, list[bytes]]] = []
        at = 0
        for index in np.flatnonzero(_LOOKED_AT[tags]).tolist():
            places += self._places(messages, at + np.flatnonzero(_ROWS[tags[at:index]]))
            self._look_at(messages[index])
            at = index + 1
        places += self._places(messages, at + np.flatnonzero(_ROWS[tags[at:]]))
        if not places:
            return messages
        begins, ends = (np.concatenate([place[side] for place in places]) for side in (0, 1))
        contents = [content for _, _, of_place in places for content in of_place]
        order = np.argsort(begins)
        return messages.replaced(begins[order], ends[order], [contents[i] for i in order.tolist()])

    def _look_at(self, message: bytes) -> None:
        payload = walsender.decode_xlog_data(message).payload
        match pgoutput.decode(payload, in_stream=self._xid is not None):
            case m.StreamStart(xid=xid):
                self._xid = xid
            case m.StreamStop():
                self._xid = None
            case m.Relation() as relation:
                masks = self._masks_of(relation)
                self._relations[self._xid or 0, relation.relation_id] = relation, masks
            case m.StreamCommit(xid=xid) | m.StreamPrepare(xid=xid):
                # what it has announced counts for the transactions after it
                for streamed, relid in [key for key in self._relations if key[0] == xid]:
                    self._relations[0, relid] = self._relations.pop((streamed, relid))
            case m.StreamAbort(xid=xid, subxid=subxid) if xid == subxid:
                self._relations = {key: value for key, value in self._relations.items() if key[0] != xid}

    def _masks_of(self, relation: m.Relation) -> dict[int, Mask]:
        """The masks of a relation's columns, by their positions."""
        name = relation.namespace or "pg_catalog", relation.name
        masks = self._masks.get(self._names.get(relation.relation_id, name)) or self._masks.get(name)
        if not masks:
            return {}
        shape, columns = Shape(masks), [column.name for column in relation.columns]
        known = self._known_columns(relation.relation_id)
        missing = [
            column
            for column in masks
            if shape.mask(column) is not None and column not in columns and (known is None or column in known)
        ]
        new = [column for column in columns if column not in masks and (known is None or column not in known)]
        if missing and new:
            raise TargetError(
                f'table "{".".join(name)}" does not have the masked column "{missing[0]}", but "{new[0]}", which may '
                "be the same under another name",
                hint=f'add "{new[0]}" to mask in tables."{".".join(name)}", with "none" if it is not to be masked, and '
                f"run: {remedies.reload()}",
            )
        by_position = {}
        for i, column in enumerate(relation.columns):
            if (mask := shape.mask(column.name)) is not None:
                if column.is_key and relation.replica_identity != "f":
                    raise identifies(".".join(name), column.name)
                by_position[i] = mask
        return by_position

    def _known_columns(self, relid: int) -> Collection[str] | None:
        """The names of the columns that a table had before; None if they are not known."""
        before = self._relations.get((self._xid or 0, relid)) or self._relations.get((0, relid))
        return self._known.get(relid) if before is None else [column.name for column in before[0].columns]

    def _places(self, messages: MessageArray, rows: Ints) -> list[tuple[Ints, Ints, list[bytes]]]:
        """Where values of row messages are masked, and what stands there then."""
        if not len(rows) or not any(masks for _, masks in self._relations.values()):
            return []
        of_rows = RowMessages(
            MessageArray(messages.data, messages.starts[rows], messages.ends[rows]),
            skip_bytes=HEADER_BYTES,
            in_stream=self._xid is not None,
        )
        places = []
        for (xid, relid), (relation, masks) in self._relations.items():
            of_relation = (
                np.flatnonzero(of_rows.relation_ids == relid) if masks and self._is_of(xid, relid) else rows[:0]
            )
            if not len(of_relation):
                continue
            for i, kinds, begins, ends in of_rows.places(relation, masks.keys(), of_relation):
                if (kinds == _BINARY).any():
                    reason = f'column "{relation.columns[i].name}" is masked, but its values come in binary form'
                    raise MalformedMessage("row", 0, reason)
                which = kinds == _TEXT  # the others are NULL, or unchanged and not sent
                data, mask, of_value = messages.data.data, masks[i], zip(begins[which], ends[which], strict=True)
                contents = [_value(mask.of(bytes(data[begin + _VALUE.size : end]))) for begin, end in of_value]
                places.append((begins[which], ends[which], contents))
        return places

    def _is_of(self, xid: int, relid: int) -> bool:
        """Whether a definition counts for rows that come now."""
        return xid == (self._xid or 0) or (xid == 0 and (self._xid, relid) not in self._relations)


def _value(text: bytes | None) -> bytes:
    """A value of a tuple, with its kind."""
    return _NULL if text is None else _VALUE.pack(b"t", len(text)) + text
