"""The commands that messages name: they are pasted into a shell, so every name is quoted for it."""

from __future__ import annotations

from pathlib import Path

from pgbridge.bridge.runtime import remedies
from pgbridge.protocol.lsn import Lsn


def test_refresh():
    assert remedies.refresh("shop") == "pgbridge refresh shop"


def test_resync():
    assert remedies.resync("shop", "public.t") == "pgbridge refresh shop --resync public.t"
    assert remedies.resync("shop", "s.a", "s.b c") == "pgbridge refresh shop --resync s.a --resync 's.b c'"


def test_skip():
    assert remedies.skip("shop", Lsn(0x14C0378)) == "pgbridge skip shop --lsn 0/14C0378"
    assert remedies.skip("it's", "0/1") == "pgbridge skip 'it'\"'\"'s' --lsn 0/1"


def test_run():
    assert remedies.run(Path("my config.toml")) == "pgbridge run --config 'my config.toml'"
    assert remedies.run(Path("pgbridge.toml")) == "pgbridge run --config pgbridge.toml"


def test_of_a_conflict():
    """What loses nothing; a value that is not shown whole is not looked for."""
    hint = remedies.of_conflict("delta.`/l/t`", ["a", "b`c"], ["1", "it's"])
    assert "DELETE FROM delta.`/l/t` WHERE `a` = '1' AND `b``c` = 'it\\'s'" in hint
    for value in ("x" * 200, None, "a\\b"):
        hint = remedies.of_conflict("delta.`/l/t`", ["a"], [value])
        assert "DELETE" not in hint
        assert 'conflict = "apply_remote"' in hint
