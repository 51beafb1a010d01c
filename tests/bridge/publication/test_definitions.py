"""CREATE PUBLICATION statements as PostgreSQL reads them, and what is refused, with its place."""

from __future__ import annotations

import psycopg
import pytest

from pgbridge.bridge.publication.definitions import DefinitionError, load, load_optional, parse
from pgbridge.bridge.publication.publication import ACTIONS, Publication, PublicationTable
from pgbridge.bridge.runtime.errors import ConfigError


def table(name: str, namespace: str = "public", **more) -> PublicationTable:
    return PublicationTable(namespace, name, **more)


def one(text: str) -> Publication:
    (publication,) = parse(text, "f.sql")
    return publication


@pytest.mark.parametrize(
    ("objects", "tables", "schemas"),
    [
        ("TABLE t1", [table("t1")], []),
        ("TABLE t1, s.T2", [table("t1"), table("t2", "s")], []),
        ('TABLE "A b"."C""d", TABLE x', [table('C"d', "A b"), table("x")], []),
        ("TABLE ONLY t1, t2 *, ONLY (s.t3)", [table("t1", only=True), table("t2"), table("t3", "s", only=True)], []),
        ('TABLE t1 (a, "B") , t2(c)', [table("t1", columns=("a", "B")), table("t2", columns=("c",))], []),
        ("TABLE t1 WHERE ( a > (5) )", [table("t1", row_filter="a > (5)")], []),
        ("TABLE t1 (a) WHERE (b)", [table("t1", columns=("a",), row_filter="b")], []),
        ("TABLE t1 * (a) WHERE (b), t2", [table("t1", columns=("a",), row_filter="b"), table("t2")], []),
        ("TABLES IN SCHEMA a, B", [], ["a", "b"]),
        ("TABLES IN SCHEMA a, a", [], ["a"]),
        ("TABLE t1, TABLES IN SCHEMA a, TABLE t2, TABLES IN SCHEMA b, c", [table("t1"), table("t2")], ["a", "b", "c"]),
        ("TABLE tables, schema", [table("tables"), table("schema")], []),
        ("TABLE t1, tables", [table("t1"), table("tables")], []),
        ("TABLE t1, t1", [table("t1")], []),
        ("TABLE ONLY t1, t1", [table("t1")], []),
    ],
)
def test_objects(objects, tables, schemas):
    found = one(f"CREATE PUBLICATION p FOR {objects};")
    assert (list(found.tables), list(found.schemas)) == (tables, schemas)


@pytest.mark.parametrize(
    "expression",
    [
        "a = ')'",
        r"a = E'\')'",
        "a = $x$)$x$",
        "a > 1 /* ) /* ( */ */",
        "a > 1 -- )\n",
        'U&")" = 1',
        "((a)) = ((b))",
        "a ?& ARRAY['(']",
        "a = ';'",
        "a  >\n\t5",
    ],
)
def test_expression_keeps_its_text(expression):
    """To the letter; a comment at its end keeps the line break that ends it."""
    (found,) = one(f"create publication p for table t where ({expression}) with (publish = insert)").tables
    assert found.row_filter is not None
    assert found.row_filter.rstrip() == expression.rstrip()
    assert found.row_filter.endswith("\n") == (("/*" in expression) or ("--" in expression))


def test_options():
    found = one(
        "CREATE PUBLICATION p FOR ALL TABLES WITH (publish = 'insert, update', publish_via_partition_root,"
        " publish_generated_columns = stored)"
    )
    assert found == Publication("p", (), (), True, frozenset({"insert", "update"}), True, "stored")
    assert one("CREATE PUBLICATION p").actions == frozenset(ACTIONS)


@pytest.mark.parametrize(
    ("objects", "tables", "excepted", "sequences"),
    [
        ("ALL TABLES EXCEPT (TABLE t)", True, [table("t")], False),
        ('ALL TABLES EXCEPT (TABLE t, S.u, TABLE "V")', True, [table("t"), table("u", "s"), table("V")], False),
        (
            "ALL TABLES EXCEPT (TABLE ONLY t, u *, ONLY (s.v))",
            True,
            [table("t", only=True), table("u"), table("v", "s", only=True)],
            False,
        ),
        ("ALL TABLES EXCEPT (TABLE t, t, ONLY t)", True, [table("t")], False),
        ("ALL TABLES EXCEPT (TABLE tables, sequences)", True, [table("tables"), table("sequences")], False),
        ("ALL SEQUENCES", False, [], True),
        ("ALL TABLES, ALL SEQUENCES", True, [], True),
        ("ALL SEQUENCES, ALL TABLES EXCEPT (TABLE t)", True, [table("t")], True),
    ],
)  # fmt: skip
def test_everything(objects, tables, excepted, sequences):
    """PostgreSQL 19, by gram.y's PublicationAllObjSpec: the first of EXCEPT needs TABLE, the others may have it."""
    found = one(f"CREATE PUBLICATION p FOR {objects} WITH (publish = insert)")
    assert (found.all_tables, list(found.except_tables), found.all_sequences) == (tables, excepted, sequences)
    assert found.tables == ()


def test_what_pg_dump_writes():
    text = """
--
-- Name: p; Type: PUBLICATION; Schema: -; Owner: postgres
--
CREATE PUBLICATION p WITH (publish = 'insert, update, delete, truncate');
ALTER PUBLICATION p OWNER TO postgres;
ALTER PUBLICATION p ADD TABLES IN SCHEMA s1;
ALTER PUBLICATION p ADD TABLE ONLY public.t WHERE ((a > 5));
ALTER PUBLICATION p ADD TABLE ONLY public.u;
CREATE PUBLICATION q;
ALTER PUBLICATION q ADD TABLE ONLY public.t (a, b);
"""
    first, second = parse(text, "dump.sql")
    assert first.tables == (table("t", only=True, row_filter="(a > 5)"), table("u", only=True))
    assert first.schemas == ("s1",)
    assert second.tables == (table("t", only=True, columns=("a", "b")),)
    assert second.tables[0].place == "dump.sql:11:31: "
    # of 19
    (third,) = parse(
        "CREATE PUBLICATION p FOR ALL TABLES EXCEPT (TABLE ONLY public.t, TABLE ONLY public.u), ALL SEQUENCES"
        " WITH (publish = 'insert');\nALTER PUBLICATION p OWNER TO postgres;",
        "dump.sql",
    )
    assert third.except_tables == (table("t", only=True), table("u", only=True))
    assert third.except_tables[1].place == "dump.sql:1:72: "


SERVER_SAYS = [
    "CREATE PUBLICATION p FOR t",
    "CREATE PUBLICATION p FOR TABLE x.b.t",
    "CREATE PUBLICATION p FOR TABLE t WHERE (a > 1), t",
    "CREATE PUBLICATION p FOR TABLE t, t WHERE (a > 1)",
    "CREATE PUBLICATION p FOR TABLE t (a), t",
    "CREATE PUBLICATION p FOR TABLE t (a, a)",
    "CREATE PUBLICATION p FOR TABLE t, current_schema",
    "CREATE PUBLICATION p FOR TABLES IN SCHEMA public, ONLY t",
    "CREATE PUBLICATION p FOR TABLES IN SCHEMA public, a.t",
    "CREATE PUBLICATION p FOR TABLES IN SCHEMA public, t *",
    "CREATE PUBLICATION p FOR TABLES IN SCHEMA public, TABLE t (a)",
    "CREATE PUBLICATION p; CREATE PUBLICATION p",
    "CREATE PUBLICATION p FOR TABLE t (a); ALTER PUBLICATION p ADD TABLES IN SCHEMA public",
    "CREATE PUBLICATION p FOR TABLES IN SCHEMA public; ALTER PUBLICATION p ADD TABLE t (a)",
    "CREATE PUBLICATION p FOR TABLE t; ALTER PUBLICATION p ADD TABLE t",
    "CREATE PUBLICATION p FOR ALL TABLES; ALTER PUBLICATION p ADD TABLE t",
    "CREATE PUBLICATION p FOR ALL TABLES; ALTER PUBLICATION p ADD TABLES IN SCHEMA public",
    "ALTER PUBLICATION p ADD TABLE t",
    "CREATE PUBLICATION p WITH (publish = insert, publish = insert)",
    "CREATE PUBLICATION p WITH (publish = 'insert, nothing')",
    "CREATE PUBLICATION p WITH (publish_via_partition_root = yes)",
    "CREATE PUBLICATION p WITH (publish)",
    "CREATE PUBLICATION p WITH (stream = 1)",
]


@pytest.mark.parametrize("text", SERVER_SAYS)
def test_refused_in_the_servers_words(postgresql, text):
    """The same message, and the same DETAIL where the server has one."""
    postgresql.autocommit = True
    postgresql.execute("CREATE TABLE t (a int PRIMARY KEY, b int)")
    *before, last = text.split(";")
    for statement in before:
        postgresql.execute(statement)
    with pytest.raises(psycopg.Error) as error:
        postgresql.execute(last)
    with pytest.raises(DefinitionError) as refused:
        parse(text, "f.sql")
    message, _, detail = str(refused.value).partition("\nHINT:")[0].partition("\nDETAIL:  ")
    said = error.value.diag.message_primary or ""
    assert message.partition(": ")[2].partition("; allowed")[0].replace('"', "") == said.replace('"', "")
    assert error.value.diag.message_detail in {None, detail}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("CREATE PUBLICATION p FOR TABLE t EXCEPT (TABLE a)", "1:34: EXCEPT is not PostgreSQL's syntax here"),
        ("CREATE PUBLICATION p FOR TABLES IN SCHEMA CURRENT_SCHEMA", "1:43: TABLES IN SCHEMA CURRENT_SCHEMA is not"),
        (
            "CREATE PUBLICATION p FOR ALL TABLES IN SCHEMA s",
            "1:37: FOR ALL TABLES IN SCHEMA is not PostgreSQL's syntax",
        ),
        (
            "CREATE PUBLICATION p\n FOR ALL TABLES, TABLE t",
            "2:16: FOR ALL TABLES cannot be combined with other objects",
        ),
        (
            "CREATE PUBLICATION p FOR TABLE a b",
            '1:34: syntax error at or near "b"; allowed here: "*", a column list, WHERE, ",", WITH, ";"',
        ),
        ("CREATE PUBLICATION p FOR TABLE a WHERE b", '1:40: syntax error at or near "b"; allowed here: "("'),
        ("CREATE PUBLICATION p FOR TABLE a WHERE ()", '1:41: syntax error at or near ")"; allowed here: an expression'),
        ("CREATE PUBLICATION p FOR TABLE a WHERE (b;", '1:40: the "(" of this WHERE is never closed'),
        ("CREATE PUBLICATION p FOR TABLE a (b,)", '1:37: syntax error at or near ")"; allowed here: a column\'s name'),
        (
            "CREATE PUBLICATION p FOR TABLE user",
            '1:32: syntax error at or near "user"; allowed here: a table\'s name, or',
        ),
        ("CREATE PUBLICATION p FOR TABLE", "1:31: syntax error at end of input; allowed here: a table's name"),
        ("CREATE PUBLICATION p WITH ()", '1:28: syntax error at or near ")"; allowed here: publish, '),
        ("CREATE PUBLICATION p extra", '1:22: syntax error at or near "extra"; allowed here: FOR, WITH, ";"'),
        ("CREATE TABLE t (a int)", '1:1: syntax error at or near "CREATE"; allowed here: CREATE PUBLICATION, ALTER'),
        ("DROP PUBLICATION p", '1:1: syntax error at or near "DROP"; allowed here: CREATE PUBLICATION, ALTER'),
        ("CREATE PUBLICATION p; ALTER PUBLICATION p DROP TABLE t", '1:43: syntax error at or near "DROP"; allowed'),
        ("-- nothing\n;", "2:2: the file has no CREATE PUBLICATION"),
        ("CREATE PUBLICATION 'p'", "1:20: syntax error at or near \"'p'\"; allowed here: a publication's name"),
        ("CREATE PUBLICATION p FOR TABLE a WHERE (b = 'c)", "1:45: unterminated quoted string"),
    ],
)
def test_refused(text, message):
    """With file, line and column, what was found and what is allowed."""
    with pytest.raises(DefinitionError) as error:
        parse(text, "dir/f.sql")
    assert str(error.value).startswith(f"dir/f.sql:{message}")


ONCE = "invalid publication object list\nDETAIL:  ALL {} can be specified only once."
DEFINED = 'publication "p" is defined as FOR {}\nDETAIL:  {} cannot be added to or dropped from FOR {} publications.'


@pytest.mark.parametrize(
    ("objects", "at", "message"),
    [
        ("ALL SEQUENCES, ALL TABLES, ALL TABLES", 28, ONCE.format("TABLES")),
        ("ALL SEQUENCES, ALL TABLES, ALL SEQUENCES", 28, ONCE.format("SEQUENCES")),
        (
            "ALL SEQUENCES; ALTER PUBLICATION p ADD TABLE t",
            40,
            DEFINED.format("ALL SEQUENCES", "Tables", "ALL SEQUENCES"),
        ),
        (
            "ALL TABLES, ALL SEQUENCES; ALTER PUBLICATION p ADD TABLES IN SCHEMA s",
            52,
            DEFINED.format("ALL TABLES, ALL SEQUENCES", "Schemas", "ALL TABLES, ALL SEQUENCES"),
        ),
        ("ALL VIEWS", 5, 'syntax error at or near "VIEWS"; allowed here: TABLES, SEQUENCES'),
        ("ALL TABLES EXCEPT TABLE (t)", 19, 'syntax error at or near "TABLE"; allowed here: "("'),
        ("ALL TABLES EXCEPT (t)", 20, 'syntax error at or near "t"; allowed here: TABLE'),
        ("ALL TABLES EXCEPT ()", 20, 'syntax error at or near ")"; allowed here: TABLE'),
        ("ALL TABLES EXCEPT (TABLE t (a))", 28, 'syntax error at or near "("; allowed here: ")", ","'),
        ("ALL TABLES EXCEPT (TABLE t WHERE (a > 1))", 28, 'syntax error at or near "WHERE"; allowed here: ")", ","'),
        ("ALL TABLES EXCEPT (TABLE t, TABLES IN SCHEMA s)", 36, 'syntax error at or near "IN"; allowed here: ")", ","'),
        ("ALL SEQUENCES EXCEPT (TABLE t)", 15, 'syntax error at or near "EXCEPT"; allowed here: WITH, ";"'),
        ("ALL SEQUENCES, TABLE t", 14, "FOR ALL SEQUENCES cannot be combined with other objects"),
    ],
)
def test_refused_everything(objects, at, message):
    """What PostgreSQL 19 refuses of ALL TABLES and ALL SEQUENCES: its grammar, and preprocess_pub_all_objtype_list."""
    before = "CREATE PUBLICATION p FOR "
    with pytest.raises(DefinitionError) as error:
        parse(before + objects, "f.sql")
    assert str(error.value).startswith(f"f.sql:1:{len(before) + at}: {message}")


def test_load(tmp_path):
    path = tmp_path / "f.sql"
    with pytest.raises(ConfigError, match=f"publication definitions {path} cannot be read: "):
        load(path)
    path.write_bytes(b"CREATE PUBLICATION \xff")
    with pytest.raises(ConfigError, match="cannot be read: "):
        load(path)
    path.write_text("CREATE PUBLICATION p")
    assert load(path) == (Publication("p"),)


def test_load_optional(tmp_path):
    """A file that was mended or broken since the configuration was read is read as it is now."""
    assert load_optional(None) is None
    path = tmp_path / "f.sql"
    path.write_text("CREATE PUBLICATION p")
    assert load_optional(str(path)) == (Publication("p"),)
    path.write_text("CREATE")
    with pytest.raises(DefinitionError, match=r"f.sql:1:1: syntax error"):
        load_optional(str(path))
