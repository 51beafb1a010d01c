"""PostgreSQL 18's keywords that are not names everywhere, by the categories of kwlist.h, and names in quotes.

A test compares the lists with pg_get_keywords(). Unreserved keywords, its category U, are names like any other.
"""

from __future__ import annotations

import re
from typing import Final

RESERVED: Final = frozenset(
    {
        "all", "analyse", "analyze", "and", "any", "array", "as", "asc", "asymmetric", "both", "case", "cast",
        "check", "collate", "column", "constraint", "create", "current_catalog", "current_date", "current_role",
        "current_time", "current_timestamp", "current_user", "default", "deferrable", "desc", "distinct", "do",
        "else", "end", "except", "false", "fetch", "for", "foreign", "from", "grant", "group", "having", "in",
        "initially", "intersect", "into", "lateral", "leading", "limit", "localtime", "localtimestamp", "not", "null",
        "offset", "on", "only", "or", "order", "placing", "primary", "references", "returning", "select",
        "session_user", "some", "symmetric", "system_user", "table", "then", "to", "trailing", "true", "union",
        "unique", "user", "using", "variadic", "when", "where", "window", "with",
    }
)  # fmt: skip
"""Category R: names nothing but a column's label."""

TYPE_FUNC_NAMES: Final = frozenset(
    {
        "authorization", "binary", "collation", "concurrently", "cross", "current_schema", "freeze", "full", "ilike",
        "inner", "is", "isnull", "join", "left", "like", "natural", "notnull", "outer", "overlaps", "right",
        "similar", "tablesample", "verbose",
    }
)  # fmt: skip
"""Category T: names a type or a function, but no table or column."""

COL_NAMES: Final = frozenset(
    {
        "between", "bigint", "bit", "boolean", "char", "character", "coalesce", "dec", "decimal", "exists", "extract",
        "float", "greatest", "grouping", "inout", "int", "integer", "interval", "json", "json_array", "json_arrayagg",
        "json_exists", "json_object", "json_objectagg", "json_query", "json_scalar", "json_serialize", "json_table",
        "json_value", "least", "merge_action", "national", "nchar", "none", "normalize", "nullif", "numeric", "out",
        "overlay", "position", "precision", "real", "row", "setof", "smallint", "substring", "time", "timestamp",
        "treat", "trim", "values", "varchar", "xmlattributes", "xmlconcat", "xmlelement", "xmlexists", "xmlforest",
        "xmlnamespaces", "xmlparse", "xmlpi", "xmlroot", "xmlserialize", "xmltable",
    }
)  # fmt: skip
"""Category C: names a table or a column, but no type or function."""

_QUOTED: Final = RESERVED | TYPE_FUNC_NAMES | COL_NAMES


def quote_identifier(name: str) -> str:
    """Quote a name as quote_ident() does: only if the lexer would read another name, or a keyword, without quotes."""
    if re.fullmatch(r"[a-z_][a-z0-9_]*", name) and name not in _QUOTED:
        return name
    return '"' + name.replace('"', '""') + '"'
