"""A text goes to a place of Delta's only if it is read there as it was."""

from dataclasses import replace

import pyarrow as pa
import pytest

from protocol.columns import RowMessages
from protocol.errors import UnrepresentableValue
from protocol.messages import Column, Insert, Relation, Value, ValueKind
from protocol.pgoutput import encode
from protocol.values.places import AS_NULL, held
from protocol.values.types import Place, resolve

TEXTS = ["", " ", "a", "__HIVE_DEFAULT_PARTITION__", "__HIVE_DEFAULT_PARTITION__ "]


def decoded(texts, place, policy, key=()):
    type_ = replace(resolve(25, -1), place=place)
    relation = Relation(1, "public", "t", "d", (Column("region", 25, -1, is_key=False),))
    messages = [encode(Insert(1, (Value(ValueKind.TEXT, text.encode()),))) for text in texts]
    return RowMessages(messages).decode(relation, [type_], unrepresentable=policy, key=key)


def test_texts_that_a_partition_would_read_as_null():
    assert held(pa.array(TEXTS), Place.COLUMN, "error").to_pylist() == TEXTS
    assert held(pa.array(TEXTS), Place.PARTITION, "null").to_pylist() == [None, " ", "a", None, TEXTS[4]]
    assert held(pa.array([1, 2]), Place.PARTITION, "error").to_pylist() == [1, 2]
    assert decoded(TEXTS, Place.PARTITION, "null")["new_0"].to_pylist() == [None, " ", "a", None, TEXTS[4]]
    shown = decoded(TEXTS, Place.PARTITION, "show")
    assert shown["unheld_0"].to_pylist() == ["", None, None, TEXTS[3], None]


@pytest.mark.parametrize(("policy", "key"), [("error", ()), ("null", (0,))])
def test_such_a_text_is_refused_with_its_reason(policy, key):
    """In a key always: as NULL it would find no row."""
    with pytest.raises(UnrepresentableValue, match=f"column \"region\": value '' cannot be represented: {AS_NULL}"):
        decoded(TEXTS[1:3] + TEXTS[:1], Place.PARTITION, policy, key)
