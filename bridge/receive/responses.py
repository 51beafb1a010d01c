"""ErrorResponse and NoticeResponse messages, read from bytes.

For `copy_both` and `copy_out`, which read a connection's socket themselves; elsewhere libpq reads them.
"""

from __future__ import annotations

import psycopg
from psycopg import errors


def fields_of(body: bytes) -> dict[str, str]:
    """An ErrorResponse's or NoticeResponse's fields by their codes ("Error and Notice Message Fields")."""
    texts = (field.decode(errors="replace") for field in body.split(b"\0") if field)
    return {text[0]: text[1:] for text in texts}


def server_error(fields: dict[str, str]) -> psycopg.Error:
    """The error that psycopg would raise for these fields."""
    text = as_psql(fields.get("V"), fields.get("M"), fields.get("D"))
    try:
        return errors.lookup(fields.get("C", ""))(text)
    except KeyError:
        return psycopg.OperationalError(text)


def as_psql(severity: str | None, primary: str | None, detail: str | None) -> str:
    """A message as psql would show it."""
    text = f"{severity}:  {primary}"
    return f"{text}\nDETAIL:  {detail}" if detail else text
