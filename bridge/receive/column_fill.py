"""The value that a constant default gave to rows from before its column, as the server computes it.

Only a literal with at most one cast to a built-in type is computed: whoever may alter a table could else have functions
called by the subscription's role.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import psycopg

from pgbridge.bridge.receive.connection import translated

if TYPE_CHECKING:
    from collections.abc import Mapping

_CONSTANT: Final = re.compile(
    r"(?P<literal>'(?:[^']|'')*'|-?[0-9]+(?:\.[0-9]*)?(?:e[+-]?[0-9]+)?|true|false|NULL)"
    r"(?:::(?P<type>.+))?",
    re.DOTALL,
)
"""A constant, as pg_get_expr writes it."""
_BUILTIN: Final = re.compile(r'(?:[a-z0-9_ ]+|"char")(?:\([0-9, ]+\))?[a-z ]*(?:\[\])*')
"""A type's name without a schema: the search path is pg_catalog alone."""


class Fill(NamedTuple):
    """The value of a column in the rows from before it.

    Attributes:
        text: The value, as the type's output function writes it, in the bytes that the stream would have; None for
            NULL, and if it is not known.
        known: Whether it is known.
    """

    text: bytes | None
    known: bool


_UNKNOWN: Final = Fill(None, known=False)


def fill_of(row: Mapping[str, Any], connection: psycopg.Connection[Any]) -> Fill:
    """Return what a row of `sql/attributes.sql` says, and the server makes of its expression.

    Raises:
        PublisherError: The server cannot answer.
    """
    if row["fill_known"] or row["expression"] is None:
        return Fill(row["fill"], bool(row["fill_known"]))
    try:
        constant = _CONSTANT.fullmatch(row["expression"].decode())
    except UnicodeDecodeError:  # of a SQL_ASCII database; the server could not be asked to compute it
        return _UNKNOWN
    if constant is None:
        return _UNKNOWN
    literal, own = constant["literal"], constant["type"]
    if literal == "NULL":
        return Fill(None, known=True)
    if not row["is_builtin"]:
        # a literal of a type that is not built in is its output function's
        plain = own == row["base_type"] and literal.startswith("'")
        return Fill(literal[1:-1].replace("''", "'").encode(), known=True) if plain else _UNKNOWN
    builtin = own is None or _BUILTIN.fullmatch(own) is not None
    return _computed(f"CAST({constant[0]} AS {row['base_type']})", connection) if builtin else _UNKNOWN


def _computed(expression: str, connection: psycopg.Connection[Any]) -> Fill:
    try:
        row = connection.execute(f"SELECT pg_catalog.format('%s', {expression})".encode()).fetchone()
    except psycopg.OperationalError as error:
        raise translated(error, "cannot compute a default") from error
    except psycopg.Error:  # the literal is no value of the type, or the role may not use one
        return _UNKNOWN
    return Fill(row[0].encode(), known=True) if row is not None else _UNKNOWN
