"""PostgreSQL refuses to run as root; this is how root runs it as somebody else."""

import functools
import os
import pwd
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

NAMESPACE = ("unshare", "--user", "--map-user=1000", "--map-group=1000", "setpriv", "--pdeathsig", "INT")
"""A user namespace in which root has an ordinary number; files go on belonging to root."""

READ_EVERYTHING = ("--securebits", "+no_setuid_fixup", "--inh-caps", "+dac_override", "--ambient-caps", "+dac_override")
"""Lets the other user reach a repository below a folder that only root may enter."""

CANDIDATES = ("postgres", "nobody")


@dataclass(frozen=True, slots=True)
class OrdinaryUser:
    """Whom to run as: words in front of a command, and the owner its files need."""

    prefix: tuple[str, ...]
    uid: int
    gid: int

    def give(self, folder: Path) -> None:
        """Make a folder and all in it belong to this user."""
        for path in (folder, *folder.rglob("*")):
            if path.lstat().st_uid != self.uid:
                os.chown(path, self.uid, self.gid, follow_symlinks=False)


class NoOrdinaryUser(Exception):
    """Neither user namespaces nor another user work here."""


@functools.cache
def ordinary_user() -> OrdinaryUser:
    """Return this user, or for root the first way of being another that works on this machine."""
    if os.geteuid() != 0:
        return OrdinaryUser((), os.geteuid(), os.getegid())
    if _works(NAMESPACE):
        return OrdinaryUser(NAMESPACE, 0, 0)
    for entry in filter(None, map(_account, CANDIDATES)):
        become = ("setpriv", f"--reuid={entry.pw_uid}", f"--regid={entry.pw_gid}", "--clear-groups")
        for extra in (READ_EVERYTHING, ()):
            prefix = (*become, *extra, "--pdeathsig", "INT")
            if _works(prefix):
                return OrdinaryUser(prefix, entry.pw_uid, entry.pw_gid)
    raise NoOrdinaryUser("PostgreSQL cannot run as root here: start ./broker as an ordinary user or set DATABASE_URL")


def _account(name: str) -> pwd.struct_passwd | None:
    try:
        return pwd.getpwnam(name)
    except KeyError:
        return None


def _works(prefix: tuple[str, ...]) -> bool:
    if not shutil.which(prefix[0]) or not shutil.which("setpriv"):
        return False
    return subprocess.run((*prefix, "true"), capture_output=True, check=False).returncode == 0  # noqa: S603 - ours
