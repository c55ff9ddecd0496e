"""Run the long versions of the tests and report what ran: `make torture`.

The first part runs on all cores. The second part has the tests that need the whole machine, and runs them one after the
other. Both parts run even if a test fails. The report at the end lists the tests of each folder and how much each test
tried (a test says so with `record_property("tried", ...)`).
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).parents[1]
ALONE = ["tests/contract/test_shared_limits.py", "tests/fleet"]
"""The tests that need the whole machine."""
FIRST = ["tests/unit", "tests/behaviour", "tests/crash", "tests/attack", "tests/contract", "tests/cli", "tests/web"]
OUTCOMES = ("failure", "error", "skipped")


def run_part(report: Path, *arguments: str) -> int:
    """Run pytest with the long versions of the tests, and return its exit code."""
    # The default format of reports, `xunit2`, has no place for the properties of a test.
    command = [sys.executable, "-m", "pytest", "-m", "not release", f"--junitxml={report}"]
    command += ["-o", "junit_family=xunit1", *arguments]
    return subprocess.run(command, cwd=ROOT, env={**os.environ, "ACORN_TORTURE": "1"}, check=False).returncode


def print_report(reports: list[Path], seconds: float) -> None:
    """Print the tests of each folder, the failed tests, and what the tests tried."""
    tests, outcomes, times = Counter[str](), Counter[str](), defaultdict[str, float](float)
    tried: list[str] = []
    failed: list[str] = []
    for case in (case for report in reports if report.exists() for case in ElementTree.parse(report).iter("testcase")):
        file = case.get("classname", "").replace(".", "/")
        folder = str(Path(file).parent)
        tests[folder] += 1
        times[folder] += float(case.get("time", 0))
        outcome = next((name for name in OUTCOMES if case.find(name) is not None), "passed")
        outcomes[outcome] += 1
        if outcome in ("failure", "error"):
            failed.append(f"{file}.py::{case.get('name')}")
        notes = [each.get("value") for each in case.iter("property") if each.get("name") == "tried"]
        tried += [f"{note} ({Path(file).name})" for note in notes]
    print(f"\nWhat `make torture` ran, in {seconds / 60:.0f} minutes:")
    for folder, count in sorted(tests.items()):
        print(f"  {count:6,} tests in {times[folder]:7.0f} s  {folder}")
    for line in sorted(tried):
        print(f"  {line}")
    for name in failed:
        print(f"  FAILED {name}")
    print(
        f"{outcomes['passed']} passed, {outcomes['failure'] + outcomes['error']} failed, {outcomes['skipped']} skipped"
    )


def main() -> int:
    started = time.monotonic()
    workers = str(2 * (os.cpu_count() or 1))
    with tempfile.TemporaryDirectory() as folder:
        reports = [Path(folder, "first.xml"), Path(folder, "alone.xml")]
        spread = ["-n", workers, "--dist", "worksteal", *(f"--ignore={path}" for path in ALONE)]
        codes = [run_part(reports[0], *spread, *(sys.argv[1:] or FIRST))]
        if not sys.argv[1:]:
            print("Now the tests that need the whole machine, one after the other.")
            codes.append(run_part(reports[1], *ALONE))
        print_report(reports, time.monotonic() - started)
    return max(codes)


if __name__ == "__main__":
    sys.exit(main())
