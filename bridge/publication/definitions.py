"""A file of CREATE PUBLICATION statements, read as PostgreSQL 19 reads them.

The grammar is gram.y's CreatePublicationStmt; the expression of a WHERE stays text. The statements that pg_dump writes
are read as well: ALTER PUBLICATION … ADD TABLE, … ADD TABLES IN SCHEMA, … OWNER TO (which is ignored). What PostgreSQL
refuses without looking at its tables is refused here, in its words; `membership` refuses the rest.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from pgbridge.bridge.publication.publication import (
    DEFAULT_SCHEMA,
    OptionError,
    Publication,
    PublicationTable,
    options_of,
)
from pgbridge.bridge.runtime.errors import ConfigError
from pgbridge.bridge.sqltext.lexer import Kind, Token, tokens
from pgbridge.bridge.sqltext.refusal import Refused

if TYPE_CHECKING:
    from collections.abc import Callable


class DefinitionError(ConfigError):
    """A definitions file cannot be used; the message begins with file, line and column."""


def load(path: Path) -> tuple[Publication, ...]:
    """Read a file of publications.

    Raises:
        DefinitionError: The file cannot be read, or PostgreSQL would refuse a statement.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DefinitionError(f"publication definitions {path} cannot be read: {error}") from error
    return parse(text, str(path))


def load_optional(path: str | None) -> tuple[Publication, ...] | None:
    """Read the file that `publication_definitions` names; None without one. Raises as `load` does."""
    return None if path is None else load(Path(path))


def parse(text: str, file: str) -> tuple[Publication, ...]:
    """Read publications, in the order of their CREATE statements.

    Args:
        text: The statements.
        file: The file's name, for errors.

    Raises:
        DefinitionError: PostgreSQL would refuse a statement, or the text has no publication.
    """
    place = partial(_place, text, file)
    try:
        statement_tokens = tokens(text)
    except Refused as error:
        raise DefinitionError(f"{place(error.at or 0)}{error.reason}") from None
    return _Parser(text, statement_tokens, place).publications()


def _place(text: str, file: str, at: int) -> str:
    """An offset in a text as `file:line:column: `."""
    before = text[:at]
    return f"{file}:{before.count(chr(10)) + 1}:{at - before.rfind(chr(10))}: "


class _Parser:
    """A recursive-descent parser that looks one token ahead."""

    def __init__(self, text: str, tokens: list[Token], place: Callable[[int], str]) -> None:
        self._text = text
        self._tokens = tokens
        self._at = 0
        self._place = place
        self._made: dict[str, Publication] = {}

    def publications(self) -> tuple[Publication, ...]:
        """Parse all statements, to the end."""
        while self._next.kind is not Kind.END:
            if not self._accept_symbol(";"):
                self._statement()
        if not self._made:
            self._fail("the file has no CREATE PUBLICATION", self._next)
        return tuple(self._made.values())

    # --- tokens -------------------------------------------------------------------------------------------------------

    @property
    def _next(self) -> Token:
        return self._tokens[self._at]

    def _take(self) -> Token:
        token = self._next
        self._at += token.kind is not Kind.END
        return token

    def _accept(self, *words: str) -> bool:
        """Take these keywords if they come next."""
        ahead = self._tokens[self._at : self._at + len(words)]
        accepted = len(ahead) == len(words) and all(map(Token.is_word, ahead, words))
        self._at += len(words) * accepted
        return accepted

    def _accept_symbol(self, symbol: str) -> bool:
        accepted = self._next.is_symbol(symbol)
        self._at += accepted
        return accepted

    def _expect_symbol(self, symbol: str, *more: str) -> None:
        if not self._accept_symbol(symbol):
            self._syntax(f'"{symbol}"', *more)

    def _fail(self, message: str, token: Token, *, detail: str = "", hint: str = "") -> NoReturn:
        detail = f"\nDETAIL:  {detail}" if detail else ""
        raise DefinitionError(f"{self._place(token.start)}{message}{detail}", hint=hint)

    def _syntax(self, *allowed: str) -> NoReturn:
        token = self._next
        what = "at end of input" if token.kind is Kind.END else f"at or near {token}"
        self._fail(f"syntax error {what}; allowed here: {', '.join(allowed)}", token)

    def _name(self, what: str) -> str:
        """A ColId."""
        token = self._next
        if token.is_col_id:
            return self._take().value
        quoted = f', or "{token.source}" in double quotes' if token.kind is Kind.WORD else ""
        return self._syntax(what + quoted)

    # --- statements ---------------------------------------------------------------------------------------------------

    def _statement(self) -> None:
        if self._accept("create", "publication"):
            self._create()
        elif self._accept("alter", "publication"):
            self._alter()
        else:
            self._syntax("CREATE PUBLICATION", "ALTER PUBLICATION … ADD")
        if self._next.kind is not Kind.END:
            self._expect_symbol(";")

    def _create(self) -> None:
        token = self._next
        name = self._name("a publication's name")
        if name in self._made:
            self._fail(f'publication "{name}" already exists', token)
        made = Publication(name, place=self._place(token.start))
        allowed = ["FOR", "WITH", '";"']
        if self._accept("for"):
            made = self._all_objects(made) if self._next.is_word("all") else self._objects(made, creating=True)
            allowed.remove("FOR")
        if self._accept("with"):
            made = self._with(made)
        elif not self._next.is_symbol(";") and self._next.kind is not Kind.END:
            self._syntax(*allowed)
        self._made[name] = made

    def _all_objects(self, made: Publication) -> Publication:
        """`ALL TABLES [EXCEPT (…)]` and `ALL SEQUENCES`, in any order."""
        kinds: list[str] = []
        while not kinds or self._accept_symbol(","):
            token = self._next
            if not self._accept("all"):
                self._fail(f"FOR ALL {kinds[-1]} cannot be combined with other objects", self._tokens[self._at - 1])
            kind = self._next.value.upper()
            if not self._accept("tables") and not self._accept("sequences"):
                self._syntax("TABLES", "SEQUENCES")
            if kind in kinds:
                detail = f"ALL {kind} can be specified only once."
                self._fail("invalid publication object list", token, detail=detail)
            if self._next.is_word("in"):
                message = f"FOR ALL {kind} IN SCHEMA is not PostgreSQL's syntax: write FOR TABLES IN SCHEMA"
                self._fail(message, self._next)
            kinds.append(kind)
            if kind == "TABLES" and self._accept("except"):
                made = replace(made, except_tables=self._except_tables(made))
        return replace(made, all_tables="TABLES" in kinds, all_sequences="SEQUENCES" in kinds)

    def _except_tables(self, made: Publication) -> tuple[PublicationTable, ...]:
        """`(TABLE name [, [TABLE] name]…)`."""
        self._expect_symbol("(")
        tables: list[tuple[PublicationTable, Token]] = []
        while not tables or self._accept_symbol(","):
            if not self._accept("table") and not tables:
                self._syntax("TABLE")
            tables.append((self._relation(), self._next))
        self._expect_symbol(")", '","')
        return self._distinct(made, tables, creating=True)

    def _alter(self) -> None:
        token = self._next
        name = self._name("a publication's name")
        made = self._made.get(name)
        if made is None:
            self._fail(
                f'publication "{name}" does not exist', token, hint="put its CREATE PUBLICATION before this statement"
            )
        if self._accept("owner", "to"):
            self._take()
            return
        if not self._accept("add"):
            self._syntax("ADD TABLE", "ADD TABLES IN SCHEMA", "OWNER TO (which is ignored)")
        token = self._next
        added = self._objects(made, creating=False)
        if made.everything:
            what = f"FOR {', '.join(made.everything)}"
            kind = "Schemas" if added.schemas else "Tables"
            detail = f"{kind} cannot be added to or dropped from {what} publications."
            self._fail(f'publication "{name}" is defined as {what}', token, detail=detail)
        self._made[name] = added

    # --- objects ------------------------------------------------------------------------------------------------------

    def _objects(self, made: Publication, *, creating: bool) -> Publication:
        """Parse a list of tables and schemas, and add them to the publication."""
        tables: list[tuple[PublicationTable, Token]] = []
        schemas: list[str] = []
        kind = ""
        while not kind or self._accept_symbol(","):
            if self._accept("table"):
                kind = "table"
            elif self._accept("tables", "in"):
                if not self._accept("schema"):
                    self._syntax("SCHEMA")
                kind = "schema"
            elif not kind:
                detail = "One of TABLE or TABLES IN SCHEMA must be specified before a standalone table or schema name."
                if self._next.is_col_id:
                    self._fail("invalid publication object list", self._next, detail=detail)
                self._syntax("ALL TABLES", "TABLE", "TABLES IN SCHEMA")
            if kind == "table":
                token = self._next
                tables.append((self._table(), token))
            else:
                schemas.append(self._schema())
        added = self._distinct(made, tables, creating=creating)
        made = replace(made, tables=made.tables + added, schemas=tuple(dict.fromkeys((*made.schemas, *schemas))))
        self._check_lists(made, tables, schemas, creating=creating)
        return made

    def _distinct(
        self, made: Publication, tables: list[tuple[PublicationTable, Token]], *, creating: bool
    ) -> tuple[PublicationTable, ...]:
        """The tables of one statement, each once (`OpenTableList`)."""
        kept: dict[tuple[str, str], PublicationTable] = {}
        members = set() if creating else {(table.namespace, table.name) for table in made.tables}
        for table, token in tables:
            key = (table.namespace, table.name)
            if key in members:
                self._fail(f'relation "{table.name}" is already member of publication "{made.name}"', token)
            before = kept.setdefault(key, table)
            if before is table:
                continue
            if before.row_filter is not None or table.row_filter is not None:
                self._fail(f'conflicting or redundant WHERE clauses for table "{table.name}"', token)
            if before.columns is not None or table.columns is not None:
                self._fail(f'conflicting or redundant column lists for table "{table.name}"', token)
            kept[key] = replace(before, only=before.only and table.only)
        return tuple(kept.values())

    def _check_lists(
        self, made: Publication, tables: list[tuple[PublicationTable, Token]], schemas: list[str], *, creating: bool
    ) -> None:
        """Refuse column lists beside TABLES IN SCHEMA in one publication."""
        if not made.schemas:
            return
        for table, token in tables:
            if table.columns is not None:
                self._fail(
                    f'cannot use column list for relation "{table.qualified_name}" in publication "{made.name}"',
                    token,
                    detail="Column lists cannot be specified in publications containing FOR TABLES IN SCHEMA elements.",
                )
        if schemas and not creating and any(table.columns is not None for table in made.tables):
            self._fail(
                f'cannot add schema to publication "{made.name}"',
                self._tokens[self._at - 1],
                detail="Schemas cannot be added if any tables that specify a column list are already part of the "
                "publication.",
            )

    def _schema(self) -> str:
        token = self._next
        if token.is_word("current_schema"):
            self._fail("TABLES IN SCHEMA CURRENT_SCHEMA is not supported: a file has no current schema; name it", token)
        if token.is_word("only"):
            self._fail("invalid schema name", token)
        name = self._name("a schema's name")
        if self._next.is_symbol(".") or self._next.is_symbol("*"):
            self._fail("invalid schema name", token)
        if self._next.is_symbol("("):
            self._fail("column specification not allowed for schema", self._next)
        if self._next.is_word("where"):
            self._fail("WHERE clause not allowed for schema", self._next)
        return name

    def _relation(self) -> PublicationTable:
        """A table's name, with ONLY or `*`: gram.y's relation_expr."""
        token = self._next
        if token.is_word("current_schema"):
            self._fail("invalid table name", token)
        only = self._accept("only")
        enclosed = only and self._accept_symbol("(")
        parts = [self._name("a table's name")]
        while self._accept_symbol("."):
            parts.append(self._name("a table's name"))
        if enclosed:
            self._expect_symbol(")")
        if len(parts) > 2:
            kind = "cross-database references are not implemented: "
            kind = kind if len(parts) == 3 else "improper qualified name (too many dotted names): "
            self._fail(f'{kind}"{".".join(parts)}"', token)
        if not only:
            self._accept_symbol("*")
        *schema, name = parts
        return PublicationTable(schema[0] if schema else DEFAULT_SCHEMA, name, only, place=self._place(token.start))

    def _table(self) -> PublicationTable:
        named = self._relation()
        star = self._tokens[self._at - 1].is_symbol("*")
        columns = self._columns() if self._next.is_symbol("(") else None
        row_filter = self._where() if self._accept("where") else None
        if self._next.is_word("except"):
            self._fail("EXCEPT is not PostgreSQL's syntax here: only FOR ALL TABLES has it", self._next)
        if not any(map(self._next.is_symbol, ",;")) and not self._next.is_word("with"):
            allowed = ['","', "WITH", '";"']
            allowed[:0] = ["WHERE"] if row_filter is None else []
            allowed[:0] = ["a column list"] if columns is None and row_filter is None else []
            allowed[:0] = ['"*"'] if columns is None and row_filter is None and not named.only and not star else []
            if self._next.kind is not Kind.END:
                self._syntax(*allowed)
        return replace(named, columns=columns, row_filter=row_filter)

    def _columns(self) -> tuple[str, ...]:
        self._expect_symbol("(")
        names: list[str] = []
        while not names or self._accept_symbol(","):
            token = self._next
            name = self._name("a column's name")
            if name in names:
                self._fail(f'duplicate column "{name}" in publication column list', token)
            names.append(name)
        self._expect_symbol(")", '","')
        return tuple(names)

    def _where(self) -> str:
        """The text between WHERE's parentheses; a line comment at its end keeps its line feed."""
        opening = self._next
        if not self._accept_symbol("("):
            self._syntax('"(": WHERE needs parentheses around its expression')
        if self._next.is_symbol(")"):
            self._syntax("an expression")
        depth = 1
        while depth:
            token = self._take()
            if token.kind is Kind.END or token.is_symbol(";"):
                self._fail('the "(" of this WHERE is never closed', opening)
            depth += token.is_symbol("(") - token.is_symbol(")")
        last = self._tokens[self._at - 2]
        after = self._text[last.end : token.start]
        return self._text[opening.end : last.end].lstrip() + (after.rstrip() + "\n" if after.strip() else "")

    # --- options ------------------------------------------------------------------------------------------------------

    def _with(self, made: Publication) -> Publication:
        """`WITH (name [= value], …)`."""
        self._expect_symbol("(")
        options: list[tuple[str, str | None, Token]] = []
        while not options or self._accept_symbol(","):
            name = self._next
            if name.kind not in {Kind.WORD, Kind.QUOTED}:
                self._syntax("publish", "publish_via_partition_root", "publish_generated_columns")
            self._take()
            value = None
            if self._accept_symbol("="):
                if self._next.kind in {Kind.MARK, Kind.OPERATOR, Kind.END}:
                    self._syntax("a value")
                value = self._take().value
            options.append((name.value, value, name))
        self._expect_symbol(")", '","')
        seen: dict[str, str | None] = {}
        for key, value, token in options:
            if key in seen:
                self._fail("conflicting or redundant options", token)
            seen[key] = value
            try:
                made = replace(made, **options_of({key: value}))
            except OptionError as error:
                self._fail(str(error), token, detail=error.detail)
        return made
