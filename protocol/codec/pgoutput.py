"""The strict codec of pgoutput messages, protocol versions 1 to 4: `decode` and `encode`.

This is the reference: one message at a time, every field checked, and `encode` returns every byte that `decode`
accepts. `columns` reads rows in bulk; `assembler` checks whether a message may come at its point of the stream. Names
are UTF-8, as the connection's client_encoding must be; column values stay bytes. Source: the documentation's "Logical
Replication Message Formats".

To add a message:

1. `messages`: a dataclass, and its place in the union `Message`.
2. `transaction_messages`, or `change_messages` if it comes inside a transaction: a pair of functions, entered in
   CODECS with its tag and its name.
3. `assembler`: the states in which it may come (TRANSITIONS), and the method that takes it.
4. `tests/strategies.py`: random ones; `tests/protocol/made_stream.py`: an example; its bytes in the tests of 2.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from protocol.codec import change_messages, transaction_messages
from protocol.codec.buffer import Codec, Reader, Writer
from protocol.errors import MalformedMessage, UnsupportedMessage

if TYPE_CHECKING:
    from collections.abc import Callable

    from protocol.codec.messages import Message

_WHOLE = {codec.tag[0]: codec.decode for codec in transaction_messages.WHOLE_CODECS}
_TRANSACTION_MESSAGES = {codec.tag[0]: codec for codec in transaction_messages.CODECS}
_CHANGE_MESSAGES = {codec.tag[0]: codec for codec in change_messages.CODECS}
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
        in_stream: It comes between Stream Start and Stream Stop, where R, Y, I, U, D, T and M carry an xid.

    Raises:
        MalformedMessage: The bytes are not exactly one message of the tag's form.
        UnsupportedMessage: No protocol version up to 4 has the tag.
    """
    if not data:
        raise MalformedMessage("pgoutput", 0, "an empty message has no tag")
    tag = data[0]
    if (decode_whole := _WHOLE.get(tag)) is not None:
        return decode_whole(data)
    message: Message
    if (codec := _TRANSACTION_MESSAGES.get(tag)) is not None:
        reader = Reader(data, codec.name, 1)
        message = codec.decode(reader)
    elif (change_codec := _CHANGE_MESSAGES.get(tag)) is not None:
        reader = Reader(data, change_codec.name, 1)
        xid = transaction_messages.valid_xid(reader, reader.uint32()) if in_stream else None
        message = change_codec.decode(reader, xid)
    else:
        raise UnsupportedMessage(f"no pgoutput message of protocol versions 1 to 4 has the tag {chr(tag)!r}")
    reader.finish()
    return message


def encode(message: Message) -> bytes:
    """Encode one message: as inside a streamed transaction if its `xid` is not None.

    Raises:
        MalformedMessage: A field does not fit its layout, or `decode` would refuse the result.
    """
    codec = _ENCODERS[type(message)]
    writer = Writer(codec.name, codec.tag)
    if isinstance(message, change_messages.Change) and message.xid is not None:
        writer.uint32(transaction_messages.valid_xid(writer, message.xid))
    codec.encode(writer, message)
    return writer.getvalue()
