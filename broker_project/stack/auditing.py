"""`./broker audit`: is any package of the locks known to be vulnerable?

It says that none is only if somebody was asked about every one of them: pip-audit alone calls what it skipped clean.
"""

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from typing import Any, Final

from broker_project.stack.folders import ROOT

TOGETHER: Final = (("runtime.txt", "development.txt", "uv.txt"), ("semgrep.txt",))
"""The locks, by what is asked about at once: there no package may have two versions."""
PIP_AUDIT: Final = (sys.executable, "-m", "pip_audit", "--strict", "--require-hashes", "--disable-pip")
QUIETLY: Final = ("--format", "json", "--desc", "off", "--progress-spinner", "off")

CLEAN, VULNERABLE, SKIPPED = 0, 1, 3
"""Exit statuses; 2 is a mistake in the command line."""
MISUSED: Final = 2


def audit(*arguments: str) -> int:
    """Ask about every locked package, with further arguments for pip-audit; return the exit status."""
    packages: list[Any] = []
    for locks in TOGETHER:
        asked = _ask_about(locks, arguments)
        if asked.returncode == MISUSED:
            print(asked.stderr, end="", file=sys.stderr)
            return MISUSED
        known = told(asked.stdout)
        if not known:
            print(f"skipped: no vulnerability data reachable\n{asked.stderr.strip()}")
            return SKIPPED
        packages += known
    found = sorted({*vulnerabilities(packages)})
    names = {package["name"] for package in packages}
    print(*found, f"{len(names)} packages asked about, {len(found)} vulnerabilities known", sep="\n")
    return VULNERABLE if found else CLEAN


def _ask_about(locks: Sequence[str], arguments: Sequence[str]) -> subprocess.CompletedProcess[str]:
    files = [word for lock in locks for word in ("-r", str(ROOT / "requirements" / lock))]
    return subprocess.run(  # noqa: S603 - our own command
        (*PIP_AUDIT, *QUIETLY, *arguments, *files), capture_output=True, text=True, check=False
    )


def told(output: str) -> Sequence[Any]:
    """Return what is known of each package; nothing, unless something is known of all."""
    try:
        packages = json.loads(output)["dependencies"]
    except (ValueError, KeyError):
        return []
    return packages if all("vulns" in package for package in packages) else []


def vulnerabilities(packages: Sequence[Any]) -> Iterator[str]:
    """Yield a line for each known vulnerability."""
    for package in packages:
        for vulnerability in package["vulns"]:
            fixed = ", ".join(vulnerability["fix_versions"]) or "no version yet"
            yield f"{package['name']} {package['version']}: {vulnerability['id']}, mended in {fixed}"
