"""Errors for rows that PostgreSQL has no verdict on.

The walsender of a server-side publication stops at such a row, so computing the filter fails here, too.
"""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 - its name everywhere


def failure(message: str) -> Column:
    """A column that raises an error for each row that it is computed for."""
    return F.raise_error(F.lit(f"row filter: {message}"))
