"""Values as values of other types, by the rules of parse_coerce.c."""

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
    """A value as one of another type (`coerce_type`).

    Args:
        node: The value; a literal of unknown type is read as one of the target.
        target: PostgreSQL's name of the type.
        at: The place of the conversion.
        contexts: What a cast must be allowed in: i implicitly, e only where it is written.
        default: The database's collation, a literal's.
        encoding: The database's encoding, a literal's.

    Raises:
        Refused: PostgreSQL has no such cast, or does not let it into a row filter, or it is not translated.
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
        raise Refused(f"type {shown(node.type)} is not {shown(target)}, nor made one without a cast", at)
    if not cast.immutable:
        raise Refused(MUTABLE_FUNCTIONS, at)
    if cast.method == "b":
        return node.relabelled(target)
    return casts.convert(node, target, at)


def to_common(
    nodes: Sequence[Typed], what: str, at: int, default: Collation, encoding: Encoding = UTF8
) -> tuple[Typed, ...]:
    """Values brought to their common type.

    Raises:
        Refused: They have none.
    """
    common = common_type([node.type for node in nodes])
    if common is None:
        types = " and ".join(sorted({shown(node.type) for node in nodes if node.type != UNKNOWN}))
        raise Refused(f"{what} types {types} cannot be matched", at)
    same = tuple(coerced(node, common, node.at, default=default, encoding=encoding) for node in nodes)
    return numeric.together(*same) if common == "numeric" else same
