"""`pgbridge publications` from the shell: as JSON, as tables, as definitions, and with its exit codes."""

from __future__ import annotations

import json


def test_publications(two, publisher, tmp_path):
    """As tables, as a document, and written down as definitions that are then re-applied."""
    publisher.execute("CREATE TABLE t (a int PRIMARY KEY); CREATE PUBLICATION p FOR TABLE t WHERE (a > 5)")
    text = (
        f'[subscription.shop]\nconnection = {json.dumps(publisher.conninfo)}\npublications = ["p"]\nwarehouse = "l"\n'
    )
    (tmp_path / "pgbridge.toml").write_text(text)
    code, out, err = two("publications")
    assert (code, err) == (0, "")
    assert out.splitlines()[1].split()[:4] == ["shop:", "public.t", "p", "all"]
    statement = "CREATE PUBLICATION p FOR\n    TABLE ONLY public.t WHERE ((a > 5));\n"
    assert two("publications", "shop", "--dump") == (0, statement, "")
    (tmp_path / "f.sql").write_text(statement)
    (tmp_path / "pgbridge.toml").write_text(text + 'publication_definitions = "f.sql"\n')
    (shop,) = json.loads(two("publications", "shop", "--json").out)["subscriptions"]
    assert shop["definitions"] == str(tmp_path / "f.sql")
    assert shop["targets"][0]["copy_filter"] == "(a > 5)"
    (tmp_path / "f.sql").write_text("CREATE PUBLICATION p FOR TABLE t (a, a)")
    code, out, err = two("publications")
    assert (code, out) == (2, "")
    assert f'{tmp_path / "f.sql"}:1:38: duplicate column "a" in publication column list' in err


def test_publications_that_cannot_be_reapplied(two, publisher, tmp_path):
    """Shown with the reason, and an exit code that a script sees."""
    publisher.execute("CREATE TABLE t (a int PRIMARY KEY, b int); CREATE PUBLICATION p FOR TABLE t (a)")
    (tmp_path / "f.sql").write_text("CREATE PUBLICATION q FOR TABLE t WHERE (b > 5)")
    (tmp_path / "pgbridge.toml").write_text(
        f'[subscription.shop]\nconnection = {json.dumps(publisher.conninfo)}\npublications = ["p"]\n'
        'warehouse = "l"\npublication_definitions = "f.sql"\n'
    )
    code, out, _ = two("publications")
    assert code == 1
    assert 'do not publish column "b" of table "public.t"' in " ".join(out.split())


def test_publications_of_an_unknown_subscription(two):
    assert two("publications", "shopp").code == 2
    code, _, err = two("publications", "shop")
    assert code == 1
    assert "pgbridge: " in err
