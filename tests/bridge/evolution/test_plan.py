"""How targets follow definitions, without a server and without Spark."""

from __future__ import annotations

import random
from dataclasses import replace

import pyarrow as pa
import pytest

from pgbridge.bridge.catalog.catalog_rows import ColumnRow
from pgbridge.bridge.evolution.alterations import AddColumn, RenameColumn, WidenColumn, fills, variants
from pgbridge.bridge.evolution.plan import Definition, plan
from pgbridge.bridge.evolution.tracker import value_from_text
from pgbridge.bridge.publication.shape import Mask
from pgbridge.bridge.publication.tables import Attribute
from pgbridge.bridge.runtime.errors import NeedsResync
from pgbridge.bridge.targets.target import TargetSchema, target_field, target_schema, variant_field
from pgbridge.protocol.codec.messages import Column
from pgbridge.protocol.values.types import Place, resolve
from tests.bridge.evolution.test_attrmap import INT, TEXT, Server, catalog, known, message
from tests.oracle.extension_types import CATALOG, HALFVEC, VECTOR

SMALLINT, BIGINT, FLOAT4, FLOAT8, DATE, TIMESTAMP, NUMERIC, CHAR, UUID = 21, 20, 700, 701, 1082, 1114, 1700, 1042, 2950
JSONB = 3802


def types_of(wanted):
    return [resolve(*item) for item in wanted]


def of_extensions(wanted):
    return [resolve(oid, typmod, CATALOG) for oid, typmod in wanted]


def planned(
    was, columns, now, schema=None, *, replicated=None, key=("id",), sole_source=True, types_of=types_of, **options
):
    """Plan a definition; without `schema`, the target has the known columns."""
    types = types_of([(column.type_oid, column.typmod) for column in columns])
    if schema is None:
        rows = [row for row in was if row.state != "hidden"]
        schema = target_schema([(row.name, resolve(row.type_oid, row.typmod).arrow) for row in rows])
    definition = Definition(
        ("public", "t"), columns, types, replicated, key, was, now, sole_source, types_of, value_from_text, **options
    )
    return plan(definition, schema)


def after(schema: TargetSchema, changes) -> TargetSchema:
    """Apply alterations to a schema by Delta's rules for names."""
    fields = {field.name: field for field in schema}
    for change in changes:
        if isinstance(change, AddColumn):
            assert change.name.lower() not in {name.lower() for name in fields}
            fields[change.name] = target_field(change.name, change.type)
        elif isinstance(change, RenameColumn):
            assert change.name in fields
            assert change.new_name.lower() not in {name.lower() for name in fields}
            renamed = fields[change.name]._replace(name=change.new_name)
            fields = {
                change.new_name if name == change.name else name: renamed if name == change.name else field
                for name, field in fields.items()
            }
        else:
            assert change.name in fields
            fields[change.name] = target_field(change.name, change.type)
    return tuple(fields.values())


def alterations(*arguments, **options):
    return planned(*arguments, **options).alterations


def test_nothing_to_do():
    found = planned(known("id", "a"), message("id", "a"), catalog("id", "a"))
    assert (found.alterations, found.warnings) == ((), ())
    assert found.known == tuple(known("id", "a"))
    assert [column.name for column in found.columns] == ["id", "a"]


def test_a_column_with_a_constant_default():
    now = [*catalog("id"), Attribute(2, "c", INT, -1, fill=b"7")]
    found = planned(known("id"), message("id", "c"), now)
    assert found.alterations == (AddColumn("c", pa.int32(), pa.scalar(7, pa.int32())),)
    assert found.warnings == ()
    assert [field.name for field in found.schema] == ["id", "c"]
    assert fills(found.alterations) == {"c": pa.scalar(7, pa.int32())}


@pytest.mark.parametrize(
    ("now", "warned"),
    [
        (Attribute(2, "c", INT, -1), False),
        (Attribute(2, None, 0, -1), True),
        (Attribute(2, "c", INT, -1, fill=b"seven"), True),
    ],
)
def test_a_column_whose_rows_have_null(now, warned):
    found = planned(known("id"), message("id", "c"), [*catalog("id"), now])
    assert found.alterations == (AddColumn("c", pa.int32()),)
    assert bool(found.warnings) == warned
    if warned:
        assert 'existing rows have NULL in the new column "c"' in found.warnings[0]


def test_a_column_that_was_not_published_before_has_values_that_never_came():
    was = known("id", "{a}", "b")
    found = planned(was, message("id", "a", "b"), [replace(c, fill=b"1") for c in catalog(*"iab")])
    assert found.alterations == (AddColumn("a", pa.int32()),)
    assert "not published before" in found.warnings[0]


def test_a_column_whose_rows_have_values_that_are_not_known():
    now = [*catalog("id"), Attribute(2, "c", INT, -1, fill_known=False)]
    with pytest.raises(
        NeedsResync, match='the server filled column "c" of table "public.t" in existing rows'
    ) as caught:
        planned(known("id"), message("id", "c"), now)
    assert caught.value.tables == (("public", "t"),)


@pytest.mark.parametrize(
    ("names", "reason"),
    [
        (("id", "f", "F"), 'columns "f" and "F" of table "public.t" differ only in case'),
        (
            ("id", "f", "_Row_Id_"),
            'column "_Row_Id_" of table "public.t" has a name that Delta\'s MERGE uses',
        ),
    ],
)
def test_a_name_that_delta_cannot_hold_beside_the_others(names, reason):
    for was in (known("id", "f"), known("id", "f", "g")):  # added; or renamed
        with pytest.raises(NeedsResync, match=reason) as caught:
            planned(was, message(*names), catalog(*names))
        assert "rename" in caught.value.hint
    assert planned(known("id", "f"), message("id", "F"), catalog("id", "F")).alterations


def test_a_key_of_values_that_are_not_known_is_refused():
    with pytest.raises(NeedsResync, match='column "id" of table "public.t" now identifies rows'):
        planned(known("a"), message("a", "id"), [*catalog("a"), Attribute(2, None, 0, -1)])


def test_a_column_that_is_dropped_stays():
    found = planned(known("id", "a", "b"), message("id", "b"), catalog("id", None, "b"))
    assert (found.alterations, found.warnings) == ((), ())
    assert [field.name for field in found.schema] == ["id", "a", "b"]
    assert [row.state for row in found.known] == ["live", "gone", "live"]


def test_renames():
    assert alterations(known("id", "a"), message("id", "b"), catalog("id", "b")) == (RenameColumn("a", "b"),)
    # one takes the name that another leaves
    assert alterations(known("id", "a", "b"), message("id", "b", "c"), catalog("id", "b", "c")) == (
        RenameColumn("b", "c"),
        RenameColumn("a", "b"),
    )
    # a ring
    found = planned(known("id", "a", "b"), message("id", "b", "a"), catalog("id", "b", "a"))
    assert len(found.alterations) == 3
    assert [field.name for field in found.schema] == ["id", "b", "a"]
    # in other letters, which Delta takes for the same name
    found = planned(known("id", "a"), message("id", "A"), catalog("id", "A"))
    assert len(found.alterations) == 2
    assert [field.name for field in found.schema] == ["id", "A"]


def test_a_new_column_with_the_name_of_a_dropped_one():
    was = known("id", "[c]")
    now = [*catalog("id", None), Attribute(3, "c", TEXT, -1, fill=b"x")]
    found = planned(was, [*message("id"), *message("c", type_oid=TEXT)], now)
    assert found.alterations == (RenameColumn("c", "c_dropped"), AddColumn("c", pa.string(), pa.scalar("x")))
    assert found.warnings == ()
    assert [(row.attnum, row.name, row.state) for row in found.known] == [
        (1, "id", "live"),
        (2, "c_dropped", "gone"),
        (3, "c", "live"),
    ]
    again = planned(
        [replace(row, state="gone") if row.attnum == 3 else row for row in found.known],
        message("id", "c"),
        [*catalog("id", None, None), Attribute(4, "c", INT, -1)],
        found.schema,
    )
    assert again.alterations == (RenameColumn("c", "c_dropped_2"), AddColumn("c", pa.int32()))


def test_dropped_and_added_again_between_two_messages_is_warned_of():
    found = planned(known("id", "c"), message("id", "c"), catalog("id", None, "c"))
    assert found.alterations == (RenameColumn("c", "c_dropped"), AddColumn("c", pa.int32()))
    assert "assumed to be the new column that the server has now" in found.warnings[0]


def test_a_column_that_may_have_come_and_gone_unseen_is_warned_of():
    """The new column of a name may be an older one, which was dropped behind the message."""
    found = planned(known("id"), message("id", "c"), catalog("id", None, "c"))
    assert found.alterations == (AddColumn("c", pa.int32()),)
    assert "assumed to be the new column that the server has now" in found.warnings[0]


def test_a_column_that_was_left_out_for_a_while():
    """It is the same one, with outdated values; unless its number may be that of another, and no column follows it."""
    found = planned(known("id", "[a]", "b"), message("id", "a", "b"), catalog("id", "a", "b"))
    assert found.alterations == ()
    assert "not published for some time" in found.warnings[0]
    found = planned(known("id", "[a]"), message("id", "a"), catalog("id", "a"))
    assert found.alterations == ()
    assert "not published for some time" in found.warnings[0]
    was = [*known("id"), ColumnRow(3, "a", INT, -1, "gone")]
    found = planned(was, message("id", "a"), catalog("id", None, "a"))
    assert found.alterations == (RenameColumn("a", "a_dropped"), AddColumn("a", pa.int32()))
    assert len(found.warnings) == 1


def test_columns_that_are_not_wanted():
    found = planned(known("id", "{a}"), message("id", "b", "c"), catalog("id", "b", "c"), replicated={"id"})
    assert (found.alterations, found.warnings) == ((), ())
    assert [row.state for row in found.known] == ["live", "hidden", "hidden"]


@pytest.mark.parametrize(
    ("old", "new", "wide"),
    [
        ((SMALLINT, -1), (INT, -1), pa.int32()),
        ((INT, -1), (BIGINT, -1), pa.int64()),
        ((FLOAT4, -1), (FLOAT8, -1), pa.float64()),
        ((DATE, -1), (TIMESTAMP, -1), pa.timestamp("us")),
        ((NUMERIC, (10 << 16 | 2) + 4), (NUMERIC, (12 << 16 | 2) + 4), pa.decimal128(12, 2)),
        ((INT, -1), (NUMERIC, (8 << 16 | 2) + 4), pa.decimal128(12, 2)),
    ],
)
def test_wider_types(old, new, wide):
    columns = [*message("id"), Column("v", new[0], new[1], is_key=False)]
    was = [*known("id"), ColumnRow(2, "v", *old)]
    found = planned(was, columns, [*catalog("id"), Attribute(2, "v", *new)])
    assert found.alterations == (WidenColumn("v", wide),)
    assert found.columns[1].type.arrow == wide
    (warning,) = found.warnings
    assert "If ALTER … USING changed them" in warning


def test_a_narrower_type_leaves_the_target_as_it_is():
    was = [*known("id"), ColumnRow(2, "v", BIGINT, -1)]
    found = planned(was, message("id", "v"), catalog("id", "v"))
    assert found.alterations == ()
    assert found.columns[1].type.arrow == pa.int64()
    assert found.columns[1].type.oid == INT


def test_values_that_were_converted_are_refused():
    was = [*known("id"), ColumnRow(2, "v", TEXT, -1)]
    with pytest.raises(NeedsResync, match='column "v" of table "public.t" changed its type from text to uuid:'):
        planned(was, [*message("id"), *message("v", type_oid=UUID)], [*catalog("id"), Attribute(2, "v", UUID, -1)])


def test_padding_that_was_changed_is_refused():
    was = [*known("id"), ColumnRow(2, "v", CHAR, 9)]
    columns = [*message("id"), Column("v", CHAR, 14, is_key=False)]
    with pytest.raises(NeedsResync, match=r"changed its type from bpchar\(5\) to bpchar\(10\):"):
        planned(was, columns, [*catalog("id"), Attribute(2, "v", CHAR, 14)])


def test_a_renamed_column_may_be_widened_at_once():
    was = [*known("id"), ColumnRow(2, "v", INT, -1)]
    found = planned(was, [*message("id"), *message("w", type_oid=BIGINT)], [*catalog("id"), Attribute(2, "w", 20, -1)])
    assert found.alterations == (RenameColumn("v", "w"), WidenColumn("w", pa.int64()))


def test_nothing_known_goes_by_the_targets_names():
    schema = target_schema([("id", pa.int32()), ("a", pa.int64()), ("own", pa.string())])
    found = planned((), message("id", "a", "b"), catalog("id", "a", "b"), schema)
    assert found.alterations == (AddColumn("b", pa.int32()),)
    assert found.columns[1].type.arrow == pa.int64()
    assert [row.attnum for row in found.known] == [1, 2, 3]


def test_a_column_that_somebody_added_by_hand_is_taken():
    schema = target_schema([("id", pa.int32()), ("b", pa.int64())])
    found = planned(known("id"), message("id", "b"), catalog("id", "b"), schema)
    assert found.alterations == ()
    with pytest.raises(NeedsResync, match='column "b" of target "public.t" is string'):
        planned(known("id"), message("id", "b"), catalog("id", "b"), target_schema([("b", pa.string())]))


def test_a_column_of_somebody_else_is_not_moved_away():
    schema = target_schema([("id", pa.int32()), ("a", pa.int32()), ("b", pa.int32())])
    with pytest.raises(NeedsResync, match='already has a column "b", and it is not the column'):
        planned(known("id", "a"), message("id", "b"), catalog("id", "b"), schema)


def test_of_partitions_of_one_root_only_the_first_would_know_the_dropped_column():
    with pytest.raises(NeedsResync, match='already has a column "c"'):
        planned(known("id", "[c]"), message("id", "c"), catalog("id", None, "c"), sole_source=False)


def test_whatever_is_done_to_a_table_its_target_has_its_columns():
    """Delta accepts every alteration, and at the end the target has each of the server's columns."""
    followed = sum(_follows(seed) for seed in range(200))
    assert followed > 50, "most are stopped by a type, the others go all the way"


def _follows(seed) -> bool:
    """Whether a random history can be followed to its end."""
    server = Server(random.Random(seed))
    schema = target_schema([("id", pa.int32())])
    was = tuple(known("id"))
    origins = {"id": 1}
    for _ in range(8):
        for _ in range(server.rng.randrange(4)):
            server.alter()
        try:
            found = planned(was, server.message(), server.columns, schema)
        except NeedsResync as error:
            if "changed its type" in error.message or "but the published values are" in error.message:
                return False
            raise
        made = after(schema, found.alterations)
        assert made == found.schema
        for change in found.alterations:
            if isinstance(change, RenameColumn) and change.name in origins:
                origins[change.new_name] = origins.pop(change.name)
            elif isinstance(change, AddColumn):
                origins[change.name] = next(c.attnum for c in server.alive() if c.name == change.name)
        assert {str(c.name): c.attnum for c in server.alive()}.items() <= origins.items(), seed
        schema, was = found.schema, found.known
    return True


def test_a_document_becomes_variant_by_option_and_never_text():
    """A column of the key stays a string; a Delta table's own column stays what it is."""
    now = [*catalog("id"), Attribute(2, "doc", JSONB, -1, fill=b'{"a": 1}')]
    columns = [*message("id"), *message("doc", type_oid=JSONB)]
    was, is_ = [*known("id"), ColumnRow(2, "doc", JSONB, -1)], [*catalog("id"), Attribute(2, "doc", JSONB, -1)]
    found = planned(known("id"), columns, now, parsed={"jsonb"})
    assert found.alterations == (AddColumn("doc", pa.string(), pa.scalar('{"a": 1}'), variant=True),)
    assert (variants(found.alterations), found.schema[1]) == ({"doc"}, variant_field("doc"))
    assert [column.type.place for column in found.columns] == [Place.COLUMN, Place.VARIANT]
    for options in ({"parsed": {"vector"}}, {"parsed": {"jsonb"}, "key": ("id", "doc")}):
        found = planned(known("id"), columns, now, **options)
        assert found.alterations == (AddColumn("doc", pa.string(), pa.scalar('{"a": 1}')),)
    for field in (variant_field("doc"), target_field("doc", pa.string())):
        schema = (target_field("id", pa.int32()), field)
        found = planned(was, columns, is_, schema, parsed={"jsonb"})
        assert (found.alterations, found.columns[1].type.place) == ((), field.place)
    schema = (target_field("id", pa.int32()), variant_field("doc"))
    texts, now = message("id") + message("doc", type_oid=TEXT), [*catalog("id"), Attribute(2, "doc", TEXT, -1)]
    with pytest.raises(NeedsResync, match='"doc" of target "public.t" is variant, but the published values are string'):
        planned(was, texts, now, schema)


def test_a_vector_becomes_an_array_by_option():
    """With the value of its default, or not at all if the default is none; a string stays one."""
    reals = pa.list_(pa.float32())
    columns = [*message("id"), *message("v", type_oid=VECTOR)]

    def added(fill=b"[1,2.5]", **options):
        now = [*catalog("id"), Attribute(2, "v", VECTOR, -1, fill=fill)]
        return planned(known("id"), columns, now, types_of=of_extensions, **options)

    for options in ({}, {"parsed": {"geometry"}}, {"parsed": {"vector"}, "key": ("id", "v")}):
        assert added(**options).alterations == (AddColumn("v", pa.string(), pa.scalar("[1,2.5]")),)
    array = added(parsed={"vector"})
    assert array.alterations == (AddColumn("v", reals, pa.scalar([1, 2.5], reals)),)
    assert (array.schema[1], array.columns[1].type.arrow) == (target_field("v", reals), reals)
    with pytest.raises(NeedsResync, match="arrays of finite numbers only"):
        added(b"none", parsed={"vector"})
    assert added(b"none", parsed={"vector"}, unrepresentable="null").alterations == (AddColumn("v", reals),)
    now, was = [*catalog("id"), Attribute(2, "v", VECTOR, -1)], [*known("id"), ColumnRow(2, "v", VECTOR, -1)]
    for arrow in (pa.string(), reals):
        schema = (target_field("id", pa.int32()), target_field("v", arrow))
        kept = planned(was, columns, now, schema, parsed={"vector"}, types_of=of_extensions)
        assert (kept.alterations, kept.columns[1].type.arrow) == ((), arrow)
    halves = [*message("id"), *message("v", type_oid=HALFVEC)]
    with pytest.raises(NeedsResync, match="changed its type"):  # pgvector rounds them
        planned(was, halves, [*catalog("id"), Attribute(2, "v", HALFVEC, -1)], schema, types_of=of_extensions)


def test_a_default_that_variant_does_not_hold_is_told():
    number = "1" * 39
    now = [*catalog("id"), Attribute(2, "doc", JSONB, -1, fill=number.encode())]
    columns = message("id") + message("doc", type_oid=JSONB)
    with pytest.raises(NeedsResync, match="more than 38 digits") as caught:
        planned(known("id"), columns, now, parsed={"jsonb"})
    assert 'unrepresentable = "null"' in caught.value.hint
    found = planned(known("id"), columns, now, parsed={"jsonb"}, unrepresentable="null")
    assert found.alterations == (AddColumn("doc", pa.string(), variant=True),)
    assert "more than 38 digits" in found.warnings[0]


def test_a_default_that_is_no_utf8_is_told():
    """Of a SQL_ASCII database. What its mask leaves may be."""
    now = [*catalog("id"), Attribute(2, "c", TEXT, -1, fill=b"caf\xe9")]
    columns = message("id") + message("c", type_oid=TEXT)
    with pytest.raises(NeedsResync, match="holds UTF-8 only"):
        planned(known("id"), columns, now)
    found = planned(known("id"), columns, now, unrepresentable="null")
    assert found.alterations == (AddColumn("c", pa.string()),)
    assert "holds UTF-8 only" in found.warnings[0]
    found = planned(known("id"), columns, now, masks={"c": Mask("first", characters=3)})
    assert found.alterations == (AddColumn("c", pa.string(), pa.scalar("caf")),)
