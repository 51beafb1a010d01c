"""Errors in the bytes that came from a server.

    ProtocolError
      MalformedMessage      the bytes of one message do not have the form of its tag
      UnexpectedMessage     a well-formed message that the protocol does not allow at this point
      UnsupportedMessage    a tag, or a value's form, that no supported version has
        UnsupportedBinary   a value in binary form, of a type that is read from text only
      UnrepresentableValue  a valid value of PostgreSQL that the target's type cannot hold

Decoding raises only these, whatever the bytes; any other exception is a bug. Encoding raises MalformedMessage for a
value that its message cannot carry or that decoding would refuse.
"""

from __future__ import annotations


class ProtocolError(Exception):
    """Base of all errors that `protocol` raises about its input."""


class MalformedMessage(ProtocolError):
    """The bytes of a message do not have the form its tag promises.

    Attributes:
        tag: The message's (or value's) name or first byte, for people.
        offset: Bytes from the message's start to the point where reading stopped.
        reason: What was expected and what was found.
    """

    def __init__(self, tag: str, offset: int, reason: str) -> None:
        super().__init__(f"malformed {tag} message at offset {offset}: {reason}")
        self.tag = tag
        self.offset = offset
        self.reason = reason


class UnexpectedMessage(ProtocolError):
    """A well-formed message that may not come in the current state.

    Attributes:
        tag: The message's name.
        state: The state in which it came.
    """

    def __init__(self, tag: str, state: str, detail: str = "") -> None:
        super().__init__(f"unexpected {tag} message while {state}" + (f": {detail}" if detail else ""))
        self.tag = tag
        self.state = state


class UnsupportedMessage(ProtocolError):
    """A message tag or a value's form that is not supported."""


class UnsupportedBinary(UnsupportedMessage):
    """A value in binary form, of a type that is read from text only: a stream in text can be read."""


class UnrepresentableValue(ProtocolError):
    """A value of PostgreSQL that the target column's type cannot hold.

    Attributes:
        column: The column's name.
        value: PostgreSQL's text output of the value, or its bytes in hexadecimal, shortened.
        reason: Why the target's type cannot hold it.
        row: Index of the row among those decoded together.
    """

    def __init__(self, column: str, value: str, reason: str, row: int = -1) -> None:
        super().__init__(f'column "{column}": value {value!r} cannot be represented: {reason}')
        self.column = column
        self.value = value
        self.reason = reason
        self.row = row
