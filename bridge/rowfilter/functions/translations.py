"""The operators and functions that are translated: which module translates which.

To add a function:
1. list all signatures that pg_proc has for its name in `pg_catalog` (a test compares them with a server);
2. translate it in the module of its type (`text`, `numbers`, `dates`, `arrays`), most often as a row of its table;
3. if it has arguments of text, say in `encodings` how it depends on the database's encoding;
4. add filters that call it to the test of the module, which compares their verdicts with the server's.
To add an operator, do the same with pg_operator. To add a type, extend `typed.SPARK_TYPES`, `literals` and, if it
can be compared, `comparisons`; `pg_catalog` has all types already.

A module's `operator` and `function` take the name, the signature that PostgreSQL would call, the arguments in the types
of the signature and the place in the text. They return None for what another module translates.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pgbridge.bridge.rowfilter.functions import arrays, comparisons, dates, jsonb, numbers, regular_expressions, text
from pgbridge.bridge.rowfilter.types.encodings import UTF8, Encoding, check_function, check_operator
from pgbridge.bridge.rowfilter.types.pg_catalog import Signature, shown
from pgbridge.bridge.sqltext.refusal import Refused

if TYPE_CHECKING:
    from collections.abc import Callable

    from pgbridge.bridge.rowfilter.types.typed import Typed

    Translate = Callable[[str, Signature, tuple[Typed, ...], int], Typed | None]

_OPERATORS: Final[tuple[Translate, ...]] = (
    comparisons.operator,
    text.like_operator,
    regular_expressions.operator,
    text.operator,
    jsonb.operator,
    arrays.operator,
    dates.operator,
    numbers.operator,
)
_FUNCTIONS: Final[tuple[Translate, ...]] = (
    arrays.function,
    numbers.function,
    dates.function,
    text.function,
    text.like_escape,
)
MUTABLE: Final = frozenset(
    {
        "age", "clock_timestamp", "current_database", "current_schema", "current_setting", "format",
        "gen_random_uuid", "localtimestamp", "nextval", "pg_sleep", "pg_typeof", "quote_literal",
        "statement_timestamp", "timeofday", "to_char", "to_date", "to_json", "to_jsonb", "to_number", "to_timestamp",
        "transaction_timestamp", "txid_current", "uuidv4", "uuidv7", "version",
    }
)  # fmt: skip
"""Built-in functions that are not in `pg_catalog`, and that PostgreSQL does not allow in a row filter."""


def operator(
    name: str, signature: Signature, arguments: tuple[Typed, ...], at: int, encoding: Encoding = UTF8
) -> Typed:
    """Translate an operator with two operands of its signature's types.

    Raises:
        Refused: The operator is not translated for these operands, or for the database's encoding.
    """
    check_operator(encoding, name, arguments, at)
    for translate in _OPERATORS:
        if translated := translate(name, signature, arguments, at):
            return translated
    left, right = (shown(argument.type) for argument in arguments)
    raise Refused(f"the operator {left} {name} {right} is not translated", at)


def function(
    name: str, signature: Signature, arguments: tuple[Typed, ...], at: int, encoding: Encoding = UTF8
) -> Typed:
    """Translate a function with arguments of its signature's types.

    Raises:
        Refused: The function is not translated for these arguments, or for the database's encoding.
    """
    check_function(encoding, name, arguments, at)
    for translate in _FUNCTIONS:
        if translated := translate(name, signature, arguments, at):
            return translated
    types = ", ".join(shown(argument.type) for argument in arguments)
    raise Refused(f"the function {name}({types}) is not translated", at)
