"""Random filters of the translated grammar over the columns of `compared.TABLE`."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from tests.bridge.rowfilter.compared import TABLE

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

T = TypeVar("T")

COMPARISONS = ["=", "<>", "<", "<=", ">", ">=", "!="]
FAMILIES = {
    "integer": ["i2", "i4", "j4", "i8", '"Odd Name"'],
    "numeric": ["n", "m"],
    "any numeric": ["u"],
    "float": ["r", "d"],
    "text": ["t", "t2", "v"],
    "plain text": ["txt"],
    "char": ["c"],
    "bytes": ["x"],
    "date": ["day"],
    "timestamp": ["ts"],
    "instant": ["tz"],
    "time": ["clock"],
    "uuid": ["g"],
    "interval": ["span"],
}
LITERALS = {
    "integer": ["0", "1", "-1", "7", "100", "-7", "32767", "2147483647", "-2147483648", "4294967296", "'3'"],
    "numeric": ["0.1", "1.0", "2.5", "-1.5", "1.000", "7", "1e3", "-0.0", "'0.10'", "999999999.9991"],
    "any numeric": ["0", "1.00", "-1.5", "0.1", "'NaN'", "'Infinity'", "'-Infinity'", "99.990", "1e60", "-12.25"],
    "float": ["0", "0.1", "1.5", "-0.1", "'NaN'", "'Infinity'", "'-0'", "2", "1e300", "0.1::real", "16777217"],
    "instant": ["'1970-01-01 00:00:00Z'", "'2020-01-01 02:00:00+02'", "'infinity'", "'-infinity'"],
    "date": ["'infinity'", "'0044-03-15 BC'", "date '2020-01-02'", "date '1600-02-29'"],
    "timestamp": ["'infinity'", "'2020-01-01'", "timestamp '2020-02-29 12:34:56.789013'", "'-infinity'"],
    "time": ["'12:34'", "time '24:00:00'"],
}
LIKES = ["a%", "%c", "%b%", "_", "a_c", "%a%c%", "", "%", "__%", "a\\%c", "%\\_%", "ä%", "%語", "Str%e", "%\\\\%"]
PIECES = ["a", "b", "c", ".", "[a-c]", "[^a]", "ä", "(a|b)", "(?:bc)", "\\.", "\\%", "x", "[xyz%]", "[A-Z0-9]", "語"]
REPEATS = ["", "", "", "*", "+", "?", "{2}", "{1,3}", "+?", "{0,}"]


class Filters:
    """A generator of filters, the same ones for the same random numbers."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance

    def pick(self, items: list[T]) -> T:
        """One of them."""
        return self.chance.choice(items)

    def condition(self, depth: int) -> str:
        """An expression of type boolean."""
        if depth > 0 and self.chance.random() < 0.55:
            return self._nested(depth - 1)
        simple: list[Callable[[], str]] = [
            self._comparison, self._comparison, self._comparison, self._test, self._in, self._between, self._like,
            self._regular, self._distinct, self._array, self._boolean, self._json, self._rows,
        ]  # fmt: skip
        return self.pick(simple)()

    def _nested(self, depth: int) -> str:
        one, other = self.condition(depth), self.condition(depth)
        return self.pick([
            f"({one} AND {other})", f"({one} OR {other})", f"NOT ({one})", f"({one}) IS NOT TRUE",
            f"({one}) IS {self.pick(['TRUE', 'FALSE', 'UNKNOWN', 'NOT FALSE', 'NOT UNKNOWN', 'NULL'])}",
            f"({one}) = ({other})", f"({one}) IS DISTINCT FROM ({other})", f"coalesce({one}, {other})",
            f"CASE WHEN {one} THEN {other} ELSE {self.condition(0)} END", f"CASE WHEN {one} THEN {other} END",
        ])  # fmt: skip

    def family(self) -> str:
        """A group of types that are compared with each other."""
        return self.pick(list(FAMILIES))

    def value(self, family: str, depth: int = 1) -> str:
        """An expression of a family's type that depends on a column."""
        column = self.pick(FAMILIES[family])
        if depth == 0 or self.chance.random() < 0.5:
            return column
        inner = self.value(family, depth - 1)
        other = self.value(family, depth - 1)
        general = [
            f"coalesce({inner}, {other})", f"CASE WHEN {self.condition(0)} THEN {inner} ELSE {other} END",
            f"nullif({inner}, {self.literal(family)})", f"nullif({inner}, {other})",
        ]  # fmt: skip
        return self.pick(general + self._special(family, inner, other))

    def _special(self, family: str, inner: str, other: str) -> list[str]:  # noqa: PLR0911 - a list for each family
        size = self.chance.randint(-2, 4)
        if family == "integer":
            day = f"extract({self.pick(['year', 'month', 'dow', 'week', 'doy', 'quarter'])} FROM day)::int"
            return [f"({inner} % {self.pick([2, 3, -3, 7])})", f"({inner} / {self.pick([2, 3, -3, 7])})", "abs(j4)",
                    f"(j4 {self.pick(['+', '-', '*'])} {size})", f"length({self.value('text', 0)})", day,
                    f"greatest({inner}, {other})", f"least({inner}, {other})", f"strpos(t, {self.literal('text')})",
                    f"(i4 {self.pick(['&', '|', '#'])} j4)", f"(~ {inner} & 6)", "array_upper(ia, 1)",
                    "array_lower(ta, 1)",
                    f"extract({self.pick(['isoyear', 'decade', 'century', 'millennium', 'epoch'])} FROM day)::bigint",
                    "array_length(ia, 1)", "cardinality(ta)", "array_ndims(ia)", "extract(microseconds FROM ts)::int",
                    f"mod({inner}, 5)", "n::int", "(b)::int"]  # fmt: skip
        if family == "numeric":
            return ["(n + 1.25)", "(n * -2)", "(n - n)", "(n % 0.7)", "abs(m)", "floor(n)", "ceil(m)", "round(n)",
                    "round(n, 1)", "trunc(n)", "sign(m)", "i8::numeric", f"greatest({inner}, i4)", "(-n)",
                    "n::numeric(14,1)",
                    f"extract({self.pick(['second', 'milliseconds', 'epoch'])} FROM ts)"]  # fmt: skip
        if family == "float":
            return ["r::double precision", "i4::real", "i8::float8", "m::float8", "u::float8", "floor(d)", "ceil(d)",
                    "round(d)", "trunc(d)", "sign(d)", "abs(r)", f"greatest({inner}, {other})", "(-d)", "(r / 2)",
                    f"date_part('{self.pick(['second', 'milliseconds', 'epoch'])}', ts)", "sqrt(abs(d))"]  # fmt: skip
        if family == "text":
            return [f"({inner} || {other})", f"({inner} || {self.literal('text')})", f"substr({inner}, {size})",
                    f"substring({inner} FROM {size} FOR {abs(size)})", f"left({inner}, {size})", "c::text",
                    f"right({inner}, {size})", f"btrim({inner})", f"trim(BOTH 'abc' FROM {inner})", f"lower({inner})",
                    f"upper({inner})", f"replace({inner}, 'a', {other})", f"reverse({inner})", f"rtrim({inner}, 'c ')",
                    f"repeat({inner}, {size})", f"lpad({inner}, {size + 3}, {other})", f"rpad({inner}, {size + 2})",
                    f"translate({inner}, 'aäb', 'ö')", f"split_part({inner}, 'b', {size or 1})", "to_hex(i4)",
                    f"overlay({inner} placing {other} from {abs(size) + 1} for {size})",
                    f"({inner})::varchar(2)", f"greatest({inner}, {other})", f"ltrim({inner})"]  # fmt: skip
        if family == "date":
            return ["(day + 30)", "(day - 1)", "ts::date", f"greatest({inner}, {other})"]
        if family == "timestamp":
            return [f"date_trunc('{self.pick(['year', 'month', 'week', 'day', 'hour', 'quarter'])}', ts)",
                    "day::timestamp", "(ts + interval '36 hours')", "(ts - '1 day'::interval)"]  # fmt: skip
        return []

    def literal(self, family: str) -> str:
        """A literal of a family's type: of the columns' own values, or another."""
        found = list(LITERALS.get(family, []))
        if family not in {"integer", "numeric"} or not found:
            _, pool = TABLE[FAMILIES[family][0]]
            found += ["'" + value.replace("'", "''") + "'" for value in pool]
        return self.pick(found)

    def _operands(self) -> tuple[str, str]:
        family = self.family()
        mixed = {"integer", "numeric", "any numeric", "float"}
        left = self.value(family)
        if self.chance.random() < 0.5:
            return left, self.literal(family)
        other = self.pick(sorted(mixed)) if family in mixed else family
        return left, self.value(other, 1)

    def _comparison(self) -> str:
        left, right = self._operands()
        operators = ["=", "<>"] if "txt" in left + right else COMPARISONS
        return f"{left} {self.pick(operators)} {right}"

    def _distinct(self) -> str:
        left, right = self._operands()
        return f"{left} IS {self.pick(['', 'NOT '])}DISTINCT FROM {right}"

    def _test(self) -> str:
        return f"{self.value(self.family(), 1)} IS {self.pick(['', 'NOT '])}NULL"

    def _in(self) -> str:
        family = self.pick([one for one in FAMILIES if one != "float"])
        column = self.pick([one for one in FAMILIES[family] if one != "v"])
        items = [self.literal(family) for _ in range(self.chance.randint(1, 4))] + self.pick([[], ["NULL"], [column]])
        return f"{column} {self.pick(['IN', 'NOT IN'])} ({', '.join(items)})"

    def _between(self) -> str:
        family = self.pick([one for one in FAMILIES if one != "plain text"])
        kind = self.pick(["BETWEEN", "NOT BETWEEN", "BETWEEN SYMMETRIC", "NOT BETWEEN SYMMETRIC"])
        return f"{self.value(family, 1)} {kind} {self.literal(family)} AND {self.literal(family)}"

    def _like(self) -> str:
        operator = self.pick(["LIKE", "NOT LIKE", "ILIKE", "NOT ILIKE", "~~", "!~~"])
        column = self.pick(["t", "v", "c", "txt"] if "I" not in operator or operator.endswith(" LIKE") else ["t"])
        if operator in {"ILIKE", "NOT ILIKE", "LIKE"}:
            column = self.pick(["t", "v", "c"])
        return f"{column} {operator} '{self.pick(LIKES)}'"

    def _regular(self) -> str:
        pieces = "".join(self.pick(PIECES) + self.pick(REPEATS) for _ in range(self.chance.randint(1, 3)))
        pattern = self.pick(["", "^"]) + pieces + self.pick(["", "$", f"|{self.pick(PIECES)}"])
        return f"{self.pick(['t', 'v', 'c'])} {self.pick(['~', '!~', '~*', '!~*'])} '{pattern}'"

    def _array(self) -> str:
        items = self.pick(["'{1,2}'", "'{}'", "'{1,NULL}'", "'{100,7}'", "ia"])
        one = self.pick(["i4", "j4", "i2 + 0", "abs(j4)"])
        return self.pick([
            f"{one} {self.pick(COMPARISONS)} {self.pick(['ANY', 'ALL'])} ({items})",
            f"ia {self.pick(['@>', '<@', '&&', '=', '<>'])} {items}",
            f"t {self.pick(['=', '<>', '<'])} {self.pick(['ANY', 'ALL'])} (ta)",
            f"t = ANY (ARRAY[{self.literal('text')}, {self.literal('text')}])",
            f"ta {self.pick(['@>', '<@', '&&'])} ARRAY['a', {self.literal('text')}]",
        ])  # fmt: skip

    def _boolean(self) -> str:
        return self.pick(["b", "b = b2", "b AND NOT b2", "b IS TRUE", "b2 IS NOT FALSE", "b < b2", "b <> 'f'"])

    def _json(self) -> str:
        key = self.pick(["a", "b", "ä", "", "A b.c", "nosuch"])
        document = self.pick(['{"a": 1}', '{"a": "1"}', '{"a": null}', '{"b": {"c": "y"}}', "{}", '{"a": 100.0}'])
        return self.pick([
            f"j ->> '{key}' = '{self.pick(['1', 'x', 'true', '1.0', 'e', 'k', 'a', '[1, 2]'])}'",
            f"j ->> '{key}' IS NULL", f"j ? '{key}'", f"j @> '{document}'", f"j -> '{key}' IS NULL",
            f"j -> '{key}' ->> 'b' = '1'", f"(j -> 'b') ? '{key}'", f"length(j ->> '{key}') > 1",
        ])  # fmt: skip

    def of_a_server(self) -> str:
        """A condition of which no part is translated."""
        column = self.pick(["txt", "lower(txt)", "upper(txt)", "initcap(txt)", "translate(txt, 'abc', 'bä')"])
        return self.pick([
            f"{column} {self.pick(['ILIKE', 'NOT ILIKE'])} '{self.pick(LIKES)}'",
            f"{column} {self.pick(['<', '<=', '>', '>='])} {self.literal('text')}",
            f"{column} = {self.pick(['lower', 'upper'])}({self.literal('text')})",
            f"{column} {self.pick(['~*', '!~*'])} 'a+|[[:alpha:]]'", f"md5(t) > '{self.pick(['3', '8', 'c'])}'",
            f"lpad(t, {self.chance.randint(0, 9)}, txt) <> t", f"split_part(t, 'a', {self.pick([1, 2, -1])}) = ''",
            f"age(ts, '2000-01-01') > interval '{self.chance.randint(0, 30)} years'", "sqrt(abs(d)) > 2", "u ^ 2 > 10",
            f"j #>> '{{b,c}}' {self.pick(['=', '>'])} 'y'", "jsonb_typeof(j) = 'object'",
            f"array_position(ia, {self.chance.randint(1, 3)}) = 1",
        ])  # fmt: skip

    def _rows(self) -> str:
        columns, others = self.pick([
            ("i4, t", f"{self.literal('integer')}, {self.literal('text')}"), ("j4, span, t", "i4, '1 mon', t2"),
            ("b, d, n", f"b2, {self.literal('float')}, {self.literal('numeric')}"), ("day, i2", "ts, j4"),
        ])  # fmt: skip
        return self.pick([
            f"({columns}) {self.pick(COMPARISONS)} ({others})", f"({columns}) IS NOT DISTINCT FROM ({others})",
            f"({columns}) {self.pick(['IN', 'NOT IN'])} (({others}), ({columns}))", f"({columns}) IS NOT NULL",
            f"({columns}) IS DISTINCT FROM ({others})", f"ROW({columns}) BETWEEN ({others}) AND ({others})",
            f"({columns}) IS NULL",
        ])  # fmt: skip
