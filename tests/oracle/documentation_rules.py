"""Which test proves what PostgreSQL's documentation says of filters, lists, actions, partition roots and the copy.

The chapter is "Logical Replication". A sentence is proved by cases of `test_documentation` (their names), or by a
test elsewhere (its file and function).
"""

from __future__ import annotations

from typing import Final, NamedTuple


class Rule(NamedTuple):
    """A sentence of the documentation.

    Attributes:
        section: Its section's title.
        sentence: What it says, shortened.
        proofs: Names of cases, and `file::function` of tests.
    """

    section: str
    sentence: str
    proofs: tuple[str, ...]


_PUBLICATION: Final = "tests/bridge/publication"
_EXAMPLE: Final = "tests/oracle/test_identity.py::test_the_documentations_example"
_IDENTITY: Final = f"{_PUBLICATION}/test_replica_identity.py::test_against_the_servers_own_refusal"
_REFUSED: Final = "tests/oracle/test_refusals.py::test_in_the_servers_words"

PUBLICATION: Final = (
    ("each table can be added to multiple publications", "publications", "per_action"),
    ("objects must be added explicitly, except FOR ALL TABLES", "all_leaves"),
    ("publications can limit the changes to any combination of the four", "publish", "per_action", "subscriptions"),
    ("by default, all operation types are replicated", "subscriptions", "truncate"),
    ("that does not affect the initial copy", "subscriptions", "publish", "truncate"),
    ("row filters have no effect for TRUNCATE", "truncate"),
    ("the replica identity is the primary key, another unique index, or full", "publications", "identity", "nulls"),
    (
        "without one, UPDATE and DELETE cause an error on the publisher",
        f"{_PUBLICATION}/test_replica_identity.py::test_table_without_identity_is_the_servers_business",
    ),
    ("INSERT can proceed regardless of any replica identity", "identity"),
    ("ALTER PUBLICATION adds tables and schemas", f"{_PUBLICATION}/test_definitions.py::test_what_pg_dump_writes"),
)
SUBSCRIPTION: Final = (
    ("tables are matched by the fully qualified name", "tests/bridge/batch/test_routes.py::test_by_name"),
    ("only regular tables may be the target", f"{_PUBLICATION}/test_membership.py::test_refused_in_the_servers_words"),
    ("columns are matched by name, whatever their order", "columns", "root", "middle"),
    ("Examples: pub1, pub2, pub3a, pub3b", "subscriptions"),
)
ROW_FILTERS: Final = (
    ("by default all data is replicated; with a filter, rows that satisfy it", "subscriptions", "example"),
    ("the filter is the table's that WHERE follows", "publications"),
    ("WHERE must be enclosed by parentheses", _REFUSED),
    ("false or NULL: the row is not replicated", "nulls", "identity"),
    ("no effect for TRUNCATE", "truncate"),
    (
        "simple expressions: nothing user-defined or mutable, no system columns; so no role matters to them",
        _REFUSED,
        "tests/oracle/test_refusals.py::test_in_other_words",
        "tests/bridge/rowfilter/test_row_filter.py::test_what_the_server_refuses_in_its_own_words",
    ),
    ("with UPDATE or DELETE, only columns of the replica identity", _IDENTITY, _EXAMPLE),
    ("with INSERT alone, any column", "identity", "publish", "generated"),
    (
        "UPDATE becomes nothing, INSERT, DELETE or UPDATE, by the old row and the new one",
        "example",
        "publications",
        "publish",
        "nulls",
        "identity",
        "toast",
        "toast_key",
        "tests/bridge/batch/test_row_filters.py::test_random_changes",
        "tests/bridge/lake/changes/test_verdicts.py::test_random_changes",
    ),
    ("publish_via_partition_root = true: the root's filter", "via_parent", "root", "middle", "root_stream"),
    ("publish_via_partition_root = false: each partition's filter", "via_child", "leaves"),
    ("only data that satisfies the filters is copied; of several, any", "publications", "listed"),
    ("the copy does not take publish into account", "subscriptions", "per_action"),
    ("filters for the same operation are ORed", "publications", "per_action"),
    ("redundant: one publication has no filter", "publications", "per_action", "leaves"),
    ("redundant: one is FOR ALL TABLES", "all_tables", "all_leaves"),
    ("redundant: one is FOR TABLES IN SCHEMA", "in_schema"),
    ("FOR ALL TABLES and FOR TABLES IN SCHEMA do not allow filters", _REFUSED),
    ("Examples: p1, p2, p3, p4", "example", "publications", "via_parent", "via_child", _EXAMPLE),
)
COLUMN_LISTS: Final = (
    ("only the listed columns are replicated; without a list, all", "columns", "listed", "subscriptions"),
    ("a list of all columns does not have those that are added later", "listed"),
    (
        "without a list they are replicated: to a target that has them",
        "tests/bridge/batch/test_batcher_errors.py::test_a_missing_target_column_is_postgresqls_error",
    ),
    ("only simple column references", _REFUSED),
    ("the order in the list is not preserved", "columns"),
    ("no list beside FOR TABLES IN SCHEMA", f"{_PUBLICATION}/test_definitions.py::test_refused_in_the_servers_words"),
    ("publish_via_partition_root: the root's list, or each partition's", "root", "root_stream", "leaves"),
    ("with UPDATE or DELETE, a list includes the replica identity", _IDENTITY),
    ("with INSERT alone, it may omit it", "publish"),
    ("no effect for TRUNCATE", "truncate"),
    ("only the published columns are copied", "listed", "leaves"),
    (
        "different lists of one table are an error",
        f"{_PUBLICATION}/test_routing_column_lists.py::test_different_column_lists",
    ),
    ("Examples: p1", "columns"),
)
GENERATED_COLUMNS: Final = (
    ("published where a list names them, or by publish_generated_columns", "generated"),
    (
        "a list has precedence over the parameter",
        "generated",
        f"{_PUBLICATION}/test_routing_column_lists.py::test_generated_columns",
    ),
    (
        "different values are an error",
        f"{_PUBLICATION}/test_routing_column_lists.py::test_different_publish_generated_columns",
    ),
    ("virtual ones are not published", "generated", f"{_PUBLICATION}/test_reapply_coverage.py::test_virtual_columns"),
    (
        "a replica identity has none unpublished",
        f"{_PUBLICATION}/test_replica_identity.py::test_generated_columns_in_the_identity",
    ),
)
RESTRICTIONS: Final = (
    ("TRUNCATE empties the same group, minus what is not subscribed", "truncate"),
    (
        "views, foreign tables and so on are an error",
        f"{_PUBLICATION}/test_membership.py::test_refused_in_the_servers_words",
    ),
    ("changes originate from the leaf partitions by default", "leaves", "via_child"),
    ("targets may be partitions, or independent tables", "root", "middle"),
    ("or from the root, with its identity and schema", "via_parent", "root", "root_stream"),
    (
        "TRUNCATE of a partition is not the root's (but in a stream of partitions that of all of them is taken for it)",
        "root",
        "root_stream",
        f"{_PUBLICATION}/test_routing.py::test_truncate_of_a_leaf_under_a_published_root",
    ),
)
CREATE_PUBLICATION: Final = (
    (
        "tables that inherit are added with the one that is named; the copy of each has its own rows",
        f"{_PUBLICATION}/test_membership.py::test_members_are_the_servers",
        "tests/bridge/sync/test_table_reading.py::test_copy_statement",
    ),
)

RULES: Final = tuple(
    Rule(section, sentence, tuple(proofs))
    for section, rules in {
        "Publication": PUBLICATION,
        "Subscription": SUBSCRIPTION,
        "Row Filters": ROW_FILTERS,
        "Column Lists": COLUMN_LISTS,
        "Generated Column Replication": GENERATED_COLUMNS,
        "Restrictions": RESTRICTIONS,
        "CREATE PUBLICATION": CREATE_PUBLICATION,
    }.items()
    for sentence, *proofs in rules
)
