"""Audit the lock file: report locked packages with known vulnerabilities.

    python audit.py                                   asks the vulnerability database of the Python Package Index
    python audit.py --vulnerability-service osv       asks osv.dev; all options are passed to pip-audit

`pip-audit` reports success if it has found no data about a package. This script reports a failure instead. The exit
code is 0 if all packages were audited and none is vulnerable, 1 if a package is vulnerable, and 2 if the audit is
incomplete.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
LOCK = ROOT / "requirements-dev.lock"
_SHOWN = 5
"""The maximum number of packages without data that the report names."""


def locked_packages(lock: str) -> list[str]:
    """Return the locked packages in the form `name==version`, for all Python versions and systems."""
    return [line.split()[0] for line in lock.splitlines() if line and line[0] not in " #-"]


def requirement_files(packages: Sequence[str], folder: Path) -> Iterator[Path]:
    """Write the packages to files, none of which contains two versions of a package."""
    files: list[dict[str, str]] = []
    for package in packages:
        name = package.partition("==")[0]
        file = next((each for each in files if name not in each), None)
        if file is None:
            files.append(file := {})
        file[name] = package
    for number, file in enumerate(files):
        path = folder / f"requirements-{number}.txt"
        path.write_text("\n".join(file.values()) + "\n", encoding="utf-8")
        yield path


def report(dependencies: Sequence[dict[str, Any]], total: int) -> tuple[str, int]:
    """Return the text of the report and the exit code, from the dependencies in the JSON output of pip-audit."""
    vulnerable = [each for each in dependencies if each.get("vulns")]
    audited = sum("vulns" in each for each in dependencies)
    without = sorted({each["name"] for each in dependencies if "vulns" not in each})
    lines = []
    for each in vulnerable:
        for found in each["vulns"]:
            fixed = ", ".join(found["fix_versions"]) or "none"
            lines.append(f"{each['name']} {each['version']}: {found['id']}, fixed in: {fixed}")
    if audited < total:
        some = ", ".join(without[:_SHOWN]) + (", ..." if len(without) > _SHOWN else "")
        lines.append(
            f"The audit is incomplete: the vulnerability database has no data about {total - audited} of {total} "
            f"packages ({some or 'pip-audit left them out'}).\n{_NETWORK}"
        )
    elif not vulnerable:
        lines.append(f"No known vulnerabilities in {total} packages.")
    if vulnerable:
        lines.append(
            "Raise the lower bounds in pyproject.toml or requirements-dev.txt if needed, then run `make lock`."
        )
    return "\n".join(lines), 1 if vulnerable else 2 if audited < total else 0


_NETWORK = (
    "The audit needs a connection to https://pypi.org/pypi/NAME/VERSION/json. Mirrors of the package index usually do "
    "not have this data. Run it on a machine with that connection, or ask osv.dev: make audit "
    "ARGS='--vulnerability-service osv'."
)


def main(program: str, options: Sequence[str]) -> int:
    packages = locked_packages(LOCK.read_text(encoding="utf-8"))
    dependencies: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        for file in requirement_files(packages, Path(folder)):  # pip-audit accepts one version of each package.
            words = [
                "--requirement",
                str(file),
                "--no-deps",
                "--disable-pip",
                "--progress-spinner=off",
                "--format=json",
            ]
            done = subprocess.run([program, *words, *options], capture_output=True, text=True)
            try:
                dependencies += json.loads(done.stdout)["dependencies"]
            except (ValueError, KeyError):
                reason = (done.stderr.strip().splitlines() or ["it printed nothing"])[-1]
                sys.stderr.write(f"Nothing was audited, because pip-audit failed: {reason}\n{_NETWORK}\n")
                return 2
    text, code = report(dependencies, len(packages))
    (sys.stderr if code else sys.stdout).write(f"{text}\n")
    return code


if __name__ == "__main__":
    sys.exit(main(str(Path(sys.executable).with_name("pip-audit")), sys.argv[1:]))
