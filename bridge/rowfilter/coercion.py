"""Implicit and explicit conversions between types, by the rules of parse_coerce.c."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bridge.rowfilter.functions import casts, numeric
from bridge.rowfilter.resolution import common_type, is_array
from bridge.rowfilter.types import literals
from bridge.rowfilter.types.constants import constant, spark_type
from bridge.rowfilter.types.encodings import UTF8, Encoding, check_literal
from bridge.rowfilter.types.pg_catalog import CASTS
from bridge.rowfilter.types.type_names import shown
from bridge.rowfilter.types.typed import DATABASE_DEFAULT, STRINGS, UNKNOWN, Collation, Constant, Typed
from bridge.sqltext.refusal import MUTABLE_FUNCTIONS, ONLY_SIMPLE, Refused

if TYPE_CHECKING:
    from collections.abc import Sequence


def coerced(
    node: Typed,
    target: str,
    at: int,
    *,
    contexts: str = "i",
    default: Collation = DATABASE_DEFAULT,
    encoding: Encoding = UTF8,
) -> Typed:
    """Convert a value to another type (`coerce_type`).

    Args:
        node: The value; a literal of unknown type is read as a literal of the target type.
        target: The type's name in pg_type.
        at: The place of the conversion in the text.
        contexts: The contexts of pg_cast that are allowed: i implicit, a assignment, e explicit.
        default: The database's collation, which literals have.
        encoding: The database's encoding.

    Raises:
        Refused: PostgreSQL has no such cast, does not allow it in a row filter, or it is not translated.
    """
    if node.type == target:
        return node
    if node.type == UNKNOWN and isinstance(node, Constant):
        check_literal(encoding, node, target)
        value = None if node.value is None else literals.value_of(target, node.value, node.at)
        spark_type(target, None, node.at)
        return constant(target, value, node.at, default)
    if is_array(node.type) or is_array(target):
        raise Refused(ONLY_SIMPLE, at)
    cast = CASTS.get((node.type, target))
    if cast is None and not ({target, node.type} & STRINGS):
        raise Refused(f"cannot cast type {shown(node.type)} to {shown(target)}", at)
    if cast is None or cast.method == "i":
        raise Refused(ONLY_SIMPLE, at)
    if cast.context not in contexts:
        raise Refused(f"there is no implicit cast from type {shown(node.type)} to {shown(target)}", at)
    if not cast.immutable:
        raise Refused(MUTABLE_FUNCTIONS, at)
    if cast.method == "b":
        return node.relabelled(target)
    return casts.convert(node, target, at)


def to_common(
    nodes: Sequence[Typed], what: str, at: int, default: Collation, encoding: Encoding = UTF8
) -> tuple[Typed, ...]:
    """Convert values to their common type.

    Args:
        nodes: The values.
        what: The construct that they are part of, for the message: CASE, ARRAY.
        at: The place of the construct in the text.
        default: The database's collation.
        encoding: The database's encoding.

    Raises:
        Refused: There is no common type, or a conversion to it is refused.
    """
    common = common_type([node.type for node in nodes])
    if common is None:
        types = " and ".join(sorted({shown(node.type) for node in nodes if node.type != UNKNOWN}))
        raise Refused(f"{what} types {types} cannot be matched", at)
    same = tuple(coerced(node, common, node.at, default=default, encoding=encoding) for node in nodes)
    return numeric.together(*same) if common == "numeric" else same
