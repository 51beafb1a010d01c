"""Catalog queries, one a file, loaded by name; `state/` has the tables of the state catalog.

A file's header comment has its parameters, the columns that it returns and the lowest server version that runs it.
"""

from __future__ import annotations

from functools import cache
from importlib import resources


@cache
def load(name: str) -> str:
    """The text of `sql/<name>.sql`.

    Raises:
        FileNotFoundError: There is no such statement.
    """
    return resources.files(__name__).joinpath(f"{name}.sql").read_text(encoding="utf-8")


@cache
def load_script(name: str) -> str:
    """The text of `sql/<name>.psql`, a script for psql that takes its names as psql's variables.

    Raises:
        FileNotFoundError: There is no such script.
    """
    return resources.files(__name__).joinpath(f"{name}.psql").read_text(encoding="utf-8")
