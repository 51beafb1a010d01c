"""Masks the values of a stream's messages before anything else sees them, or writes them to a file.

A row's columns are those of the Relation message that the server has sent before it: within a streamed transaction the
transaction's own, if it has one. Messages are not decoded otherwise, and those of other tables are not touched.

A column is masked by its name. If a table does not have a masked column any more, but one that it did not have before,
or has columns in another order, one may be a masked column under another name; then nothing is let through. What names
do not tell, as a rename onto the name of a column that was dropped, `evolution.plan` sees by the attribute numbers.
"""

from __future__ import annotations

import struct
from dataclasses import replace
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
from pgbridge.protocol.stream.relations import RelationCache
from pgbridge.protocol.stream.transactions import ROW_TAGS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pgbridge.bridge.catalog.catalog_rows import ColumnRow, RelRow
    from pgbridge.bridge.config.config import Subscription
    from pgbridge.bridge.publication.published_table import PublishedTable
    from pgbridge.bridge.publication.shape import Mask, Masks
    from pgbridge.protocol.values.value_array import Ints

_TEXT, _BINARY = b"tb"
_NULL: Final = b"n"
_VALUE: Final = struct.Struct(">cI")
_ROWS: Final = np.isin(np.arange(256), list(ROW_TAGS))
_LOOKED_AT: Final = np.isin(np.arange(256), list(b"RSEcAp"))
"""Relation, Stream Start, Stream Stop, Stream Commit, Stream Abort, Stream Prepare."""


class StreamMasks:
    """The masks of one stream.

    Args:
        masks: By the published table's `namespace.name`.
        names: The names under which tables of the subscription are configured, by relid: one that was renamed is masked
            under its new name, too.
        known: The names of the tables' columns as of where the stream begins, by relid, in the order of attnum.
    """

    def __init__(
        self, masks: Mapping[str, Masks], names: Mapping[int, str], known: Mapping[int, Sequence[str]]
    ) -> None:
        self._masks = masks
        self._names = names
        self._known = known
        self._relations = RelationCache()
        self._of_relation: dict[m.Relation, dict[int, Mask]] = {}
        self._xid: int | None = None

    @property
    def descriptions(self) -> dict[str, str]:
        """What each table's masks do (`Shape.description`), by the published table's `namespace.name`."""
        return {name: Shape(masks).description for name, masks in self._masks.items()}

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
                relation = replace(relation, xid=None)
                if relation not in self._of_relation:
                    self._of_relation[relation] = self._masks_of(relation)
                self._relations.update(relation, self._xid)
            case m.StreamCommit(xid=xid):
                self._relations.promote(xid)
            case m.StreamAbort(xid=xid) | m.StreamPrepare(xid=xid):
                self._relations.forget(xid)

    def _masks_of(self, relation: m.Relation) -> dict[int, Mask]:
        """The masks of a relation's columns, by their positions."""
        name = f"{relation.namespace or 'pg_catalog'}.{relation.name}"
        masks = self._masks.get(self._names.get(relation.relation_id, name)) or self._masks.get(name)
        if not masks:
            return {}
        shape = Shape(masks)
        self._check_names(relation, name, shape)
        by_position = {}
        for i, column in enumerate(relation.columns):
            if (mask := shape.mask(column.name)) is not None:
                if column.is_key and relation.replica_identity != "f":
                    raise identifies(name, column.name)
                by_position[i] = mask
        return by_position

    def _check_names(self, relation: m.Relation, name: str, shape: Shape) -> None:
        """Raise a TargetError if a masked column may have another name now."""
        columns = [column.name for column in relation.columns]
        before = self._relations.find(relation.relation_id, self._xid)
        known = self._known.get(relation.relation_id) if before is None else [each.name for each in before.columns]
        if known is None:
            return  # nothing is known of it, so nothing has changed
        missing = [column for column in known if shape.mask(column) is not None and column not in columns]
        new = [column for column in columns if column not in shape.masks and column not in known]
        # columns come in the order of attnum, which a rename does not change
        stays = [column for column in columns if column in known]
        in_order = [column for column in known if column in columns]
        moved = [now for was, now in zip(in_order, stays, strict=True) if was != now and now not in shape.masks]
        if missing and new:
            seen = f'does not have the masked column "{missing[0]}", but "{new[0]}"'
        elif moved:
            seen, new = f'has its columns in another order, "{moved[0]}" among them', moved
        else:
            return
        listed = ", ".join(f'"{column}"' for column in new)
        raise TargetError(
            f'table "{name}" {seen}, which may be a masked one under another name',
            hint=f'add {listed} to mask in tables."{name}", with "none" if it is not to be masked, and run: '
            f"{remedies.reload()}",
        )

    def _places(self, messages: MessageArray, rows: Ints) -> list[tuple[Ints, Ints, list[bytes]]]:
        """Where values of row messages are masked, and what stands there then."""
        if not len(rows) or not any(self._of_relation.values()):
            return []
        of_rows = RowMessages(
            MessageArray(messages.data, messages.starts[rows], messages.ends[rows]),
            skip_bytes=HEADER_BYTES,
            in_stream=self._xid is not None,
        )
        places = []
        for relid in np.unique(of_rows.relation_ids).tolist():
            relation = self._relations.find(relid, self._xid)
            if relation is None or not (masks := self._of_relation[relation]):
                continue
            of_relation = np.flatnonzero(of_rows.relation_ids == relid)
            for i, kinds, begins, ends in of_rows.places(relation, masks.keys(), of_relation):
                if (kinds == _BINARY).any():
                    reason = f'column "{relation.columns[i].name}" is masked, but its values come in binary form'
                    raise MalformedMessage("row", 0, reason)
                which = kinds == _TEXT  # the others are NULL, or unchanged and not sent
                data, mask, of_value = messages.data.data, masks[i], zip(begins[which], ends[which], strict=True)
                contents = [_value(mask.of(bytes(data[begin + _VALUE.size : end]))) for begin, end in of_value]
                places.append((begins[which], ends[which], contents))
        return places


def _value(text: bytes | None) -> bytes:
    """A value of a tuple, with its kind."""
    return _NULL if text is None else _VALUE.pack(b"t", len(text)) + text


def stream_masks(
    subscription: Subscription,
    rels: Iterable[RelRow],
    columns: Mapping[int, Iterable[ColumnRow]],
    published: Iterable[PublishedTable],
) -> StreamMasks | None:
    """What masks a subscription's stream; None if there are no masks.

    Args:
        rels: The subscription's tables.
        columns: Their columns as of where the stream begins, by relid, under their names in the Delta tables.
        published: The published tables, of which those columns are known that are not in `columns`.
    """
    if not subscription.masks:
        return None
    names = {rel.relid: rel.qualified_name for rel in rels if rel.relid is not None}
    known = {table.relid: [column.name for column in table.columns] for table in published}
    for relid, rows in columns.items():
        back = {new: old for old, new in subscription.shape_of(names.get(relid, "")).names.items()}
        known[relid] = [back.get(row.name, row.name) for row in rows if row.state != "gone"]
    return StreamMasks(subscription.masks, names, known)
