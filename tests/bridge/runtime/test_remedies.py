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


def test_the_configuration_file_is_named(tmp_path, monkeypatch):
    """Absolute, so that the command works in any folder; not where commands take it by themselves."""
    monkeypatch.chdir(tmp_path)
    assert remedies.run("--standby") == "pgbridge run --standby"
    remedies.use(Path("my config.toml"))
    assert remedies.run() == f"pgbridge run --config '{tmp_path}/my config.toml'"
    assert remedies.skip("shop", Lsn(24), "--show") == (
        f"pgbridge skip shop --lsn 0/18 --show --config '{tmp_path}/my config.toml'"
    )
    for file in (Path("pgbridge.toml"), tmp_path / "pgbridge.toml"):
        remedies.use(file)
        assert remedies.run() == "pgbridge run"


def test_of_a_conflict():
    """What loses nothing; a value that is not shown whole is not looked for."""
    hint = remedies.of_conflict("delta.`/l/t`", ["a", "b`c"], ["1", "it's"])
    assert "DELETE FROM delta.`/l/t` WHERE `a` = '1' AND `b``c` = 'it\\'s'" in hint
    for value in ("x" * 200, None, "a\\b"):
        hint = remedies.of_conflict("delta.`/l/t`", ["a"], [value])
        assert "DELETE" not in hint
        assert 'conflict = "apply_remote"' in hint
