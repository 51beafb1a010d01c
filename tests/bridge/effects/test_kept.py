"""What is kept of tables is of their version, and within a bound."""

from __future__ import annotations

from pgbridge.bridge.effects.kept import Kept, TableVersion


def version(number: int, table: str = "t", inode: int = 1) -> TableVersion:
    return TableVersion(table, number, (inode, 0))


def test_it_is_of_the_version():
    kept = Kept[str](100)
    kept.put(version(3), "third", 1)
    assert kept.get(version(3)) == "third"
    for other in (version(2), version(4), version(3, "u"), version(3, inode=2)):
        assert kept.get(other) is None
    kept.put(version(4), "fourth", 1)
    assert kept.get(version(3)) is None
    assert kept.get(version(4)) == "fourth"


def test_what_was_used_least_recently_is_dropped():
    kept = Kept[str](3)
    for table in "abca":
        kept.put(version(1, table), table, 1)
    kept.put(version(1, "d"), "d", 1)
    assert [kept.get(version(1, table)) for table in "abcd"] == ["a", None, "c", "d"]
    kept.put(version(1, "e"), "e", 2)
    assert [kept.get(version(1, table)) for table in "acde"] == [None, None, "d", "e"]
    kept.put(version(2, "e"), "e", 4)
    assert [kept.get(version(2, table)) for table in "de"] == [None, None]
