"""The console script: a running daemon's status, or the command line."""

from __future__ import annotations

import sys

from bridge import __main__, cli
from bridge.status_socket import StatusSocket


def test_a_running_daemon_is_asked_first(tmp_path, monkeypatch, capfdbinary):
    (tmp_path / "pgbridge.toml").write_text("")
    (tmp_path / "state").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["pgbridge", "status", "--json"])
    monkeypatch.setattr(cli, "main", lambda: sys.stdout.write("the command line\n"))
    __main__.main()
    with StatusSocket(tmp_path / "state", dict) as served:
        served.start()
        __main__.main()
    sys.stdout.flush()
    assert sorted(capfdbinary.readouterr().out.splitlines()) == [b"the command line", b"{}"]
