"""Which operator or function a name means, and how values are converted to its types.

The rules are those of parse_oper.c, parse_func.c and parse_coerce.c. The candidates are all built-in signatures of the
name, also those that are not translated: with fewer candidates the choice could be another one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pgbridge.bridge.rowfilter.functions import casts, numbers
from pgbridge.bridge.rowfilter.types import encodings, literals, typed
from pgbridge.bridge.rowfilter.types.pg_catalog import CASTS, CATEGORY, PREFERRED, Signature, shown
from pgbridge.bridge.rowfilter.types.typed import STRINGS, UNKNOWN, Collation, Constant, Typed
from pgbridge.bridge.sqltext.refusal import MUTABLE_FUNCTIONS, ONLY_SIMPLE, Refused

if TYPE_CHECKING:
    from collections.abc import Sequence

_ANY: Final = frozenset({"any", "anyelement", "anycompatible"})
_ANY_ARRAY: Final = frozenset({"anyarray", "anycompatiblearray"})
POLYMORPHIC: Final = _ANY | _ANY_ARRAY | {
    "anynonarray", "anycompatiblenonarray", "anyenum", "anyrange", "anymultirange", "anycompatiblerange",
    "anycompatiblemultirange",
}  # fmt: skip


def is_array(type_: str) -> bool:
    """Whether this is the name of an array type."""
    return type_.startswith("_")


def castable(source: str, target: str, *, contexts: str = "i") -> bool:
    """Whether pg_cast has a cast from one type to another in one of these contexts (`find_coercion_pathway`)."""
    if source == target:
        return True
    if is_array(source) and is_array(target):
        return castable(source[1:], target[1:], contexts=contexts)
    cast = CASTS.get((source, target))
    return cast is not None and cast.context in contexts


def accepts(declared: Sequence[str], given: Sequence[str]) -> bool:
    """Whether arguments of the given types can be passed as the declared types (`can_coerce_type`)."""
    return len(declared) == len(given) and all(map(_accepts, declared, given)) and _consistent(declared, given)


def _accepts(declared: str, given: str) -> bool:
    if given == UNKNOWN or declared in _ANY:
        return True
    if declared in _ANY_ARRAY:
        return is_array(given)
    if declared in {"anynonarray", "anycompatiblenonarray"}:
        return not is_array(given)
    if declared in POLYMORPHIC:
        # a row filter cannot use enums; ranges are not translated
        return CATEGORY.get(given) == "R" and "range" in declared and "multi" not in declared
    return castable(given, declared)


def _consistent(declared: Sequence[str], given: Sequence[str]) -> bool:
    """Whether polymorphic arguments agree (`check_generic_type_consistency`, without the anycompatible family)."""
    arrays = {type_ for name, type_ in zip(declared, given, strict=True) if name == "anyarray" and type_ != UNKNOWN}
    elements = {type_ for name, type_ in zip(declared, given, strict=True) if name == "anyelement"} - {UNKNOWN}
    return len(arrays) <= 1 and len(elements) <= 1 and (not arrays or elements <= {next(iter(arrays))[1:]})


def choose(candidates: Sequence[Signature], given: Sequence[str], *, binary: bool = False) -> Signature | None:
    """The candidate that PostgreSQL chooses; None if no candidate fits, or none fits best.

    Args:
        candidates: All signatures of the name.
        given: The types of the arguments.
        binary: Whether the name is a binary operator: a literal is first assumed to have the other operand's type.
    """
    exact = tuple(given)
    if binary and UNKNOWN in exact:
        exact = (exact[1], exact[1]) if exact[0] == UNKNOWN else (exact[0], exact[0])
    for candidate in candidates:
        if candidate.arguments == exact and UNKNOWN not in exact:
            return candidate
    fitting = [candidate for candidate in candidates if accepts(candidate.arguments, given)]
    return fitting[0] if len(fitting) == 1 else _best(fitting, given)


def _best(candidates: list[Signature], given: Sequence[str]) -> Signature | None:
    """`func_select_candidate`, step by step."""
    known = [i for i, type_ in enumerate(given) if type_ != UNKNOWN]

    def most(score: list[int]) -> list[Signature]:
        return [candidate for candidate, points in zip(candidates, score, strict=True) if points == max(score)]

    if not candidates:
        return None
    candidates = most([sum(candidate.arguments[i] == given[i] for i in known) for candidate in candidates])
    if len(candidates) > 1:
        candidates = most(
            [
                sum(candidate.arguments[i] == given[i] or _preferred(candidate.arguments[i], given[i]) for i in known)
                for candidate in candidates
            ]
        )
    if len(candidates) == 1:
        return candidates[0]
    if len(known) == len(given):
        return None
    candidates = _by_category(candidates, [i for i in range(len(given)) if i not in known])
    if len(candidates) == 1:
        return candidates[0]
    types = {given[i] for i in known}
    if len(types) == 1:
        same = [type_ for type_ in types for _ in given]
        fitting = [candidate for candidate in candidates if accepts(candidate.arguments, same)]
        if len(fitting) == 1:
            return fitting[0]
    return None


def _preferred(declared: str, given: str) -> bool:
    return declared in PREFERRED and CATEGORY[declared] == category(given)


def category(type_: str) -> str:
    """pg_type.typcategory."""
    return "A" if is_array(type_) else CATEGORY.get(type_, "P")


def _by_category(candidates: list[Signature], open_: list[int]) -> list[Signature]:
    """Keep the candidates that take literals as the preferred category: strings, or the one that all agree on."""
    wanted: dict[int, tuple[str, bool]] = {}
    for i in open_:
        kinds = [(category(candidate.arguments[i]), candidate.arguments[i] in PREFERRED) for candidate in candidates]
        categories = {kind for kind, _ in kinds}
        if len(categories) > 1 and "S" not in categories:
            return candidates
        chosen = "S" if "S" in categories else next(iter(categories))
        wanted[i] = chosen, any(preferred for kind, preferred in kinds if kind == chosen)
    kept = [
        candidate
        for candidate in candidates
        if all(
            category(candidate.arguments[i]) == kind and (candidate.arguments[i] in PREFERRED or not has_preferred)
            for i, (kind, has_preferred) in wanted.items()
        )
    ]
    return kept or candidates


def common_type(types: Sequence[str]) -> str | None:
    """The common type of the parts of CASE, COALESCE, IN and the like (`select_common_type`); None without one."""
    if len(set(types)) == 1 and types[0] != UNKNOWN:
        return types[0]
    chosen = UNKNOWN
    for type_ in types:
        if type_ in {UNKNOWN, chosen}:
            continue
        if chosen == UNKNOWN:
            chosen = type_
        elif category(type_) != category(chosen):
            return None
        elif chosen not in PREFERRED and castable(chosen, type_) and not castable(type_, chosen):
            chosen = type_
    return "text" if chosen == UNKNOWN else chosen


def coerced(
    node: Typed,
    target: str,
    at: int,
    *,
    contexts: str = "i",
    default: Collation = typed.DATABASE_DEFAULT,
    encoding: encodings.Encoding = encodings.UTF8,
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
        encodings.check_literal(encoding, node, target)
        value = None if node.value is None else literals.value_of(target, node.value, node.at)
        typed.spark_type(target, None, node.at)
        return typed.constant(target, value, node.at, default)
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
    nodes: Sequence[Typed], what: str, at: int, default: Collation, encoding: encodings.Encoding = encodings.UTF8
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
    return numbers.together(*same) if common == "numeric" else same
