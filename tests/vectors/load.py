"""The recorded vectors, as the tests read them."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from pgbridge.protocol.codec.messages import Column, Value
from pgbridge.protocol.lsn import Lsn

if TYPE_CHECKING:
    from collections.abc import Iterator

DIRECTORY = Path(__file__).parent
FILES = sorted(path for path in DIRECTORY.glob("pg*/*.jsonl") if path.stem != "copy_data")
VERSIONS = sorted({path.parent.name for path in FILES})
"""The folders' names, one for each major version: pg18."""

COPY_DATA_FILES = sorted(DIRECTORY.glob("pg*/copy_data.jsonl"))

_RUN = re.compile(rb"(.)\1{99,}", re.DOTALL)
_PACKED_RUN = re.compile(r"\((..)\*(\d+)\)")


class Vector(NamedTuple):
    """One recorded message; `record` says what the fields mean."""

    sql: str
    wal_start: Lsn
    data: bytes
    in_stream: bool
    decoded: str


def name_of(path: Path) -> str:
    """A file's name in pytest's reports: pg18/rows_text_v1."""
    return f"{path.parent.name}/{path.stem}"


def vectors(path: Path) -> Iterator[Vector]:
    """Read a file of messages."""
    for line in path.read_text(encoding="utf-8").splitlines():
        item = json.loads(line)
        wal_start = Lsn.parse(item.get("wal_start", "0/0"))
        yield Vector(
            item.get("sql", ""), wal_start, unpacked(item["hex"]), item.get("in_stream", False), item["decoded"]
        )


def packed(data: bytes) -> str:
    """Return hexadecimal text in which 100 or more equal bytes stand as (6e*2100)."""
    parts = []
    start = 0
    for run in _RUN.finditer(data):
        parts += [data[start : run.start()].hex(), f"({run[1].hex()}*{len(run[0])})"]
        start = run.end()
    return "".join(parts) + data[start:].hex()


def copy_data(path: Path) -> Iterator[bytes]:
    """Read a file of CopyData messages."""
    for line in path.read_text(encoding="utf-8").splitlines():
        yield unpacked(json.loads(line)["hex"])


def unpacked(text: str) -> bytes:
    """Read what `packed` writes."""
    return bytes.fromhex(_PACKED_RUN.sub(lambda run: run[1] * int(run[2]), text))


def shown(item: object) -> str:
    """Return a message's repr, shorter.

    Values are n, u, t'text' and b'binary', columns 'name' type_oid typmod [key], LSNs as they print; runs are as in
    `packed`, and what is None is left out.
    """
    match item:
        case Value(kind, data):
            text = kind.value.decode() + (repr(data)[1:] if data else "")
        case Column(name, type_oid, typmod, is_key):
            text = f"{name!r} {type_oid} {typmod}{' key' if is_key else ''}"
        case tuple():
            text = f"({', '.join(shown(part) for part in item)})"
        case Lsn():
            text = str(item)
        case _ if dataclasses.is_dataclass(item):
            values = ((field.name, getattr(item, field.name)) for field in dataclasses.fields(item))
            shown_values = ", ".join(f"{name}={shown(value)}" for name, value in values if value is not None)
            text = f"{type(item).__name__}({shown_values})"
        case _:
            text = repr(item)
    return shortened(text)


def shortened(text: str) -> str:
    """Return a text in which 100 or more equal characters stand as (n*2100)."""
    return re.sub(r"(.)\1{99,}", lambda run: f"({run[1]}*{len(run[0])})", text)
