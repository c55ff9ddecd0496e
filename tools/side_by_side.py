"""The tests, side by side: `python -m tools.side_by_side [PATH ...] [OPTION ...]`, as `make test` does it.

There are two processes of pytest for each core, as much of the time is waiting; `--processes=N` says otherwise. Each
takes the next file that nobody has taken, finds its tests and runs them. So a file is read once, and what its tests
share, they share in one process. Lines of dots are shown as they come, all else when a process has ended. Options that
choose among tests, such as `-k`, are for pytest itself.
"""

from __future__ import annotations

import gc
import os
import re
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

DEAR = ("test_clone.py", "test_local.py", "test_fleet.py", "test_quiet.py", "test_kills.py", "test_processes.py")
"""Files that take long. They are taken first, so that no process is left with one of them when the others are done."""
HEAVY = "contract"
"""The folder whose files load what is large; half of the processes begin there, and the others need not load it."""
_PATIENCE = 30.0
"""Seconds for the last words of a process that has ended; one that it left behind may hold them open."""
_DOTS = re.compile(r"[.FEsxX]+( +\[.*\])?\s*")
_SUMMARY = re.compile(r"(.*) in \d+\.\d+s\b.*\s*")
_OUTCOME = re.compile(r"(\d+) (\w+)")
_FINE = (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED)


# Within a process of pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--turns", type=Path, help="the folder in which processes take their files")
    parser.addoption("--from-the-end", action="store_true", help="whether the last files are taken first")


def pytest_collection() -> bool:
    """Nothing is looked for at first."""
    return True


def pytest_runtestloop(session: pytest.Session) -> bool:
    tests = _tests(session)
    test = next(tests, None)
    while test is not None:
        following = next(tests, None)  # the fixtures that it needs too are kept for it
        session.config.hook.pytest_runtest_protocol(item=test, nextitem=following)
        if session.shouldfail:
            raise session.Failed(session.shouldfail)
        if session.shouldstop:
            raise session.Interrupted(session.shouldstop)
        test = following
    return True


def _tests(session: pytest.Session) -> Iterator[pytest.Item]:
    config, found = session.config, 0
    files = [file for node in session.perform_collect(genitems=False) for file in _files(node)]
    files.sort(key=_place)
    turns = list(enumerate(files))
    for number, file in reversed(turns) if config.getoption("from_the_end") else turns:
        try:
            (config.getoption("turns") / str(number)).touch(exist_ok=False)
        except FileExistsError:
            continue
        gc.disable()  # what is found stays until the file is done
        tests = list(session.genitems(file))
        config.hook.pytest_collection_modifyitems(session=session, config=config, items=tests)
        gc.enable()
        found += len(tests)
        session.testscollected = found
        yield from tests


def _files(node: pytest.Item | pytest.Collector) -> Iterator[pytest.Item | pytest.Collector]:
    """What is below, down to files; nothing is read of these."""
    if isinstance(node, pytest.Directory):
        for below in node.ihook.pytest_make_collect_report(collector=node).result:
            yield from _files(below)
    else:
        yield node


def _place(file: pytest.Item | pytest.Collector) -> tuple[bool, int]:
    """The heavy ones at one end and the others at the other, the dear ones of both at the very ends."""
    is_heavy = file.path.parent.name == HEAVY
    rank = DEAR.index(file.path.name) if file.path.name in DEAR else len(DEAR)
    return not is_heavy, rank if is_heavy else -rank


# Around them


class _Process:
    """One pytest, and what it has said so far."""

    def __init__(self, words: Sequence[str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "pytest", *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            errors="backslashreplace",
        )
        self.said: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if _DOTS.fullmatch(line):
                print(line, end="", flush=True)
            else:
                self.said.append(line)

    def ended(self) -> int:
        """Its exit code, once it has ended; Ctrl-C reaches it too, and it says how far it came."""
        try:
            code = self._process.wait()
        except KeyboardInterrupt:
            code = self._process.wait()
        self._reader.join(_PATIENCE)
        return code

    def outcomes(self) -> Counter[str] | None:
        """How many tests came out how; None where its last line does not say so, as something ended it."""
        summary = next((found for line in self.said[-3:] if (found := _SUMMARY.fullmatch(line))), None)
        if summary is None:
            return None
        return Counter({outcome: int(count) for count, outcome in _OUTCOME.findall(summary[1])})


def main(words: Sequence[str]) -> int:
    count = [word.partition("=")[2] for word in words if word.startswith("--processes=")]
    options = [word for word in words if word.startswith("-") and not word.startswith("--processes=")]
    paths = [word for word in words if not word.startswith("-")] or ["tests"]
    # Whoever minds the PostgreSQL there may be the last to leave.
    with tempfile.TemporaryDirectory(prefix="acorn-tests-", ignore_cleanup_errors=True) as folder:
        many = int(count[-1]) if count else 2 * (os.cpu_count() or 1)
        own = ["-p", "tools.side_by_side", f"--turns={folder}", "-o", "console_output_style=count", *options, *paths]
        processes = [_Process([*own, *["--from-the-end"] * (number % 2)]) for number in range(many)]
        codes = [process.ended() for process in processes]
    for process in processes:
        print(*process.said, sep="")
    told = [process.outcomes() for process in processes]
    outcomes = sum((each for each in told if each is not None), Counter[str]())
    print(", ".join(f"{many} {outcome}" for outcome, many in sorted(outcomes.items())) or "no tests")
    if None in told:
        print(f"a process ended before its tests did; the exit codes: {', '.join(map(str, codes))}")
        return int(pytest.ExitCode.INTERNAL_ERROR)
    bad = [code for code in codes if code not in _FINE]
    return bad[0] if bad else int(_FINE[0] if outcomes["passed"] else _FINE[1])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
