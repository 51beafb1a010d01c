"""Routes by name: what the server publishes goes to the target of its name."""

from __future__ import annotations

from dataclasses import replace

from pgbridge.bridge.batch.routes import Routes, Subscribed, key_of
from pgbridge.bridge.targets.target import Target
from pgbridge.protocol.codec.messages import Column, Relation
from pgbridge.protocol.lsn import Lsn
from tests.bridge.batch.streamed import INT4, T, batcher, insert, subscribed, transaction


def test_a_part_of_an_identity_is_no_key():
    """A column list may leave out a part of the key. A message from before the list, or before a rename, has all."""
    wide = Relation(1, "public", "t", "d", (*T.columns, Column("c", INT4, -1, is_key=True)))
    cut = replace(subscribed(wide), cut_identity=frozenset({"id", "c"}))
    assert key_of(T, cut) == ()
    assert key_of(wide, cut) == (0, 2)
    assert key_of(wide, replace(cut, cut_identity=frozenset({"id", "renamed"}))) == (0, 2)
    twice = transaction(100, T, insert(1, "a"), insert(1, "b"))
    (table,) = batcher(cut).form([twice], Lsn(50)).tables
    assert (table.key, table.inserts_only) == ((), True)


def by_name(*names: str) -> dict[tuple[str, str], Subscribed]:
    return {
        ("public", name): Subscribed(Target("public", name, f"/lake/{name}", ()), Lsn(7), ("id",)) for name in names
    }


def test_by_name():
    """Each relation goes to the target of its name. A table in pg_catalog has no schema in its message."""
    here = Routes({**by_name("t"), ("pg_catalog", "c"): by_name("c")["public", "c"]})
    t, unknown, system = (
        Relation(n, ns, name, "d", ()) for n, (ns, name) in enumerate((("public", "t"), ("public", "u"), ("", "c")))
    )
    assert here.route(t) is here.subscribed["public", "t"]
    assert here.route(unknown) is None
    assert here.route(system) is here.subscribed["pg_catalog", "c"]
    assert here.truncated([unknown, t]) == [here.subscribed["public", "t"]]


def test_a_key_that_becomes_smaller_has_the_catalog_asked_whether_it_is_whole():
    """The server is asked once, when a key shrinks while the stream runs, and after no other change."""
    looks = []

    def look():
        looks.append(1)
        return {("public", "t"): frozenset({"a", "b"})}

    a, b = Column("a", 23, -1, is_key=True), Column("b", 23, -1, is_key=True)
    target = Target("public", "t", "/lake/public/t", ())
    made = Routes({("public", "t"): Subscribed(target, Lsn(7), ())}, look)
    seen = []
    for columns in ((a, b), (a,), (a,), (a, b)):
        found = made.route(Relation(1, "public", "t", "d", columns))
        assert found is not None
        seen.append((sorted(found.cut_identity), len(looks)))
    assert seen == [([], 0), *[(["a", "b"], 1)] * 3]


def test_every_name_that_the_stream_has_is_a_table_of_its_own():
    """With `others`: no table is missing, renamed or replaced."""
    made = Routes(by_name("t"), others=lambda _, name: by_name(name)["public", name])
    assert made.every_change
    t, renamed = (Relation(1, "public", name, "d", ()) for name in ("t", "u"))
    for relation in (t, renamed):
        found = made.route(relation)
        assert found is not None
        assert found.target.name == relation.name
        made.remember_relid(relation)
        assert made.renamed_table(relation) is None
    assert made.names == {}
    assert not Routes(by_name("t")).every_change
