"""A bounds-checked cursor over one message's bytes, and the writer that mirrors it; neither knows any message.

Integers are big-endian and strings end in NUL, as `src/backend/libpq/pqformat.c` writes them. Every method of the
reader either moves forward or raises `MalformedMessage` with its offset, so a loop over a reader ends with the bytes.
The writer raises the same error for a value that the wire cannot carry.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, NoReturn, TypeVar

from pgbridge.protocol.errors import MalformedMessage

if TYPE_CHECKING:
    from collections.abc import Callable

_UINT8 = struct.Struct(">B")
_UINT16 = struct.Struct(">H")
_UINT32 = struct.Struct(">I")
_UINT64 = struct.Struct(">Q")
_INT32 = struct.Struct(">i")
_INT64 = struct.Struct(">q")


class Reader:
    """Reads one message from front to back.

    Attributes:
        tag: The message's name, for errors.
        offset: Bytes read so far, counted from the message's start.
    """

    __slots__ = ("_data", "offset", "tag")

    def __init__(self, data: bytes | memoryview, tag: str, offset: int = 0) -> None:
        # bytes has find(), and its slices outlive the receive buffer; for bytes this copies nothing.
        self._data = bytes(data)
        self.tag: str = tag
        self.offset: int = offset

    @property
    def remaining(self) -> int:
        """Bytes not read yet."""
        return len(self._data) - self.offset

    def fail(self, reason: str) -> NoReturn:
        """Raise `MalformedMessage` at the current offset."""
        raise MalformedMessage(self.tag, self.offset, reason)

    def finish(self) -> None:
        """Check that the message ends here."""
        if self.offset != len(self._data):
            self.fail(f"{self.remaining} bytes after the end of the message")

    def unpack(self, layout: struct.Struct) -> tuple[Any, ...]:
        """Read consecutive fields of fixed length at once."""
        end = self.offset + layout.size
        if end > len(self._data):
            self.fail(f"expected {layout.size} bytes, {self.remaining} remain")
        fields = layout.unpack_from(self._data, self.offset)
        self.offset = end
        return fields

    def uint8(self) -> int:
        """Read 0 to 255."""
        return int(self.unpack(_UINT8)[0])

    def uint16(self) -> int:
        """Read 0 to 2**16 - 1: numbers of columns."""
        return int(self.unpack(_UINT16)[0])

    def uint32(self) -> int:
        """Read 0 to 2**32 - 1: OIDs, transaction IDs."""
        return int(self.unpack(_UINT32)[0])

    def uint64(self) -> int:
        """Read 0 to 2**64 - 1: LSNs."""
        return int(self.unpack(_UINT64)[0])

    def int32(self) -> int:
        """Read -2**31 to 2**31 - 1: type modifiers, lengths."""
        return int(self.unpack(_INT32)[0])

    def int64(self) -> int:
        """Read -2**63 to 2**63 - 1: times."""
        return int(self.unpack(_INT64)[0])

    def take(self, length: int) -> bytes:
        """Read `length` bytes; they are copied only after the check that they exist."""
        if not 0 <= length <= self.remaining:
            self.fail(f"expected {length} bytes, {self.remaining} remain")
        start = self.offset
        self.offset += length
        return self._data[start : self.offset]

    def cstring(self) -> str:
        """Read UTF-8 text up to a NUL, which is consumed and not returned."""
        end = self._data.find(b"\0", self.offset)
        if end < 0:
            self.fail("string without a terminating NUL")
        try:
            text = self._data[self.offset : end].decode()
        except UnicodeDecodeError as error:
            self.fail(f"string is not UTF-8: {error.reason} at its byte {error.start}")
        self.offset = end + 1
        return text

    def check_count(self, count: int, item_bytes: int) -> None:
        """Check a number of items from the wire before memory is allocated for them.

        Args:
            count: Number of items that the message announces.
            item_bytes: The least number of bytes an item takes.
        """
        if count * item_bytes > self.remaining:
            self.fail(f"{count} items of {item_bytes} bytes or more announced, {self.remaining} bytes remain")


class Writer:
    """Writes one message from front to back; each method is the inverse of `Reader`'s of that name.

    Attributes:
        tag: The message's name, for errors.
    """

    __slots__ = ("_out", "tag")

    def __init__(self, tag: str, start: bytes = b"") -> None:
        self._out = bytearray(start)
        self.tag: str = tag

    def getvalue(self) -> bytes:
        """Return what was written."""
        return bytes(self._out)

    def fail(self, reason: str) -> NoReturn:
        """Raise `MalformedMessage` at the current end."""
        raise MalformedMessage(self.tag, len(self._out), reason)

    def pack(self, layout: struct.Struct, *fields: object) -> None:
        """Write consecutive fields of fixed length at once: the inverse of `Reader.unpack`."""
        try:
            self._out += layout.pack(*fields)
        except struct.error as error:
            self.fail(f"cannot write {fields}: {error}")

    def uint8(self, value: int) -> None:
        """Write 0 to 255."""
        self.pack(_UINT8, value)

    def uint16(self, value: int) -> None:
        """Write 0 to 2**16 - 1."""
        self.pack(_UINT16, value)

    def uint32(self, value: int) -> None:
        """Write 0 to 2**32 - 1."""
        self.pack(_UINT32, value)

    def uint64(self, value: int) -> None:
        """Write 0 to 2**64 - 1."""
        self.pack(_UINT64, value)

    def int32(self, value: int) -> None:
        """Write -2**31 to 2**31 - 1."""
        self.pack(_INT32, value)

    def int64(self, value: int) -> None:
        """Write -2**63 to 2**63 - 1."""
        self.pack(_INT64, value)

    def raw(self, data: bytes) -> None:
        """Write bytes as they are: the inverse of `Reader.take`."""
        self._out += data

    def cstring(self, text: str) -> None:
        """Write UTF-8 text and its NUL; text that holds a NUL, or a lone surrogate, cannot be written."""
        if "\0" in text:
            self.fail(f"string {text!r} contains a NUL")
        try:
            self._out += text.encode()
        except UnicodeEncodeError as error:
            self.fail(f"string {text!r} is not UTF-8: {error.reason}")
        self._out.append(0)


DecodeT_co = TypeVar("DecodeT_co", bound="Callable[..., object]", covariant=True)


class Codec(NamedTuple, Generic[DecodeT_co]):
    """How one type of message is read and written.

    Attributes:
        tag: The first byte.
        name: Its name in PostgreSQL's errors (`logicalrep_message_type`).
        message: The class of its values.
        decode: Makes a value of the bytes.
        encode: Writes what follows the tag.
    """

    tag: bytes
    name: str
    message: type
    decode: DecodeT_co
    encode: Callable[[Writer, Any], None]
