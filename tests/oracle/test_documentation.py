"""The documentation's rules and examples: definitions re-applied to a broad stream, against native subscriptions.

The publications' text is the same for both. `documentation_rules.py` says which sentence is proved where.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest

from tests.fix_bridge import Pipeline
from tests.fix_postgres import Publisher
from tests.oracle import (
    documentation_columns,
    documentation_filters,
    documentation_partitions,
    documentation_publications as publications,
)
from tests.oracle.delta import differences
from tests.oracle.documentation import Case, Run
from tests.oracle.documentation_rules import RULES
from tests.oracle.native import NativeSubscriber

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

    from tests.fix_postgres import Server

TOGETHER = Run(
    "together",
    (
        *publications.CASES,
        *documentation_filters.CASES,
        *documentation_columns.CASES,
        *documentation_partitions.CASES,
    ),
)
FOR_ALL_TABLES = Run("for_all_tables", (publications.ALL_TABLES, documentation_partitions.ALL_TABLES))
ROOT = Path(__file__).parents[2]
RUNS = (TOGETHER, FOR_ALL_TABLES)


class Done(NamedTuple):
    """A run that has taken place.

    Attributes:
        run: Its cases, without those that the server is too old for.
        native: Its native subscriber, caught up.
        bridge: The bridge, caught up.
    """

    run: Run
    native: NativeSubscriber
    bridge: Pipeline


@contextmanager
def carried_out(run: Run, spark: SparkSession, server: Server, folder: Path, **options: object) -> Iterator[Done]:
    """Tables, publications, rows, two copies, changes, two catch-ups."""
    publisher = Publisher(server, f"documentation_{os.getpid()}_{run.name}")
    try:
        version = int(publisher.query("SHOW server_version_num")[0][0])
        run = run.on(version)
        broad = run.broad(version)
        publisher.execute(run.publisher_schema)
        for statement in (*run.publications.split(";"), *broad.values()):
            publisher.execute(statement)
        for case in run.cases:
            publisher.execute(case.inside(case.before))
        definitions = folder / "definitions.sql"
        definitions.write_text(run.definitions)
        with NativeSubscriber(publisher.conninfo, run.publication_names, schema=run.subscriber_schema) as native:
            # of all changes one batch: each table costs one MERGE
            options = {"batch__max_age_s": 2.0, **options}
            options |= {"publications": tuple(broad), "publication_definitions": str(definitions)}
            bridge = Pipeline(spark, publisher, folder, **options)
            try:
                bridge.catch_up()
                native.wait_caught_up()
                for change, everywhere in run.changes():
                    publisher.execute(change)
                    if everywhere:
                        native.execute(change)
                bridge.catch_up()
                native.wait_caught_up()
                yield Done(run, native, bridge)
            finally:
                bridge.catalog.close()
    finally:
        publisher.drop()


@pytest.fixture(scope="module")
def together(
    way_to_commit: str | None, spark: SparkSession, postgresql_server: Server, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Done]:
    with carried_out(TOGETHER, spark, postgresql_server, tmp_path_factory.mktemp("together")) as done:
        yield done


@pytest.fixture(scope="module")
def for_all_tables(
    way_to_commit: str | None, spark: SparkSession, postgresql_server: Server, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Done]:
    with carried_out(FOR_ALL_TABLES, spark, postgresql_server, tmp_path_factory.mktemp("for_all_tables")) as done:
        yield done


@pytest.mark.parametrize("case", TOGETHER.cases, ids=lambda case: case.name)
def test_case(spark: SparkSession, together: Done, case: Case):
    check(spark, together, case)


@pytest.mark.parametrize("case", FOR_ALL_TABLES.cases, ids=lambda case: case.name)
def test_case_for_all_tables(spark: SparkSession, for_all_tables: Done, case: Case):
    """FOR ALL TABLES is about the other cases' tables, too: these have a subscription of their own."""
    check(spark, for_all_tables, case)


def check(spark: SparkSession, done: Done, case: Case) -> None:
    """The rows are the native subscriber's, and those that the documentation shows."""
    if case not in done.run.cases:
        pytest.skip(f"needs a server of version {case.since}")
    for table, rows in case.shown.items():
        assert done.native.rows(f"{case.name}.{table}") == rows
    for table in case.qualified_tables:
        assert differences(spark, done.bridge.path(table), done.native, table) == [], table


@pytest.mark.soak
def test_small_batches(spark: SparkSession, postgresql_server: Server, tmp_path: Path):
    """The same rows when almost every transaction is a batch, and a MERGE, of its own."""
    with carried_out(TOGETHER, spark, postgresql_server, tmp_path, batch__max_rows=3) as done:
        for case in done.run.cases:
            check(spark, done, case)


def test_targets(together: Done, for_all_tables: Done):
    """There are no more tables than the publications give, here and there."""
    for done in (together, for_all_tables):
        expected = {table for case in done.run.cases for table in case.qualified_tables}
        assert {rel.qualified_name for rel in done.bridge.catalog.rels(done.bridge.subscription.name)} == expected
        subscribed = done.native.query("SELECT srrelid::regclass::text FROM pg_subscription_rel")
        assert {name for (name,) in subscribed} == expected


def test_rules_name_what_proves_them():
    """Each sentence names cases and tests that are there, and each case is named."""
    cases = {case.name for run in RUNS for case in run.cases}
    named = {proof for rule in RULES for proof in rule.proofs if "::" not in proof}
    assert named == cases
    for rule in RULES:
        for proof in rule.proofs:
            file, _, function = proof.partition("::")
            if function:
                text = (ROOT / file).read_text(encoding="utf-8")
                assert f"\ndef {function}(" in text, proof


def test_cases_keep_apart():
    """A case's publications and tables are its own, and every table that it publishes is looked at."""
    for run in RUNS:
        names = [case.name for case in run.cases]
        assert len(set(names)) == len(names)
        for case in run.cases:
            assert all(name.startswith(f"{case.name}_") for name in case.publication_names)
            assert case.shown.keys() <= set(case.tables)
