"""The built-in types, against a server's."""

from __future__ import annotations

from pgbridge.protocol.values.pg_type import BUILTIN
from tests.generated_catalogs import OIDS, VERSION, built_in_types


def test_the_built_in_types_are_a_servers(postgresql_server):
    """A server of the file's version has exactly its rows; on another one, the types in both are equal."""
    with postgresql_server.connect() as connection:
        major = connection.info.server_version // 10000
        theirs = built_in_types(connection).splitlines()
    ours = OIDS.read_text(encoding="utf-8").splitlines()
    shared = {line.split("\t")[0] for line in theirs} & {line.split("\t")[0] for line in ours}
    assert (ours == theirs) if major == VERSION else len(shared) > 100
    assert [line for line in ours if line.split("\t")[0] in shared] == [
        line for line in theirs if line.split("\t")[0] in shared
    ]


def test_parts_are_among_the_built_in_types():
    """Elements and subtypes, so that BUILTIN needs no other catalog."""
    assert {part for kind in BUILTIN.values() for part in (kind.element, kind.subtype) if part} <= BUILTIN.keys()
