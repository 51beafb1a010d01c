"""The strict codec of pgoutput messages, protocol versions 1 to 4: `decode` and `encode`.

This is the reference: one message at a time, every field checked, and `encode` gives back every byte that
`decode` accepts. Rows in bulk are for `columns`; whether a message may come at this point of the stream is
for `transactions`. The layouts are in `boundaries` and `changes`, in the order of the documentation's
"Logical Replication Message Formats". Names are UTF-8, as the connection's client_encoding must be; column
values stay bytes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from protocol import change_messages, transaction_messages
from protocol.buffer import Reader, Writer
from protocol.errors import MalformedMessage, UnsupportedMessage

if TYPE_CHECKING:
    from collections.abc import Callable

    from protocol.buffer import Codec
    from protocol.messages import Message

_WHOLE = {codec.tag[0]: codec.decode for codec in transaction_messages.WHOLE_CODECS}
_BOUNDARIES = {codec.tag[0]: codec for codec in transaction_messages.CODECS}
_CHANGES = {codec.tag[0]: codec for codec in change_messages.CODECS}
_CODECS: tuple[Codec[Callable[..., Message]], ...] = (
    *transaction_messages.WHOLE_CODECS,
    *transaction_messages.CODECS,
    *change_messages.CODECS,
)
_ENCODERS = {codec.message: codec for codec in _CODECS}

MESSAGE_TYPES = {codec.tag[0]: codec.name for codec in _CODECS}
"""First byte of a message -> its name in PostgreSQL's errors (`logicalrep_message_type`), as INSERT."""


def decode(data: bytes | memoryview, *, in_stream: bool = False) -> Message:
    """Decode one message.

    Args:
        data: The whole message: XLogData's payload, or a row of pg_logical_slot_get_binary_changes.
        in_stream: It stands between Stream Start and Stream Stop, where R, Y, I, U, D, T and M carry an xid.

    Raises:
        MalformedMessage: It is not exactly one message of its tag's form.
        UnsupportedMessage: No protocol version up to 4 has its tag.
    """
    if not data:
        raise MalformedMessage("pgoutput", 0, "an empty message has no tag")
    tag = data[0]
    if (decode_whole := _WHOLE.get(tag)) is not None:
        return decode_whole(data)
    message: Message
    if (boundary := _BOUNDARIES.get(tag)) is not None:
        reader = Reader(data, boundary.name, 1)
        message = boundary.decode(reader)
    elif (change := _CHANGES.get(tag)) is not None:
        reader = Reader(data, change.name, 1)
        xid = transaction_messages.valid_xid(reader, reader.uint32()) if in_stream else None
        message = change.decode(reader, xid)
    else:
        raise UnsupportedMessage(f"no pgoutput message of protocol versions 1 to 4 has the tag {chr(tag)!r}")
    reader.finish()
    return message


def encode(message: Message) -> bytes:
    """Encode one message, as inside a streamed transaction where its `xid` is not None.

    Raises:
        MalformedMessage: A field does not fit its place, or `decode` would refuse the result.
    """
    codec = _ENCODERS[type(message)]
    writer = Writer(codec.name, codec.tag)
    if isinstance(message, change_messages.Change) and message.xid is not None:
        writer.uint32(transaction_messages.valid_xid(writer, message.xid))
    codec.encode(writer, message)
    return writer.getvalue()
