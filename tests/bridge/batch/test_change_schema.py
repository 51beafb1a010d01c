"""The change schema, as it is documented."""

from __future__ import annotations

import pyarrow as pa
import pytest

from pgbridge.bridge.batch import change_schema
from pgbridge.bridge.lake.schema import spark_type


def test_the_documented_columns_and_types():
    made = change_schema.change_schema([("id", pa.int32()), ("note", pa.string())])
    described = [line.split() for line in change_schema.__doc__.split("\n\n")[1].splitlines()[1:]]
    row = pa.struct([("id", pa.int32()), ("note", pa.string())])
    types = {field.name: row if field.type == row else spark_type(field.type).simpleString() for field in made}
    documented = {name: row if type_ == "struct" else type_ for name, type_, *_ in described}
    assert list(documented) == made.names
    assert documented == types


def test_lsns_print_as_postgresql_prints_them():
    assert change_schema.lsn_text(0x16_B374D848) == "16/B374D848"
    assert change_schema.parse_lsn("16/B374D848") == 0x16_B374D848
    with pytest.raises(ValueError, match="unsigned"):
        change_schema.lsn_text(-1)
    with pytest.raises(ValueError, match="invalid LSN"):
        change_schema.parse_lsn("16-B374D848")
