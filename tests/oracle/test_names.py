"""Names that attack SQL, paths, HTML and terminals are names: the tables equal a native subscriber's.

Each name is that of a schema, of a table, of a column and of a publication, so it passes through every statement that
is made for PostgreSQL and for Spark, and through the path of a Delta table.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Final

import pytest
from psycopg import sql

from pgbridge.bridge.check.finding import Level
from pgbridge.bridge.check.known import Known
from pgbridge.bridge.check.subscription import check_subscription
from pgbridge.bridge.targets.location import quoted
from tests.hostile import NAMES
from tests.oracle.delta import differences
from tests.oracle.native import NativeSubscriber

CHANGES: Final = """
INSERT INTO {table} SELECT n, 'inserted', n FROM generate_series(10, 19) n;
UPDATE {table} SET {value} = {name_text} WHERE {key} < 12;
UPDATE {table} SET {key} = 100, op = 7, _metadata = 7 WHERE {key} = 12;
DELETE FROM {table} WHERE {key} = 13;
"""
OTHERS: Final = ("_metadata", "_change_type", "_commit_version", "__index_level_0__", "new_0", "op", "action", "part")
"""Columns with names that Spark, Delta, pandas and pgbridge use themselves."""
CREATED: Final = (
    "CREATE SCHEMA {schema}; CREATE TABLE {table} ({key} int NOT NULL, {value} text, left_out int, "
    + ", ".join(f"{name} int DEFAULT {n}" for n, name in enumerate(OTHERS))
    + ");\n"
)
KEYED: Final = "ALTER TABLE {table} ADD PRIMARY KEY ({key});\n"
FILTERED: Final = """
INSERT INTO {table} VALUES (1, {name_text}, 1), (-1, 'filtered', 2);
CREATE PUBLICATION {publication} FOR TABLE {table} ({key}, {value}, OTHERS) WHERE ({key} > 0);
""".replace("OTHERS", ", ".join(OTHERS))
WITHOUT_A_KEY: Final = """
INSERT INTO {table} VALUES (1, {name_text}, 1), (2, {name_text}, 1);
ALTER TABLE {table} REPLICA IDENTITY FULL; CREATE PUBLICATION {publication} FOR TABLE {table};
"""
ALTERED: Final = """
ALTER TABLE {table} ADD COLUMN {name} text DEFAULT {name_text};
ALTER TABLE {table} RENAME COLUMN {value} TO {schema};
"""
AFTERWARDS: Final = (
    "INSERT INTO {table} ({key}, {name}) VALUES (200, 'afterwards'); UPDATE {table} SET {name} = 'x' WHERE {key} < 15;"
)
WITH_A_KEY: Final = """
INSERT INTO {table} VALUES (1, {name_text}, 1), (2, {name_text}, 1); CREATE PUBLICATION {publication} FOR TABLE {table};
"""
KEY_RENAMED: Final = "ALTER TABLE {table} RENAME COLUMN {key} TO {value};"
KEYED_AFTERWARDS: Final = (
    AFTERWARDS.replace("{key}", "{value}")
    + """
UPDATE {table} SET {value} = 300, {name} = NULL WHERE {value} = 14; DELETE FROM {table} WHERE {value} = 15;
"""
)


class Table:
    """The table with the name of this number; the other names are the next ones'."""

    def __init__(self, number: int) -> None:
        following = itertools.islice(itertools.cycle(NAMES), number, number + 4)
        self.name, self.schema, *columns = following
        self.sql = sql.Identifier(self.schema, self.name)
        self.key, self.value = map(sql.Identifier, columns)
        self.publication = sql.Identifier(self.name)
        self.number = number

    @property
    def keyed(self) -> bool:
        return self.number % 4 != 1  # a table without a key takes longer

    @property
    def altered(self) -> bool:
        """Whether it is published with all its columns, and altered: others have a column list."""
        return not self.keyed or self.number % 4 > 1

    def published(self) -> str:
        return self.text(FILTERED if not self.altered else WITH_A_KEY if self.keyed else WITHOUT_A_KEY)

    def created(self) -> str:
        return self.text(CREATED + (KEYED if self.keyed else ""))

    def text(self, statements: str) -> str:
        made = sql.SQL(statements).format(
            table=self.sql, key=self.key, value=self.value, schema=sql.Identifier(self.schema),
            publication=self.publication, name_text=sql.Literal(self.name), name=sql.Identifier(self.name),
        )  # fmt: skip
        return made.as_string()


@pytest.mark.soak  # 30 s; `test_tablesync` has a name with capitals, spaces, dots and Unicode
def test_names_are_only_names(spark, publisher, pipeline):
    """Copied, changed, altered, optimized: with a key and without one, by row filters and column lists."""
    tables = [Table(number) for number in range(len(NAMES))]
    schema = "".join(map(Table.created, tables))
    publisher.execute(schema)
    publisher.execute("CREATE TABLE x (id int PRIMARY KEY)")
    for table in tables:
        publisher.execute(table.published())
    with NativeSubscriber(publisher.conninfo, NAMES, schema=schema) as native:
        bridge = pipeline(publications=NAMES)
        bridge.catch_up()
        for table in tables:
            publisher.execute(table.text(CHANGES))
        bridge.catch_up()
        for table in tables:
            if table.altered:
                altered = ALTERED + (KEY_RENAMED if table.keyed else "")
                native.execute(table.text(altered))
                publisher.execute(table.text(altered + (KEYED_AFTERWARDS if table.keyed else AFTERWARDS)))
        bridge.catch_up()
        native.wait_caught_up()
        paths = {(rel.namespace, rel.name): rel.path for rel in bridge.catalog.rels(bridge.subscription.name)}
        for table in tables:
            path = paths[table.schema, table.name]
            assert differences(spark, path, native, table.sql.as_string()) == []
            assert spark.sql(f"OPTIMIZE delta.{quoted(path)}").collect()
    found = check_subscription(bridge.subscription, Known(bridge.catalog, running=False))
    assert [one for one in found if one.level is Level.FAILURE] == []
    assert publisher.query("SELECT count(*) FROM x") == [(0,)]
    lake = bridge.folder / "lake"
    assert {Path(path).parent.parent for path in paths.values()} == {lake}
    assert all(Path(path, "_delta_log").is_dir() and Path(path).resolve() == Path(path) for path in paths.values())
    # beside the bridge's own table of commits, which may have been written by now
    assert len({log.parent for log in lake.glob("*/*/_delta_log")} - {lake / "pgbridge" / "commits"}) == len(NAMES)
