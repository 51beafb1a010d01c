"""What a warehouse may be, and which names a catalog holds."""

import pytest

from pgbridge.bridge.runtime.warehouse import (
    CatalogWarehouse,
    catalogs,
    shared_name_hint,
    unsupported_name,
    with_metastore,
)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("/srv/lake", None),
        ("s3a://bucket/lake", None),
        ("catalog:main", CatalogWarehouse("main")),
        ("catalog:Main-1.Shop", CatalogWarehouse("Main-1", "shop")),
        ("catalog:main.größe", CatalogWarehouse("main", "größe")),
        ("catalog:spark_catalog.shop_1", CatalogWarehouse("spark_catalog", "shop_1")),
    ],
)
def test_a_warehouse(text, found):
    assert CatalogWarehouse.of(text) == found


@pytest.mark.parametrize(
    "text",
    [
        "catalog:", "catalog:.", "catalog:main.", "catalog:.shop", "catalog:main.shop.orders", "catalog:my main",
        "catalog://main", "catalog:main.a/b", "catalog:spark_catalog.my-shop", "catalog:`main`",
    ],
)  # fmt: skip
def test_what_is_not_a_catalog_is_refused_with_the_forms(text):
    with pytest.raises(ValueError, match=r'must be "catalog:CATALOG" or "catalog:CATALOG.NAMESPACE"'):
        CatalogWarehouse.of(text)


@pytest.mark.parametrize(
    ("warehouse", "namespace", "name", "words"),
    [
        ("/srv/lake", "a.b", "c/d", None),
        ("catalog:main", "public", "my table", 'the name of table "my table"'),
        ("catalog:main", "my schema", "t", 'the name of schema "my schema"'),
        ("catalog:main.shop", "my schema", "t", None),
        ("catalog:main", "public", "größe-1", None),
        ("catalog:spark_catalog", "public", "größe", "letters of ASCII, digits and _ only"),
        ("catalog:spark_catalog", "public", "t_1", None),
    ],
)
def test_names_that_a_catalog_cannot_have(warehouse, namespace, name, words):
    why = unsupported_name(warehouse, namespace, name)
    assert (why is None) if words is None else (why is not None and words in why)


def test_what_to_do_about_two_tables_of_one_name():
    assert '"catalog:main"' in shared_name_hint("catalog:main.shop", ("a", "t"), ("b", "t"))
    assert "ignores case" in shared_name_hint("catalog:main.shop", ("a", "t"), ("a", "T"))
    assert "ignores case" in shared_name_hint("catalog:main", ("a", "t"), ("A", "t"))


def test_sparks_own_catalog_is_a_metastore_unless_set_otherwise():
    key = "spark.sql.catalogImplementation"
    assert with_metastore({}, ["catalog:spark_catalog.shop", "/lake"]) == {key: "hive"}
    assert with_metastore({key: "in-memory"}, ["catalog:spark_catalog"]) == {key: "in-memory"}
    assert with_metastore({}, ["catalog:main", "/lake"]) == {}
    assert catalogs(["catalog:main.a", "catalog:main.b", "/lake"]) == {"main"}
